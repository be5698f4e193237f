package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/state"
)

// edited is a prepared edit of a managed directory.
type edited struct {
	s *Server
	// from is renamed to to, and then dir is made durable.
	from, to, dir string
	// leftover is deleted if nothing is renamed, or after it.
	leftover string
	parent   string // deleted if it is empty; "": none
}

// managedMark is a file in a managed directory that has objects. If it is missing, another
// directory is in that place, such as the mount point of an unmounted file system.
const managedMark = ".nvmf-target"

// makeManaged creates the managed directory if it is missing, and marks it if it has objects.
func (s *Server) makeManaged(c *config.Config) error {
	if c.Managed == "" {
		return nil
	}
	if err := s.managedLost(c); err != nil {
		return err
	}
	err := os.Mkdir(c.Managed, 0o700)
	if err == nil {
		err = state.SyncDir(filepath.Dir(c.Managed))
	}
	if err == nil || errors.Is(err, fs.ErrExist) {
		s.markManaged(c.Managed)
		return nil
	}
	return c.Problem("managed", err.Error(), "Make the directories above it, or name another one.")
}

// markManaged marks a managed directory that has objects, and no other.
func (s *Server) markManaged(dir string) {
	if err := s.setMark(dir); err != nil {
		s.log.Warn("cannot remember whether the managed directory has objects: it would not be "+
			"noticed if it were missing", "path", dir, "err", err)
	}
}

func (s *Server) setMark(dir string) error {
	list, err := os.ReadDir(dir)
	has := slices.ContainsFunc(list,
		func(e fs.DirEntry) bool { return e.IsDir() && !strings.HasPrefix(e.Name(), ".") })
	mark, marked := filepath.Join(dir, managedMark), s.state.Managed() == dir
	switch {
	case err != nil || has == marked:
	case has:
		if err = state.WriteFile(mark, nil); err == nil {
			err = state.SyncDir(dir)
		}
		if err == nil {
			err = s.state.SetManaged(dir)
		}
	default:
		if err = s.state.SetManaged(""); err == nil {
			err = os.Remove(mark)
		}
	}
	return err
}

// managedLost returns an error if the managed directory had objects and is missing. Without the
// error the objects would be removed, together with the promises to hosts about them.
func (s *Server) managedLost(c *config.Config) error {
	if c.Managed == "" || s.state.Managed() != c.Managed {
		return nil
	}
	mark := filepath.Join(c.Managed, managedMark)
	if _, err := os.Lstat(mark); !errors.Is(err, fs.ErrNotExist) {
		return nil // other errors are about the directory
	}
	return c.Problem("managed", fmt.Sprintf("the directory %q, with the objects that requests "+
		"have created, is missing or has been replaced", c.Managed),
		fmt.Sprintf("Mount or restore it. To go on with what is there, make the directory and an "+
			"empty file %q in it: objects that are missing then are removed, with what hosts "+
			"were promised of them.", managedMark))
}

// prepareEdit writes the files that can be written before the edit is known to be possible.
// Leftovers after a crash begin with a dot, and are replaced by the next edit.
func (s *Server) prepareEdit(directory string, edit *config.Edit) (*edited, error) {
	dir := filepath.Dir(edit.Path)
	if edit.Content == nil {
		e := &edited{s: s, from: edit.Path, to: filepath.Join(directory, ".deleted"), dir: dir}
		if e.leftover = e.to; dir != filepath.Clean(directory) {
			e.parent = dir
		}
		return e, os.RemoveAll(e.leftover)
	}
	err := s.onFileStep("mkdir", func() error { return os.Mkdir(dir, 0o700) })
	switch {
	case errors.Is(err, fs.ErrExist):
	case err != nil:
		return nil, err
	default:
		if err := state.SyncDir(directory); err != nil {
			return nil, err
		}
	}
	e := &edited{s: s, from: filepath.Join(dir, ".new"), to: edit.Path, dir: dir, parent: dir}
	e.leftover = e.from
	return e, s.onFileStep("write", func() error {
		return state.WriteFile(e.from, edit.Content)
	})
}

func (e *edited) rename() error {
	return e.s.onFileStep("rename", func() error { return os.Rename(e.from, e.to) })
}

func (e *edited) sync() error {
	return e.s.onFileStep("sync", func() error { return state.SyncDir(e.dir) })
}

// discard deletes leftovers, in any case.
func (e *edited) discard() {
	_ = e.s.onFileStep("discard", func() error {
		_ = os.RemoveAll(e.leftover)
		if e.parent != "" {
			_ = os.Remove(e.parent) // fails if it is not empty
		}
		return nil
	})
}
