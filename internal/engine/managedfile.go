package engine

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
	e *Engine
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
func (e *Engine) makeManaged(c *config.Config) error {
	if c.Managed == "" {
		return nil
	}
	if err := e.managedLost(c); err != nil {
		return err
	}
	err := os.Mkdir(c.Managed, 0o700)
	if err == nil {
		err = state.SyncDir(filepath.Dir(c.Managed))
	}
	if err == nil || errors.Is(err, fs.ErrExist) {
		e.markManaged(c.Managed)
		return nil
	}
	return c.Problem("managed", err.Error(), "Make the directories above it, or name another one.")
}

// markManaged marks a managed directory that has objects, and no other.
func (e *Engine) markManaged(dir string) {
	if err := e.setMark(dir); err != nil {
		e.Log.Warn("cannot remember whether the managed directory has objects: it would not be "+
			"noticed if it were missing", "path", dir, "err", err)
	}
}

func (e *Engine) setMark(dir string) error {
	list, err := os.ReadDir(dir)
	has := slices.ContainsFunc(list,
		func(e fs.DirEntry) bool { return e.IsDir() && !strings.HasPrefix(e.Name(), ".") })
	mark, marked := filepath.Join(dir, managedMark), e.State.Managed() == dir
	switch {
	case err != nil || has == marked:
	case has:
		if err = state.WriteFile(mark, nil); err == nil {
			err = state.SyncDir(dir)
		}
		if err == nil {
			err = e.State.SetManaged(dir)
		}
	default:
		if err = e.State.SetManaged(""); err == nil {
			err = os.Remove(mark)
		}
	}
	return err
}

// managedLost returns an error if the managed directory had objects and is missing. Without the
// error the objects would be removed, together with the promises to hosts about them.
func (e *Engine) managedLost(c *config.Config) error {
	if c.Managed == "" || e.State.Managed() != c.Managed {
		return nil
	}
	mark := filepath.Join(c.Managed, managedMark)
	if _, err := os.Lstat(mark); !errors.Is(err, fs.ErrNotExist) {
		return nil // other errors are about the directory
	}
	return c.Problem("managed", fmt.Sprintf("the directory %q, with the objects that requests "+
		"have created, is missing or has been replaced", c.Managed),
		fmt.Sprintf("Mount or restore it. To go on with what is there, make the directory and an "+
			"empty file %q in it: objects that are missing then are removed, with the "+
			"promises to their hosts.", managedMark))
}

// prepareEdit writes the files that can be written before the edit is known to be possible.
// Leftovers after a crash begin with a dot, and are replaced by the next edit.
func (e *Engine) prepareEdit(directory string, edit *config.Edit) (*edited, error) {
	dir := filepath.Dir(edit.Path)
	if edit.Content == nil {
		m := &edited{e: e, from: edit.Path, to: filepath.Join(directory, ".deleted"), dir: dir}
		if m.leftover = m.to; dir != filepath.Clean(directory) {
			m.parent = dir
		}
		return m, os.RemoveAll(m.leftover)
	}
	err := e.OnFileStep("mkdir", func() error { return os.Mkdir(dir, 0o700) })
	switch {
	case errors.Is(err, fs.ErrExist):
	case err != nil:
		return nil, err
	default:
		if err := state.SyncDir(directory); err != nil {
			return nil, err
		}
	}
	m := &edited{e: e, from: filepath.Join(dir, ".new"), to: edit.Path, dir: dir, parent: dir}
	m.leftover = m.from
	return m, e.OnFileStep("write", func() error {
		return state.WriteFile(m.from, edit.Content)
	})
}

// discard deletes leftovers, in any case.
func (m *edited) discard() {
	_ = m.e.OnFileStep("discard", func() error {
		_ = os.RemoveAll(m.leftover)
		if m.parent != "" {
			_ = os.Remove(m.parent) // fails if it is not empty
		}
		return nil
	})
}
