// Package volumes keeps the storage of namespaces: it opens and closes it, waits for storage that
// is missing, and exchanges or resizes it while hosts use the namespace.
package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/backend/rbd"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// The pauses between attempts to open absent storage: the first and the longest.
const (
	pendingFirst = 250 * time.Millisecond
	pendingMost  = 4 * time.Second
)

// Config has the surroundings of Volumes.
type Config struct {
	Target *target.Target
	State  *state.Store
	Log    *slog.Logger
	// Disks is how files and block devices are worked on.
	Disks disk.Engine
	// Open opens the storage of a namespace; nil looks for problems and opens the configured one.
	Open func(*config.Namespace) (backend.Device, error)
	// Current returns the configuration that is served.
	Current func() *config.Config
	// Patiently repeats a function while another process, which may be ending, has something.
	Patiently func(func() error) error
	// Await waits for the channel to be closed, but not forever.
	Await func(<-chan struct{}) error
	// Up is called when a namespace that was pending is served, by any goroutine.
	Up func(nqn string, nsid uint32)
	// Retry is the first pause before a pending namespace is tried again; 0 is the usual one.
	Retry time.Duration
	// Ending ends before the target stops.
	Ending context.Context
	// Gates open and close the images of ANA groups that several gateways share.
	Gates map[uint32]*rbd.Gate
	// Pool has the promises of their namespaces.
	Pool string
	// Share returns the companion of the image of a namespace in such a group, and nil if it is not
	// shared. It is called before the storage is opened, and after the namespace was removed; nil:
	// there is nothing.
	Share func(nqn string, nsid uint32, shared bool, group uint32) rbd.Companion
}

// Volumes has the storage of all namespaces. A namespace with absent storage is pending: it is
// added to its subsystem when the storage appears. Any goroutine may call a method; changes exclude
// each other by a lock of the caller.
type Volumes struct {
	Config

	mu   sync.Mutex
	list map[config.Object]*volume
	// retired is storage that namespaces have lost, until it is closed.
	retired map[*removed]struct{}
	closing sync.WaitGroup // the goroutines that close it
	stopped chan struct{}
}

// volume is a namespace with its storage.
type volume struct {
	*Namespace
	why    error              // why it is pending; guarded by Volumes.mu
	lost   bool               // writes, before it was pending; guarded by Volumes.mu
	dev    backend.Device     // nil while it is pending
	cancel context.CancelFunc // ends the attempts to open absent storage; nil if there are none
	ended  chan struct{}      // closed when the attempts have ended
}

// New returns Volumes without namespaces. The caller ends them by Stop, and Close after it.
func New(c Config) *Volumes {
	return &Volumes{
		Config: c, list: map[config.Object]*volume{},
		retired: map[*removed]struct{}{}, stopped: make(chan struct{}),
	}
}

// openDevice opens the storage of a namespace.
func (vs *Volumes) openDevice(n *Namespace) (backend.Device, error) {
	if vs.Config.Open != nil {
		return vs.Config.Open(n.Namespace)
	}
	at := vs.env(n)
	at.gate, at.journal = vs.Gates[n.ANAGroup], vs.State
	if vs.Share != nil {
		at.companion = vs.Share(n.NQN, n.NSID, at.gate != nil, n.ANAGroup)
	}
	return openStorage(&n.Storage, at)
}

// Open opens the storage that the configuration describes. The caller closes it.
func Open(n *config.Namespace, disks disk.Engine, log *slog.Logger) (backend.Device, error) {
	return openStorage(&n.Storage, env{readOnly: n.ReadOnly, engine: disks, log: log})
}

func (vs *Volumes) env(n *Namespace) env {
	return env{readOnly: n.ReadOnly, engine: vs.Disks, log: vs.Log}
}

// checkPromises returns an error if the promises that hosts were given of a namespace are unknown,
// or cannot be kept.
func (vs *Volumes) checkPromises(n *Namespace) error {
	pool := ""
	if vs.Gates[n.ANAGroup] != nil {
		pool = vs.Pool
		if vs.Target.UntilRestart(n.NQN, n.NSID) {
			return errors.New("a host has write protected it until this target restarts, which " +
				"other gateways do not do: restart the target before it joins the group")
		}
	}
	return vs.State.Check(state.Name{NQN: n.NQN, NSID: n.NSID}, pool)
}

// open opens the storage of a namespace. The device is nil, without an error, if the namespace has
// to wait for its storage, or until its state can be read.
func (vs *Volumes) open(n *Namespace) (backend.Device, error) {
	if err := vs.checkPromises(n); err != nil {
		vs.Log.Error("namespace is not served: the promises to its hosts are unknown",
			append(n.attrs(), "err", err)...)
		return nil, nil
	}
	var dev backend.Device
	err := vs.Patiently(func() (err error) {
		dev, err = vs.openDevice(n)
		return err
	})
	switch {
	case err == nil:
		return dev, nil
	case absent(n, vs.env(n)): // which the probe has reported
		return nil, nil
	case offline(err):
		vs.Log.Warn("namespace is pending until its storage answers",
			append(n.attrs(), "err", err)...)
		return nil, nil
	}
	return nil, err
}

