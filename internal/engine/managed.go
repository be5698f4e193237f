package engine

import (
	"context"
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
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
)

// This file creates and deletes objects, each in its own file of the managed directory (ADR 0024).

// request is a change of an object requested by a client.
type request struct {
	by []any // as keys and values of log lines
	config.Managed
	// dry: the change is only planned, with the affected hosts.
	dry bool
	// connections is the result of connected if dry is set.
	connections []observed.Connection
}

// requested makes a request and returns with e.applying held, even after an error.
func (e *Engine) requested(ctx context.Context, o control.Object, dry bool) (request, error) {
	r := request{by: control.By(ctx), dry: dry}
	if dry {
		r.connections = e.connected()
	}
	e.applying.Lock()
	var err error
	r.Managed, err = config.Managed(o).Canonical()
	return r, err
}

// Put creates or changes an object, or only plans that.
func (e *Engine) Put(ctx context.Context, o control.Object, body []byte, dry bool) (control.Plan,
	error,
) {
	r, err := e.requested(ctx, o, dry)
	defer e.applying.Unlock()
	if err != nil {
		return plan(nil, nil, err)
	}
	return e.putLocked(r, body)
}

// Create makes or changes the namespace with the uuid in body; a new one gets the lowest free NSID.
func (e *Engine) Create(ctx context.Context, nqn string, body []byte) (control.NamespaceID,
	error,
) {
	id, given := control.NamespaceID{Subsystem: nqn}, UUIDOf(body)
	if given == uuid.Nil {
		return id, control.NewProblem(http.StatusUnprocessableEntity,
			"uuid: is missing, or no UUID",
			"The request can be repeated because of it. Write the output of uuidgen.").At("request")
	}
	e.applying.Lock()
	defer e.applying.Unlock()
	used := map[uint32]bool{}
	for _, n := range volumes.All(e.Current()) {
		if n.NQN != nqn {
			continue
		}
		if used[n.NSID] = true; n.UUID == given {
			id.NSID = n.NSID
		}
	}
	if id.NSID == 0 {
		for id.NSID = 1; used[id.NSID]; id.NSID++ {
		}
	}
	_, err := e.putLocked(request{
		by: control.By(ctx), Managed: config.Managed{Subsystem: nqn, NSID: id.NSID},
	}, body)
	return id, err
}

// UUIDOf returns the uuid in the description of a namespace, zero if it is missing or none.
func UUIDOf(body []byte) uuid.UUID {
	var given struct{ UUID uuid.UUID }
	if json.Unmarshal(body, &given) != nil {
		return uuid.Nil
	}
	return given.UUID
}

func (e *Engine) putLocked(r request, body []byte) (control.Plan, error) {
	return e.manage(r, func(c *config.Config, exists bool) (*config.Edit, error) {
		edit := &config.Edit{Path: r.File(c.Managed)}
		before, err := os.ReadFile(edit.Path)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		parent := config.Managed{Subsystem: r.Subsystem}
		switch {
		case err != nil:
			return nil, err
		case !exists && isShared(c, configured(c, parent)):
			return nil, control.NewProblem(http.StatusConflict,
				"the subsystem is shared by gateways", sharedHint)
		case r.Subsystem != "" && configured(c, parent) == "":
			if r.Managed != parent {
				return nil, control.NewProblem(http.StatusNotFound,
					fmt.Sprintf("there is no subsystem %q", r.Subsystem), "Create it first.")
			}
		case r.Key != "" && !exists:
			return nil, control.NewProblem(http.StatusNotFound,
				fmt.Sprintf("there is no host %q", r.Host), "Create it first.")
		}
		edit.Content, err = r.Content(body, before)
		return edit, err
	})
}

