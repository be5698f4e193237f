package app

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/listeners"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
)

// This file changes the running target to match a configuration, see ADR 0023.

// transition is the work of one Apply. Changes are made in the order of config.Diff. The functions
// that undo them are kept until all changes have succeeded.
type transition struct {
	s       *Server
	next    *config.Config
	changes []config.Change
	volumes *volumes.Change
	undo    []func() error
	commit  []func()
}

// releaseLimit bounds the time in which storage that changes its owner must finish its commands.
const releaseLimit = 30 * time.Second

var errStopped = errors.New("the target is stopping")

// Apply changes the running target to match c, and returns the changes. Everything unchanged goes
// on. Keys that need a restart keep their values until then. After an error everything is as
// before, unless the error says otherwise. Any goroutine may call it between Start and Stop; one
// call waits for another.
func (s *Server) Apply(c *config.Config) ([]config.Change, error) {
	s.applying.Lock()
	defer s.applying.Unlock()
	return s.apply(c)
}

// apply is Apply for a caller that holds s.applying.
func (s *Server) apply(c *config.Config) ([]config.Change, error) {
	if s.stopping {
		return nil, errStopped
	}
	wanted := c.Settings()
	changes := config.Diff(s.settings, wanted)
	tr := &transition{s: s, next: c, changes: changes, volumes: s.volumes.Begin(c)}
	tr.moveStorage()
	if err := tr.run(); err != nil {
		return nil, err
	}
	s.settings = config.Merge(s.settings, wanted)
	s.config.Store(c)
	return changes, nil
}

// errNoFile is the error of a server that cannot load its configuration.
var errNoFile = errors.New("the target was not started from a file")

// lockAndLoad loads the configuration again, and returns with s.applying held, even after an error.
// Programs that print keys run before the lock is taken, so that nothing else waits for them. The
// file is read again under the lock, so that a caller that has waited for another change sees the
// file as it is afterwards.
func (s *Server) lockAndLoad() (*config.Config, error) {
	before := s.config.Load()
	c, err := s.opts.Load(lang.Within(s.ending))
	s.applying.Lock()
	switch {
	case err == nil:
		return s.opts.Load(lang.Within(s.ending), c.Printed())
	case s.config.Load() != before: // the first reading may be outdated
		return s.opts.Load(lang.Within(s.ending))
	}
	return nil, err
}

// Reload loads the configuration again and applies it; see Apply. by identifies the sender, as keys
// and values of log lines.
func (s *Server) Reload(by ...any) ([]config.Change, error) {
	changes, _, err := s.reload(nil, by...)
	return changes, err
}

// reload is Reload, and also returns the hosts affected by each change, given the earlier
// connections.
func (s *Server) reload(connections []observed.Connection, by ...any) ([]config.Change,
	[][]control.Affected, error,
) {
	c, err := s.lockAndLoad()
	defer s.applying.Unlock()
	var affected [][]control.Affected
	if err == nil {
		affected = s.affected(c, config.Diff(s.settings, c.Settings()), connections)
	}
	s.audit.reopen()
	var changes []config.Change
	if err == nil {
		err = s.renewCertificates(c)
	}
	if err == nil {
		changes, err = s.apply(c)
	}
	if err != nil {
		s.log.Error("the configuration was not changed", append(by, "err", err)...)
		return nil, nil, err
	}
	s.logChanges(changes, by)
	s.log.Info("the configuration was applied", append(by, "changes", len(changes))...)
	return changes, affected, nil
}

// logChanges logs changes that were made.
func (s *Server) logChanges(changes []config.Change, by []any) {
	for _, c := range changes {
		what := "configuration: "
		if c.ChangesSecret() {
			what = "key changed: "
		}
		s.log.Info(what+c.String(), by...)
	}
}

// Plan returns the changes that Apply would make, and problems with them on this machine.
func (s *Server) Plan(c *config.Config) ([]config.Change, config.Problems) {
	s.applying.Lock()
	defer s.applying.Unlock()
	return s.plan(c)
}

// plan is Plan for a caller that holds s.applying.
func (s *Server) plan(c *config.Config) ([]config.Change, config.Problems) {
	changes := config.Diff(s.settings, c.Settings())
	tr := &transition{s: s, next: c, changes: changes}
	return changes, tr.check()
}

