package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/state"
)

// This file has the requests that create and delete objects. Each object has a file of its own in
// the managed directory, see ADR 0024.

// put creates or changes an object.
func (s *Server) put(by []any, m config.Managed, body []byte) ([]config.Change, error) {
	s.applying.Lock()
	defer s.applying.Unlock()
	return s.putLocked(by, m, body)
}

// create creates or changes the namespace of a subsystem that has the uuid in body. A new one gets
// the lowest NSID that is free.
func (s *Server) create(by []any, nqn string, body []byte) (control.NamespaceID, error) {
	id := control.NamespaceID{Subsystem: nqn}
	var given struct{ UUID uuid.UUID }
	if err := json.Unmarshal(body, &given); err != nil || given.UUID == uuid.Nil {
		p := control.NewProblem(http.StatusUnprocessableEntity, "uuid: is missing, or no UUID",
			"The request can be repeated because of it. Write the output of uuidgen.")
		p.Place = "request"
		return id, p
	}
	s.applying.Lock()
	defer s.applying.Unlock()
	used := map[uint32]bool{}
	for _, n := range all(s.current()) {
		if n.nqn != nqn {
			continue
		}
		if used[n.NSID] = true; n.UUID == given.UUID {
			id.NSID = n.NSID
		}
	}
	if id.NSID == 0 {
		for id.NSID = 1; used[id.NSID]; id.NSID++ {
		}
	}
	_, err := s.putLocked(by, config.Managed{NQN: nqn, NSID: id.NSID}, body)
	return id, err
}

func (s *Server) putLocked(by []any, m config.Managed, body []byte) ([]config.Change, error) {
	content, err := m.Content(body)
	if err != nil {
		return nil, err
	}
	return s.manage(by, m, func(c *config.Config, _ bool) (*config.Edit, error) {
		parent := config.Managed{NQN: m.NQN}
		if m != parent && configured(c, parent) == "" {
			return nil, control.NewProblem(http.StatusNotFound,
				fmt.Sprintf("there is no subsystem %q", m.NQN), "Create it first.")
		}
		return &config.Edit{Path: m.File(c.Managed), Content: content}, nil
	})
}

// remove deletes an object; that it does not exist is no error. A subsystem in which others have
// been created is deleted together with these if recursive is set, and not otherwise.
func (s *Server) remove(by []any, m config.Managed, recursive bool) ([]config.Change, error) {
	s.applying.Lock()
	defer s.applying.Unlock()
	return s.manage(by, m, func(c *config.Config, exists bool) (*config.Edit, error) {
		edit := &config.Edit{Path: m.File(c.Managed)}
		if !exists {
			err := state.SyncDir(c.Managed) // a request before this one may have failed to do so
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			return nil, err
		}
		if (m != config.Managed{NQN: m.NQN}) {
			return edit, nil
		}
		if recursive {
			edit.Path = m.Dir(c.Managed)
			return edit, nil
		}
		files, err := os.ReadDir(m.Dir(c.Managed))
		inside := slices.DeleteFunc(files, func(f fs.DirEntry) bool {
			return f.Name() == filepath.Base(edit.Path) || strings.HasPrefix(f.Name(), ".")
		})
		if len(inside) > 0 {
			err = control.NewProblem(http.StatusConflict, fmt.Sprintf(
				"%d namespaces and hosts have been created in this subsystem", len(inside)),
				"Delete them first, or all of them together with it by ?recursive=true.")
		}
		return edit, err
	})
}

// manage makes the change of an object that decide returns; nil: there is nothing to do. The caller
// holds s.applying.
func (s *Server) manage(by []any, m config.Managed,
	decide func(c *config.Config, exists bool) (*config.Edit, error),
) ([]config.Change, error) {
	c := s.current()
	if c.Managed == "" {
		return nil, control.NewProblem(http.StatusConflict,
			"the configuration has no directory for what requests create",
			"Set managed in the file, and reload.")
	}
	_, err := os.Lstat(m.File(c.Managed))
	exists := err == nil
	if path := configured(c, m); path != "" && !exists {
		p := control.NewProblem(http.StatusConflict,
			"this object is in the configuration file, which requests do not change",
			"Change the file, and reload.")
		p.Place = c.Problem(path, "", "").Place
		// A subsystem may be left that consists of what was created in it.
		inside := strings.HasPrefix(strings.Trim(p.Place, `"`), m.Dir(c.Managed)+"/")
		if (m != config.Managed{NQN: m.NQN}) || !inside {
			return nil, p
		}
		exists = true
	}
	edit, err := decide(c, exists)
	if err != nil || edit == nil {
		return nil, err
	}
	changes, err := s.applyEdit(c, m, edit)
	if err != nil {
		return nil, err
	}
	s.logChanges(changes, by)
	return changes, nil
}