// add adds a namespace with storage dev or, if nil, once that is usable. Errors close dev.
func (vs *Volumes) add(n *Namespace, dev backend.Device) error {
	v := &volume{Namespace: n}
	if dev != nil {
		return vs.serve(v, dev)
	}
	v.why = cmp.Or(vs.checkPromises(n), errAbsent)
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.list[n.Name()] = v
	ctx, cancel := context.WithCancel(context.Background())
	v.cancel, v.ended = cancel, make(chan struct{})
	go vs.waitFor(ctx, v)
	return nil
}

func (vs *Volumes) serve(v *volume, dev backend.Device) error {
	nc := v.Config
	nc.Device, nc.Drive = dev, v.drive()
	if err := vs.Target.AddNamespace(v.NQN, nc); err != nil {
		return errors.Join(err, dev.Close())
	}
	vs.mu.Lock()
	v.dev, v.why = dev, nil
	vs.list[v.Name()] = v
	vs.mu.Unlock()
	return vs.degrade(v.Name(), false)
}

// waitFor serves a namespace as soon as its storage is there and can be used. It tries that after
// pauses that double, until ctx is done.
func (vs *Volumes) waitFor(ctx context.Context, v *volume) {
	last := v.why.Error()
	for pause := cmp.Or(vs.Retry, pendingFirst); ; pause = min(2*pause, pendingMost) {
		select {
		case <-ctx.Done():
			close(v.ended)
			return
		case <-time.After(pause):
		}
		err := vs.try(v)
		if err == nil {
			break
		}
		if text := err.Error(); text != last {
			last = text
			vs.mu.Lock()
			v.why = err
			vs.mu.Unlock()
			vs.Log.Warn("namespace is still pending", append(v.attrs(), "err", err)...)
		}
	}
	vs.Log.Info("namespace is served now", v.attrs()...)
	close(v.ended)
	// afterwards: it may wait for a goroutine that changes or removes v
	vs.Up(v.NQN, v.NSID)
}

var errAbsent = errors.New("its storage is not there")

// try serves a pending namespace; hosts get an event.
func (vs *Volumes) try(v *volume) error {
	if err := vs.checkPromises(v.Namespace); err != nil {
		return err
	}
	if absent(v.Namespace, vs.env(v.Namespace)) {
		return errAbsent
	}
	if vs.Config.Open == nil {
		c, n := vs.Current(), v.Namespace
		if now := Find(c, v.Name()); now != nil {
			n = now // its key may have changed
		}
		if ps := ProbeOne(c, n); ps.Failed() {
			return ps
		}
	}
	dev, err := vs.openDevice(v.Namespace)
	if err != nil {
		return err
	}
	return vs.serve(v, dev)
}

// endAttempts ends the attempts to open absent storage. The last may still serve the namespace.
func (v *volume) endAttempts() {
	if v.cancel != nil {
		v.cancel()
		<-v.ended
		v.cancel = nil
	}
}

// awaitRetired waits until earlier namespaces have closed the storage that a namespace is to have,
// and one with its name has forgotten its promises.
func (vs *Volumes) awaitRetired(n *Namespace) error {
	vs.mu.Lock()
	list := slices.Collect(maps.Keys(vs.retired))
	vs.mu.Unlock()
	for _, r := range list {
		if n.Name() != r.Name() && (r.closed || !n.Overlaps(r.Namespace)) {
			continue
		}
		if err := vs.Await(r.ended); err != nil {
			return fmt.Errorf("it waits for namespace %d of %s, which was removed: %w", r.NSID,
				r.NQN, err)
		}
	}
	return nil
}

func (vs *Volumes) get(name config.Object) *volume {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	return vs.list[name]
}

// Get returns the namespace with this name as it is served or pending, nil if there is none.
func (vs *Volumes) Get(name config.Object) *Namespace {
	if v := vs.get(name); v != nil {
		return v.Namespace
	}
	return nil
}

// Reason says why a namespace is pending, "" if it is not.
func (vs *Volumes) Reason(name config.Object) string {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if v := vs.list[name]; v != nil && v.why != nil {
		return v.why.Error()
	}
	return ""
}

// Pending lists the pending namespaces in the order of their names.
func (vs *Volumes) Pending() (list []*Namespace) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	for _, v := range vs.list {
		if v.dev == nil {
			list = append(list, v.Namespace)
		}
	}
	slices.SortFunc(list, func(a, b *Namespace) int {
		return cmp.Or(strings.Compare(a.NQN, b.NQN), cmp.Compare(a.NSID, b.NSID))
	})
	return list
}

// Stop ends the attempts to open absent storage, and waits for storage that is being closed.
func (vs *Volumes) Stop() {
	vs.mu.Lock()
	list := slices.Collect(maps.Values(vs.list))
	vs.mu.Unlock()
	for _, v := range list {
		v.endAttempts()
	}
	close(vs.stopped)
	vs.closing.Wait()
}

// Close closes all storage. The target must be closed.
func (vs *Volumes) Close() error {
	var devices []backend.Device
	for _, v := range vs.list {
		if v.dev != nil {
			devices = append(devices, v.dev)
		}
	}
	for r := range vs.retired {
		if !r.closed {
			devices = append(devices, r.dev)
		}
	}
	errs := make([]error, len(devices))
	var wg sync.WaitGroup
	for i, dev := range devices { // at once: each may wait for a cluster
		wg.Go(func() { errs[i] = dev.Close() })
	}
	wg.Wait()
	return errors.Join(errs...)
}