func (tr *transition) run() error {
	defer tr.s.target.Changing()()
	defer tr.s.listeners.Expect(nil)
	guardSecrets(tr.next)
	err := tr.prepare()
	for _, c := range tr.changes {
		if err != nil {
			break
		}
		if err = tr.change(c); err != nil {
			err = tr.problem(c, err)
		}
	}
	if err == nil {
		for _, fn := range tr.commit {
			fn()
		}
		tr.volumes.Commit()
		tr.s.target.EnforceKeys() // last, because the required keys may have changed as well
		tr.settle()
		return nil
	}
	errs := []error{err}
	tr.s.listeners.Expect(nil)
	if before := tr.s.config.Load(); before != nil { // at the start there is none
		tr.s.listeners.Expect(before.Listeners)
	}
	for _, fn := range slices.Backward(tr.undo) {
		errs = append(errs, fn())
	}
	return errors.Join(append(errs, tr.volumes.Abort())...)
}

// settle waits until no device receives commands of hosts that have lost access.
func (tr *transition) settle() {
	if err := tr.s.await(tr.s.target.Settled()); err != nil {
		tr.s.log.Warn("hosts that have lost access may still reach devices", "err", err)
	}
}

// done records how to undo a change of an object or a key.
func (tr *transition) done(what string, undo func() error) {
	tr.undo = append(tr.undo, func() error {
		if err := undo(); err != nil {
			return fmt.Errorf("the change of %s cannot be undone: %w", what, err)
		}
		return nil
	})
}

// problem returns err with the place of the failed change.
func (tr *transition) problem(c config.Change, err error) error {
	if _, ok := errors.AsType[config.Problems](err); ok {
		return err
	}
	if _, ok := errors.AsType[config.Problem](err); ok {
		return err
	}
	return &located{tr.next.Problem(keyOf(tr.next, c.Object), err.Error(), ""), err}
}

// located is an error with its place in the configuration.
type located struct {
	config.Problem
	err error
}

func (e *located) Unwrap() error { return e.err }

// As lets errors.As find the Problem.
func (e *located) As(target any) bool {
	p, ok := target.(*config.Problem)
	if ok {
		*p = e.Problem
	}
	return ok
}

// keyOf returns the key of an object in a configuration, "" if it is missing.
func keyOf(c *config.Config, o config.Object) string {
	list, i := "", -1
	switch o.Kind {
	case config.KindListener:
		list = "listeners"
		i = slices.IndexFunc(c.Listeners,
			func(l config.Listener) bool { return l.Name == o.Listener })
	case config.KindReferral:
		list = "discovery.referrals"
		i = slices.IndexFunc(c.Discovery.Referrals,
			func(r config.Referral) bool { return r.Name() == o.Referral })
	case config.KindHost:
		list = "hosts"
		i = slices.IndexFunc(c.Hosts, func(h config.Host) bool { return h.NQN == o.NQN })
	case config.KindSubsystem:
		list = "subsystems"
		i = slices.IndexFunc(c.Subsystems,
			func(s config.Subsystem) bool { return s.NQN == o.NQN })
	case config.KindNamespace:
		if n := volumes.Find(c, o); n != nil {
			return n.Key
		}
	}
	if i < 0 {
		return ""
	}
	return fmt.Sprintf("%s[%d]", list, i)
}

// change makes one change.
func (tr *transition) change(c config.Change) error {
	switch c.Kind {
	case config.KindHost:
		return tr.changeHost(c)
	case config.KindListener:
		return tr.changeListener(c)
	case config.KindNamespace:
		return tr.changeNamespace(c)
	case config.KindSubsystem:
		return tr.changeSubsystem(c)
	case config.KindReferral:
		return tr.setFileKey(c.Object.String(), discoveryKeys.set)
	}
	return tr.modifyFile(c)
}

// await waits for storage to be released, but not forever.
func (s *Server) await(released <-chan struct{}) error {
	select {
	case <-released:
		return nil
	case <-s.ending.Done():
		return errStopped
	case <-time.After(s.releaseLimit):
		return fmt.Errorf("it still works on commands after %v", s.releaseLimit)
	}
}

