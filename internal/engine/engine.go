// Package engine makes a running target match a configuration, and changes the configuration for
// clients: whole files, and the objects that clients have created.
package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/listeners"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
)

// Config has the surroundings of an Engine.
type Config struct {
	// Config is for the storage of namespaces. New sets its Disks, Current and Await.
	volumes.Config
	Listeners *listeners.Listeners
	// AtStart has the values of the keys that need a restart.
	AtStart *config.Config
	// Load reads the configuration again.
	Load func(...config.Option) (*config.Config, error)
	// Settings has the setters of the keys outside lists that need no restart.
	Settings Setters
	// Reloading is called by each reload before the configuration is applied, with nil if it cannot
	// be loaded. An error ends the reload.
	Reloading func(*config.Config) error
	// Network and Verbs are asked whether there can be new listeners.
	Network listeners.Network
	Verbs   verbs.Provider
}

// Setter makes the target follow keys. It is called once for all of its changed keys.
type Setter struct{ Set func(*config.Config) error }

// Setters has setters by key or by section. The setter of a section is for its other keys.
type Setters map[string]*Setter

// Of returns the setter of a key, nil if it has none.
func (all Setters) Of(key string) *Setter {
	if setter := all[key]; setter != nil {
		return setter
	}
	section, _, _ := strings.Cut(key, ".")
	return all[section]
}

// Engine applies configurations to a target. Any goroutine may call it; changes wait for others.
type Engine struct {
	Config
	Volumes *volumes.Volumes
	// ReleaseLimit bounds the last commands of storage that changes its owner. Tests change it.
	ReleaseLimit time.Duration
	// OnFileStep makes the steps of edits of the managed directory. Tests change it.
	OnFileStep state.Step

	tlsKeys sync.Map                      // *config.Authentication by the NQN of the host
	config  atomic.Pointer[config.Config] // the last applied one; nil before

	applying sync.Mutex // guards the fields below
	settings config.Settings
	stopped  error // of later changes
}

// ErrStopped is the error of changes after Stop. ErrReplaced is the error of changes that the
// process that replaces this one would not know of.
var (
	ErrStopped  = errors.New("the target is stopping")
	ErrReplaced = errors.New("a new process replaces this one: repeat the request to that")
)

// errNoFile is the error of an Engine that cannot load its configuration.
var errNoFile = errors.New("the target was not started from a file")

// New returns an Engine of a target without listeners and subsystems.
func New(c Config) *Engine {
	if c.Load == nil {
		c.Load = func(...config.Option) (*config.Config, error) { return nil, errNoFile }
	}
	e := &Engine{Config: c, ReleaseLimit: 30 * time.Second, OnFileStep: state.Direct}
	storage := c.Config
	storage.Disks, storage.Current, storage.Await = c.AtStart.Disks, e.Current, e.await
	e.Volumes = volumes.New(storage)
	return e
}

// Current returns the last applied configuration, or the first one before it is applied.
func (e *Engine) Current() *config.Config {
	if c := e.config.Load(); c != nil {
		return c
	}
	return e.AtStart
}

// Started reports whether a configuration has been applied.
func (e *Engine) Started() bool { return e.config.Load() != nil }

// Hold keeps others from changing the configuration until release is called.
func (e *Engine) Hold() (release func()) {
	e.applying.Lock()
	return e.applying.Unlock
}

// TryHold is Hold, unless the configuration is being changed.
func (e *Engine) TryHold() (release func(), ok bool) {
	return e.applying.Unlock, e.applying.TryLock()
}

// Stop ends changes: later ones fail with ErrStopped. It waits for the change in progress.
func (e *Engine) Stop() {
	defer e.Hold()()
	if e.stopped == nil {
		e.stopped = ErrStopped
	}
}

// Replaced is called by the caller of Hold: later changes fail with ErrReplaced.
func (e *Engine) Replaced() { e.stopped = ErrReplaced }

// Apply changes the running target to match c, and returns the changes. Everything unchanged goes
// on. Keys that need a restart keep their values until then. After an error everything is as
// before, unless the error says otherwise.
func (e *Engine) Apply(c *config.Config) ([]config.Change, error) {
	e.applying.Lock()
	defer e.applying.Unlock()
	return e.apply(c)
}

