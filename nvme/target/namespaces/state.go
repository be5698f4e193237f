package namespaces

import (
	"errors"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/marks"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
)

// state is the condition of a namespace: faults and write protection. The I/O path sees it in the
// geometry.
type state struct {
	mu       sync.Mutex
	degraded bool      // accepted writes may be lost
	orphans  int       // IOs that devices still have although their commands were given up
	since    time.Time // of the first of them
	logged   bool      // the log has that there are some
	timeouts uint64    // commands given up
	returns  uint64    // how often storage that was not ready became so again
}

// update changes the state, and notifies hosts if that concerns them.
func (ns *Namespace) update(change func(*state)) {
	ns.state.mu.Lock()
	old := ns.geo.Load()
	change(&ns.state)
	cfg := ns.cfg.Load()
	g, err := newGeometry(cfg.Device.Info(), cfg.ReadOnly || ns.state.degraded ||
		nvme.WriteProtection(ns.Protected.Load()) != nvme.NoWriteProtect)
	if err != nil || g.Shift != old.Shift { // hosts could not use it
		c := *old
		g = &c
		g.Info.Offline, g.Info.Standby = true, false
	}
	g.Unready, g.Info.Degraded = g.Info.Offline || ns.state.orphans > 0, ns.state.degraded
	if old.Unready && !g.Unready {
		ns.state.returns++
	}
	changed := *g != *old
	if changed {
		ns.geo.Store(g)
	}
	ns.state.mu.Unlock()
	if changed {
		ns.tell(Changed, nil)
	}
}

// changed adopts the current Info of the device. A goroutine of the device calls it, or the
// goroutine that adds the namespace.
func (ns *Namespace) changed() {
	if ns.Device().Info().Degraded {
		ns.degrade(backend.ErrDegraded)
	}
	before := ns.geo.Load()
	ns.update(func(*state) {})
	if now := ns.geo.Load(); now.Blocks != before.Blocks {
		ns.common.Log.Info("the size of a namespace changed", "subsystem", ns.ID.SubNQN, "nsid",
			ns.ID.NSID, "old_size", before.Size(), "size", now.Size())
		ns.Marks.Cut(now.Size())
	}
}

// degrade records that a device may have lost writes that it had accepted (backend.ErrDegraded).
// Until the namespace is opened again it is write protected, the health log warns, and hosts are
// notified of both. All calls but the first do nothing.
func (ns *Namespace) degrade(err error) {
	first := false
	ns.update(func(s *state) { first, s.degraded = !s.degraded, true })
	if !first {
		return
	}
	ns.common.Log.Error("namespace is write protected: writes that it had accepted may be lost",
		"subsystem", ns.ID.SubNQN, "nsid", ns.ID.NSID, "err", err)
	ns.tell(Degrades, nil)
}

// rangeFactor multiplies the timeout of discards and zeroes, each of which may cover the whole
// disk.
const rangeFactor = 10

// TimesOut reports whether an operation that has taken this many nanoseconds is given up. That is
// earlier if hosts can continue on another machine.
func (ns *Namespace) TimesOut(op backend.Op, took int64) bool {
	t := int64(ns.cfg.Load().Timeout)
	switch {
	case ns.geo.Load().Info.Elsewhere:
		t = min(t, int64(time.Second))
	case op == backend.OpDiscard || op == backend.OpWriteZeroes:
		t *= rangeFactor
	}
	return t > 0 && took >= t
}

// Fenced reports whether the storage refuses the operations that the device has, or need not. If it
// does not, it is made to.
func (ns *Namespace) Fenced() bool {
	d, ok := ns.Device().(backend.Fencer)
	return !ok || d.Fence()
}

// CountTimeout counts a command that is given up.
func (ns *Namespace) CountTimeout() { ns.update(func(s *state) { s.timeouts++ }) }

// Orphaned records that the device has an IO of a command that was given up. The caller then
// cancels the IO. post calls a function afterwards, on the same reactor.
func (ns *Namespace) Orphaned(post func(func())) {
	first := false
	ns.update(func(s *state) {
		if first = s.orphans == 0; first {
			s.since = time.Now()
		}
		s.orphans++
	})
	if first {
		post(ns.logOrphans) // once cancelable IOs are back
	}
}