// configured returns the key of an object in a configuration, "" if that does not have it.
func configured(c *config.Config, m config.Managed) string {
	key := keyOf(c, m.Object())
	if m.Host == "" || key == "" {
		return key
	}
	for _, s := range c.Subsystems {
		if i := slices.Index(s.Hosts, m.Host); s.NQN == m.NQN && i >= 0 {
			return fmt.Sprintf("%s.hosts[%d]", key, i)
		}
	}
	return ""
}

// applyEdit applies the configuration as it is after the edit, and then makes the edit. Whenever
// the program ends, the directory is as it was before or as it is afterwards. The caller holds
// s.applying.
func (s *Server) applyEdit(c *config.Config, m config.Managed, edit *config.Edit,
) ([]config.Change, error) {
	inPlace, err := s.prepareEdit(c.Managed, edit)
	if err != nil {
		return nil, fmt.Errorf("the file of the object cannot be written: %w", err)
	}
	defer func() {
		inPlace.discard()
		s.markManaged(c.Managed)
	}()
	next, err := s.opts.Load(*edit, c.Printed(), config.Within(s.ending))
	if err != nil {
		return nil, ofRequest(edit, err)
	}
	if err := s.permitted(c, next, m); err != nil {
		return nil, err
	}
	if edit.Content != nil && configured(next, m) == "" {
		return nil, control.NewProblem(http.StatusConflict,
			"an environment variable replaces all subsystems of the files",
			"Unset "+config.EnvPrefix+"SUBSYSTEMS of the target, and start it again.")
	}
	changes, err := s.apply(next)
	if err != nil {
		return nil, ofRequest(edit, err)
	}
	if err := inPlace.rename(); err != nil {
		_, undo := s.apply(c)
		return nil, errors.Join(fmt.Errorf("the file of the object cannot be written: %w", err),
			undo)
	}
	if err := inPlace.sync(); err != nil {
		return nil, fmt.Errorf("the change was made, but a crash may undo it: %w. "+
			"Repeat the request", err)
	}
	return changes, nil
}

// ofRequest is what a client gets of an error: the problems, with those in what it has sent marked
// as such.
func ofRequest(edit *config.Edit, err error) error {
	list := edit.OfRequest(problemsOf(err))
	err = controlProblem(list)
	if p, ok := errors.AsType[*control.Problem](err); ok &&
		!slices.ContainsFunc(list, func(p config.Problem) bool { return p.OfRequest() }) {
		p.Status, p.Title = http.StatusConflict, http.StatusText(http.StatusConflict)
	}
	return err
}

// permitted says why a request may not apply the next configuration.
func (s *Server) permitted(c, next *config.Config, m config.Managed) error {
	changed := func(what string) error {
		return control.NewProblem(http.StatusConflict,
			"the configuration file has changed since it was applied ("+what+")",
			"Reload first: a request applies nothing but itself.")
	}
	if next.Managed != c.Managed {
		return changed(c.Managed + " -> " + next.Managed)
	}
	for _, change := range config.Diff(s.settings, next.Settings()) {
		if !m.Touches(change) {
			return changed(change.String())
		}
	}
	n := find(next, m.Object())
	if n == nil || n.path() == "" {
		return nil
	}
	if old := find(c, m.Object()); old != nil && old.path() == n.path() {
		return nil
	}
	what := ""
	switch {
	case !leadsTo(n.path(), c.ManagedPaths):
		what = " is outside of managed_paths"
	case leadsTo(n.path(), []string{c.Managed}): // hosts would write the configuration
		what = " is in the managed directory"
	}
	if what != "" {
		p := control.NewProblem(http.StatusForbidden, n.path()+what,
			"Use a path below one of those in the configuration file, or add it there.")
		p.Place = "request"
		return p
	}
	return nil
}

// leadsTo reports whether a path leads to one of some files, or into one of some directories. What
// .. means depends on links, so paths with it do not.
func leadsTo(path string, list []string) bool {
	end, err := follow(path)
	if err != nil || path != filepath.Clean(path) {
		return false
	}
	return slices.ContainsFunc(list, func(top string) bool {
		if !below(path, top) {
			return false
		}
		if real, err := follow(top); err == nil && below(end, real) {
			return true
		}
		info, err := os.Stat(end) // of udev's links in /dev
		return below(top, "/dev") && below(end, "/dev") && err == nil &&
			info.Mode()&fs.ModeDevice != 0
	})
}

// follow follows symbolic links, as far as the path exists.
func follow(path string) (string, error) {
	end, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return end, err
	}
	if _, exists := os.Lstat(path); exists == nil {
		return "", err // a link that leads nowhere yet
	}
	parent, err := follow(filepath.Dir(path))
	return filepath.Join(parent, filepath.Base(path)), err
}

func below(path, top string) bool {
	top = filepath.Clean(top)
	return path == top || strings.HasPrefix(path, strings.TrimSuffix(top, "/")+"/")
}