// apply is Apply for a caller that holds e.applying.
func (e *Engine) apply(c *config.Config) ([]config.Change, error) {
	if e.stopped != nil {
		return nil, e.stopped
	}
	wanted := c.Settings()
	changes := config.Diff(e.settings, wanted)
	tr := &transition{e: e, next: c, changes: changes, volumes: e.Volumes.Begin(c)}
	tr.moveStorage()
	if err := tr.run(); err != nil {
		return nil, err
	}
	e.settings = config.Merge(e.settings, wanted)
	e.config.Store(c)
	return changes, nil
}

// lockAndLoad loads the configuration again, and returns with e.applying held, even after an error.
// Programs for keys run before that, so that nothing waits for them. The file is read again under
// the lock, so that a caller that waited for another change sees its result.
func (e *Engine) lockAndLoad() (*config.Config, error) {
	before := e.config.Load()
	c, err := e.Load(lang.Within(e.Ending))
	e.applying.Lock()
	switch {
	case err == nil:
		return e.Load(lang.Within(e.Ending), c.Printed())
	case e.config.Load() != before: // the first reading may be outdated
		return e.Load(lang.Within(e.Ending))
	}
	return nil, err
}

// Reload loads and applies the configuration, see Apply. by is the sender for log lines.
func (e *Engine) Reload(by ...any) ([]config.Change, error) {
	changes, _, err := e.reload(nil, by...)
	return changes, err
}

// ReloadFor is Reload for a client.
func (e *Engine) ReloadFor(ctx context.Context) (control.Plan, error) {
	changes, affected, err := e.reload(e.connected(), control.By(ctx)...)
	return plan(changes, affected, err)
}

// reload is Reload, and returns the hosts affected by each change, given the earlier connections.
func (e *Engine) reload(connections []observed.Connection, by ...any) ([]config.Change,
	[][]control.Affected, error,
) {
	c, err := e.lockAndLoad()
	defer e.applying.Unlock()
	if errors.Is(e.stopped, ErrReplaced) { // which may have ended programs for keys
		err = e.stopped
	}
	if err != nil {
		c = nil
	}
	var affected [][]control.Affected
	if err == nil {
		affected = e.affected(c, config.Diff(e.settings, c.Settings()), connections)
	}
	var changes []config.Change
	if failed := e.Reloading(c); err == nil {
		err = failed
	}
	if err == nil {
		changes, err = e.apply(c)
	}
	if err != nil {
		event.ConfigurationNotChanged.Report(e.Log, append(by, "err", err)...)
		return nil, nil, err
	}
	e.logChanges(changes, by)
	event.ConfigurationApplied.Report(e.Log, append(by, "changes", len(changes))...)
	return changes, affected, nil
}

// logChanges logs changes that were made.
func (e *Engine) logChanges(changes []config.Change, by []any) {
	for _, c := range changes {
		kind := event.ConfigurationChanged
		if c.ChangesSecret() {
			kind = event.KeyChanged
		}
		kind.About(c.String()).Report(e.Log, by...)
	}
}

// Plan returns the changes that Apply would make, and problems with them on this machine.
func (e *Engine) Plan(c *config.Config) ([]config.Change, config.Problems) {
	e.applying.Lock()
	defer e.applying.Unlock()
	return e.plan(c)
}

// plan is Plan for a caller that holds e.applying.
func (e *Engine) plan(c *config.Config) ([]config.Change, config.Problems) {
	changes := config.Diff(e.settings, c.Settings())
	tr := &transition{e: e, next: c, changes: changes}
	return changes, tr.check()
}

// Drain takes ports out of service, or ends that; see listeners.Drain.
func (e *Engine) Drain(which control.ListenerID, drain bool) ([]observed.Listener, error) {
	e.applying.Lock()
	defer e.applying.Unlock()
	if e.stopped != nil {
		return nil, e.stopped
	}
	return e.Listeners.Drain(which, drain)
}

// await waits for storage to be released, but not forever.
func (e *Engine) await(released <-chan struct{}) error {
	select {
	case <-released:
		return nil
	case <-e.Ending.Done():
		return ErrStopped
	case <-time.After(e.ReleaseLimit):
		return fmt.Errorf("it still works on commands after %v", e.ReleaseLimit)
	}
}
