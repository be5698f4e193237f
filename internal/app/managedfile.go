package app

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/state"
)

// edited is an edit of a managed directory before it is made.
type edited struct {
	s *Server
	// from is renamed to to, and then dir is made durable.
	from, to, dir string
	// leftover is deleted if nothing is renamed, or after it.
	leftover string
	parent   string // deleted if it is empty; "": none
}

// makeManaged makes the managed directory if it is missing.
func makeManaged(c *config.Config) error {
	if c.Managed == "" {
		return nil
	}
	err := os.Mkdir(c.Managed, 0o700)
	if err == nil {
		err = state.SyncDir(filepath.Dir(c.Managed))
	}
	if err == nil || errors.Is(err, fs.ErrExist) {
		return nil
	}
	return c.Problem("managed", err.Error(), "Make the directories above it, or name another one.")
}

// prepareEdit writes what can be written before the edit is known to be possible. What a crash
// leaves of it begins with a dot, and is replaced by the next edit.
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

// discard deletes what is not needed, in any case.
func (e *edited) discard() {
	_ = e.s.onFileStep("discard", func() error {
		_ = os.RemoveAll(e.leftover)
		if e.parent != "" {
			_ = os.Remove(e.parent) // which fails if it is not empty
		}
		return nil
	})
}