// Delete deletes an object, or only plans that. A missing one is not an error. A subsystem with
// other created objects needs recursive, and goes together with them.
func (e *Engine) Delete(ctx context.Context, o control.Object, recursive, dry bool) (control.Plan,
	error,
) {
	r, err := e.requested(ctx, o, dry)
	defer e.applying.Unlock()
	if err != nil {
		return plan(nil, nil, err)
	}
	return e.manage(r, func(c *config.Config, exists bool) (*config.Edit, error) {
		m, edit := r.Managed, &config.Edit{Path: r.File(c.Managed)}
		if !exists {
			err := state.SyncDir(c.Managed) // an earlier request may have failed to do so
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			return nil, err
		}
		if m.Key != "" {
			file, err := os.ReadFile(edit.Path)
			if err == nil {
				edit.Content, err = m.WithoutKey(file)
			}
			return edit, err
		}
		if (m != config.Managed{Subsystem: m.Subsystem}) {
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

// ApplyGroup applies the configuration of the group, see config.Group.File, or only plans that.
func (e *Engine) ApplyGroup(content []byte, dry bool, by ...any) (control.Plan, error) {
	r := request{by: by, dry: dry, Managed: config.GroupFile}
	if dry {
		r.connections = e.connected()
	}
	e.applying.Lock()
	defer e.applying.Unlock()
	return e.manage(r, func(c *config.Config, _ bool) (*config.Edit, error) {
		return &config.Edit{Path: r.File(c.Managed), Content: content}, nil
	})
}

// manage makes the change that decide returns; nil means none. The caller holds e.applying.
func (e *Engine) manage(r request,
	decide func(c *config.Config, exists bool) (*config.Edit, error),
) (control.Plan, error) {
	changes, affected, err := e.edit(r, decide)
	if err == nil && !r.dry {
		e.logChanges(changes, r.by)
	}
	return plan(changes, affected, err)
}

// edit is manage without the log.
func (e *Engine) edit(r request,
	decide func(c *config.Config, exists bool) (*config.Edit, error),
) ([]config.Change, [][]control.Affected, error) {
	c, m := e.Current(), r.Managed
	if c.Managed == "" {
		return nil, nil, control.NewProblem(http.StatusConflict,
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
		switch {
		case strings.HasPrefix(strings.Trim(p.Place, `"`), m.Dir(c.Managed)+"/"):
			p.Detail, p.Hint = "this object was created with another name",
				"Use that: GET /v1/objects lists them."
			// A subsystem may consist of the objects created in it.
			exists = m == config.Managed{Subsystem: m.Subsystem}
		case isShared(c, path):
			p.Detail, p.Hint = "this object is shared by gateways", sharedHint
		}
		if !exists {
			return nil, nil, p
		}
	}
	edit, err := decide(c, exists)
	if err != nil || edit == nil {
		return nil, nil, err
	}
	return e.applyEdit(c, r, edit)
}

// sharedHint is the hint for changes of shared objects.
const sharedHint = "Change it with \"nvmf-target apply FILE --group\"."

// Shared reports whether gateways share an object, or the subsystem that it is in or would be in.
// known: this target has it.
func (e *Engine) Shared(o control.Object) (shared, known bool) {
	c, m := e.Current(), config.Managed(o)
	if m.Subsystem != "" {
		m = config.Managed{Subsystem: m.Subsystem}
	}
	path := configured(c, m)
	return isShared(c, path), path != ""
}

// isShared reports whether gateways share the value of a key.
func isShared(c *config.Config, path string) bool {
	at := c.Problem(path, "", "")
	return at.In(&config.Edit{Path: config.GroupFile.File(c.Managed)})
}

// configured returns the key of an object in a configuration, "" if it is missing.
func configured(c *config.Config, m config.Managed) string {
	key := keyOf(c, m.Object(c))
	if m.Host == "" || m.Subsystem == "" || key == "" {
		return key
	}
	for _, s := range c.Subsystems {
		if i := slices.Index(s.Hosts, m.Host); s.NQN == m.Subsystem && i >= 0 {
			return fmt.Sprintf("%s.hosts[%d]", key, i)
		}
	}
	return ""
}

// applyEdit applies the configuration as it is after the edit, and then makes the edit. Whenever
// the program ends, the directory is as before or after the edit. The caller holds e.applying.
func (e *Engine) applyEdit(c *config.Config, r request, edit *config.Edit,
) ([]config.Change, [][]control.Affected, error) {
	if r.dry {
		next, err := e.loadEdit(c, r.Managed, edit)
		if err != nil {
			return nil, nil, err
		}
		changes, ps := e.plan(next)
		if ps.Failed() {
			return nil, nil, ofRequest(edit, ps)
		}
		return changes, e.affected(next, changes, r.connections), nil
	}
	changes, err := e.makeEdit(c, r.Managed, edit)
	return changes, nil, err
}

// loadEdit loads the configuration as it is after the edit, if the request may make it.
func (e *Engine) loadEdit(c *config.Config, m config.Managed, edit *config.Edit,
) (*config.Config, error) {
	next, err := e.Load(*edit, c.Printed(), lang.Within(e.Ending))
	if err != nil {
		return nil, ofRequest(edit, err)
	}
	if err := e.permitted(c, next, m); err != nil {
		return nil, err
	}
	if edit.Content != nil && m != config.GroupFile && configured(next, m) == "" {
		return nil, control.NewProblem(http.StatusConflict,
			"an environment variable replaces a list of the files, so this would have no effect",
			"Unset "+config.EnvPrefix+m.Variable()+" of the target, and start it again.")
	}
	return next, nil
}

func (e *Engine) makeEdit(c *config.Config, m config.Managed, edit *config.Edit,
) ([]config.Change, error) {
	inPlace, err := e.prepareEdit(c.Managed, edit)
	if err != nil {
		return nil, fmt.Errorf("the file of the object cannot be written: %w", err)
	}
	defer func() {
		inPlace.discard()
		e.markManaged(c.Managed)
	}()
	next, err := e.loadEdit(c, m, edit)
	if err != nil {
		return nil, err
	}
	changes, err := e.apply(next)
	if err != nil {
		return nil, ofRequest(edit, err)
	}
	if err := e.OnFileStep("rename", func() error {
		return os.Rename(inPlace.from, inPlace.to)
	}); err != nil {
		_, undo := e.apply(c)
		return nil, errors.Join(fmt.Errorf("the file of the object cannot be written: %w", err),
			undo)
	}
	if err := e.OnFileStep("sync", func() error { return state.SyncDir(inPlace.dir) }); err != nil {
		return nil, fmt.Errorf("the change was made, but a crash may undo it: %w. "+
			"Repeat the request", err)
	}
	return changes, nil
}

// ofRequest returns the error for a client, in which problems of its request are marked.
func ofRequest(edit *config.Edit, err error) error {
	list := config.OfRequest(edit, problemsOf(err))
	err = ForClients(list)
	if p, ok := errors.AsType[*control.Problem](err); ok &&
		!slices.ContainsFunc(list, func(p config.Problem) bool { return p.OfRequest() }) {
		p.Status, p.Title = http.StatusConflict, http.StatusText(http.StatusConflict)
	}
	return err
}

// permitted returns an error if a request may not apply the next configuration.
func (e *Engine) permitted(c, next *config.Config, m config.Managed) error {
	changed := func(what string) error {
		return control.NewProblem(http.StatusConflict,
			"the configuration file has changed since it was applied ("+what+")",
			"Reload first: a request applies nothing but itself.")
	}
	if next.Managed != c.Managed {
		return changed(c.Managed + " -> " + next.Managed)
	}
	for _, change := range config.Diff(e.settings, next.Settings()) {
		of := next
		if change.Op == config.Remove {
			of = c
		}
		inside := m == config.GroupFile && isShared(of, keyOf(of, change.Object))
		if !inside && !m.Touches(change, c, next) {
			return changed(change.String())
		}
	}
	n := volumes.Find(next, m.Object(next))
	if n != nil && n.Image() != "" { // managed_paths has no images
		return control.NewProblem(http.StatusForbidden, "the request exports image "+n.Image(),
			"Only the configuration file can export images: add the namespace there.").At("request")
	}
	if old := volumes.Find(c, m.Object(c)); n == nil || n.Path() == "" ||
		old != nil && old.Path() == n.Path() {
		return nil
	}
	what := ""
	switch {
	case !leadsTo(n.Path(), c.ManagedPaths):
		what = " is outside of managed_paths"
	case leadsTo(n.Path(), []string{c.Managed}): // hosts would write the configuration
		what = " is in the managed directory"
	}
	if what != "" {
		return control.NewProblem(http.StatusForbidden, n.Path()+what,
			"Use a path below one of those in the configuration file, or add it there.").
			At("request")
	}
	return nil
}

// leadsTo reports whether a path leads to one of some files, or into one of some directories. The
// meaning of .. depends on links, so paths with it do not.
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
		info, err := os.Stat(end) // of links of udev in /dev
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