// moveStorage replaces the changes of namespaces that take over storage from others: these must
// lose it first, and may want other storage in turn. Such a namespace is removed and added.
func (tr *transition) moveStorage() {
	var moved []config.Change
	rest := slices.DeleteFunc(slices.Clone(tr.changes), func(c config.Change) bool {
		move := c.Op == config.Modify && c.Kind == config.KindNamespace &&
			slices.ContainsFunc(c.Keys, func(k lang.KeyChange) bool {
				return k.Storage && !k.Restart
			}) && tr.takesOver(volumes.Find(tr.next, c.Object))
		if move {
			moved = append(moved, c)
		}
		return move
	})
	tr.changes = nil
	for _, c := range moved {
		tr.changes = append(tr.changes, config.Change{Op: config.Remove, Object: c.Object})
	}
	tr.changes = append(tr.changes, rest...)
	for _, c := range moved {
		tr.changes = append(tr.changes, config.Change{Op: config.Add, Object: c.Object})
	}
}

// check looks for changes that would fail, and changes nothing. Start has checked the whole
// machine.
func (tr *transition) check() (ps config.Problems) {
	for i, sub := range tr.next.Subsystems {
		if memory := tr.s.atStart.Reactors.Memory; memory < 4*sub.MaxTransfer {
			ps = append(ps, tr.next.Problem(fmt.Sprintf("subsystems[%d].max_transfer", i),
				fmt.Sprintf("%v is more than a quarter of reactors.memory, which is still %v",
					lang.Size(sub.MaxTransfer), lang.Size(memory)),
				"Reduce it, or restart the target."))
		}
	}
	if p, ok := errors.AsType[config.Problem](tr.s.managedLost(tr.next)); ok {
		ps = append(ps, p)
	}
	if tr.s.external || tr.s.config.Load() == nil {
		return ps
	}
	ps = append(append(append(ps, tr.next.Warnings()...), check.Hosts(tr.next)...),
		check.Keys(tr.next)...)
	// Without it addresses are only tried.
	machine, _ := tr.s.opts.Network.Read(listeners.Devices(tr.next.Listeners)...)
	probe := check.Address(tr.next, tr.s.opts.Verbs)
	for i, l := range tr.next.Listeners {
		if tr.adds(config.Object{Kind: config.KindListener, Listener: l.Name}) {
			ps = append(ps, check.Listener(tr.next, i, &machine, func(at fabric.Addr) error {
				if tr.s.listeners.Occupy(at) {
					return nil // it is taken over, or closed before
				}
				return probe(at)
			})...)
		}
	}
	for _, n := range volumes.All(tr.next) {
		if tr.adds(n.Name()) && !tr.takesOver(n) {
			ps = append(ps, volumes.ProbeOne(tr.next, n)...)
		}
	}
	return ps
}

// prepare does everything that can fail and can be done before the first change.
func (tr *transition) prepare() error {
	if err := tr.s.makeManaged(tr.next); err != nil {
		return err
	}
	var adds []*volumes.Namespace
	for _, n := range volumes.All(tr.next) {
		if tr.adds(n.Name()) && !tr.takesOver(n) {
			adds = append(adds, n)
		}
	}
	ps := append(tr.volumes.Await(adds), tr.check()...)
	if ps.Failed() {
		return ps
	}
	for _, p := range ps {
		tr.s.log.Warn(p.Error())
	}
	if ps := tr.volumes.Open(adds); ps.Failed() {
		return ps
	}
	return tr.s.listeners.Prepare(tr.next.Listeners)
}

// adds reports whether the transition adds an object.
func (tr *transition) adds(o config.Object) bool {
	return slices.ContainsFunc(tr.changes, func(c config.Change) bool {
		return c.Op == config.Add && c.Object == o
	})
}

// takesOver reports whether a namespace takes over storage that another one has and will lose.
func (tr *transition) takesOver(n *volumes.Namespace) bool {
	return slices.ContainsFunc(tr.changes, func(c config.Change) bool {
		return c.Kind == config.KindNamespace && c.Op != config.Add && c.Object != n.Name() &&
			n.Overlaps(tr.s.volumes.Get(c.Object))
	})
}