// logOrphans logs that the device has such IOs, once until all are back.
func (ns *Namespace) logOrphans() {
	ns.state.mu.Lock()
	first := ns.state.orphans > 0 && !ns.state.logged
	ns.state.logged = ns.state.orphans > 0
	ns.state.mu.Unlock()
	if first {
		ns.common.Log.Error("device does not answer: its namespace is not ready until it does",
			"subsystem", ns.ID.SubNQN, "nsid", ns.ID.NSID, "device", ns.identity())
	}
}

// Returned records that the device has given back such an IO.
func (ns *Namespace) Returned() {
	var since time.Time
	ns.update(func(s *state) {
		if s.orphans--; s.orphans == 0 && s.logged {
			since, s.logged = s.since, false
		}
	})
	if !since.IsZero() {
		ns.common.Log.Warn("device answers again", "subsystem", ns.ID.SubNQN, "nsid", ns.ID.NSID,
			"device", ns.identity(), "duration", time.Since(since).Round(time.Millisecond))
	}
}

// ioErrors is the only place where errors of devices become statuses, and reasons, by which they
// are counted. The first error that matches decides. A status that a retry or another path may
// cure has no DNR.
var ioErrors = [dispatch.ErrorKinds]struct {
	err    error
	reason string
	status nvme.Status
}{
	{backend.ErrOffline, "offline", compound.NotReady},
	{backend.ErrAborted, "aborted", nvme.AbortRequested},
	{backend.ErrIO, "io", nvme.WriteFault}, // Base section 4.2.3.3, 80h
	{backend.ErrNoSpace, "no_space", nvme.CapacityExceeded | nvme.DNR},
	{backend.ErrReadOnly, "read_only", nvme.NamespaceWriteProtected | nvme.DNR},
	{backend.ErrOutOfRange, "out_of_range", nvme.LBAOutOfRange | nvme.DNR},
	{backend.ErrUnsupported, "unsupported", nvme.InvalidOpcode | nvme.DNR},
	{nil, "other", nvme.InternalError},
}

// errorIO is the index of media errors in ioErrors.
const errorIO = 2

// ioStatus returns the status of a failed IO and the index of its error in ioErrors.
func ioStatus(io *backend.IO) (nvme.Status, int) {
	i := 0
	for i < len(ioErrors)-1 && !errors.Is(io.Err, ioErrors[i].err) {
		i++
	}
	if i == errorIO && io.Op == backend.OpRead {
		return nvme.UnrecoveredReadError, i // Base section 4.2.3.3, 81h
	}
	return ioErrors[i].status, i
}

// failureLogInterval is the time between log lines about failed IOs of one namespace and reason.
const failureLogInterval = int64(60e9)

// Failed counts and logs a failed IO of a channel and returns its status. now is that of the loop.
// Reactor of the channel.
func (ns *Namespace) Failed(ch *dispatch.Channel, io *backend.IO, now int64) nvme.Status {
	if io.Err == dispatch.ErrPreempted { // not by the device
		return nvme.AbortedPreempt // no DNR: a retry is checked against the current reservation
	}
	if errors.Is(io.Err, marks.ErrMarked) { // no error of the medium: it is not counted
		return nvme.UnrecoveredReadError | nvme.DNR
	}
	st, reason := ioStatus(io)
	ch.CountError(reason)
	if errors.Is(io.Err, backend.ErrDegraded) {
		ns.degrade(io.Err)
	}
	switch st {
	case compound.NotReady, nvme.AbortRequested: // hosts retry
		return st
	}
	last := &ns.failureLogged[reason]
	if t := last.Load(); (t == 0 || now-t >= failureLogInterval) && last.CompareAndSwap(t, now) {
		ns.common.Log.Warn("I/O failed; for a minute, more failures of this kind are only counted",
			"subsystem", ns.ID.SubNQN, "nsid", ns.ID.NSID, "device", ns.identity(),
			"command", io.Op.String(), "status", st.String(), "err", io.Err)
	}
	return st
}
