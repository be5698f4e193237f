package volumes

import (
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/state"
)

// Change is a change of namespaces to the ones of another configuration. Its methods are called by
// the goroutine that makes the change: Await and Open before the first change, then Add, Remove and
// Modify, and Commit or Abort at the end. Each of these three can be undone until then.
type Change struct {
	vs   *Volumes
	next *config.Config
	// opened is the storage that was opened before the first change, nil if it is pending.
	opened  map[config.Object]backend.Device
	removed []*removed
}

// removed is a namespace that its hosts have lost. Its storage stays open until the change has
// succeeded, unless another namespace needs it.
type removed struct {
	*volume
	gone   <-chan struct{} // closed when nothing uses the storage
	closed bool            // it has no storage: that was closed, or never there
	// After the change, these are closed when its promises have ended, and also the storage is
	// closed.
	forgotten, ended chan struct{}
}

// Begin begins a change to the namespaces of another configuration.
func (vs *Volumes) Begin(next *config.Config) *Change {
	return &Change{vs: vs, next: next, opened: map[config.Object]backend.Device{}}
}

// Await waits until the storage of namespaces is closed by the namespaces that had it before.
func (c *Change) Await(list []*Namespace) (ps config.Problems) {
	for _, n := range list {
		if err := c.vs.awaitRetired(n); err != nil {
			ps = append(ps, c.next.Problem(n.Key, err.Error(), ""))
		}
	}
	return ps
}

// Open opens the storage of namespaces that Add is called for.
func (c *Change) Open(list []*Namespace) (ps config.Problems) {
	for _, n := range list {
		dev, err := c.vs.open(n)
		if err != nil {
			ps = append(ps, c.next.Problem(n.Key, err.Error(), ""))
			continue
		}
		c.opened[n.Name()] = dev
	}
	return ps
}

// Add adds a namespace. Its storage may be that of a namespace that Remove was called for.
func (c *Change) Add(name config.Object) (undo func() error, err error) {
	n := Find(c.next, name)
	dev, opened := c.opened[name]
	delete(c.opened, name)
	if !opened {
		if err = c.release(n); err == nil {
			dev, err = c.vs.open(n)
		}
		if err != nil {
			return nil, err
		}
	}
	if err = c.vs.add(n, dev); err != nil {
		return nil, err
	}
	return func() error { return c.vs.drop(name) }, nil
}

// release closes the storage that a namespace is to have and others have lost.
func (c *Change) release(n *Namespace) error {
	for _, r := range c.removed {
		if r.closed || !n.Overlaps(r.Namespace) {
			continue
		}
		err := c.vs.Await(r.gone)
		if err == nil {
			err = closeToReopen(r.dev, true)
		}
		if err != nil {
			return fmt.Errorf("the storage of namespace %d of %s, which it takes over: %w",
				r.NSID, r.NQN, err)
		}
		r.closed = true
	}
	return nil
}

// Remove takes a namespace from its hosts.
func (c *Change) Remove(name config.Object) (undo func() error, err error) {
	r, err := c.vs.remove(name)
	if err != nil {
		return nil, err
	}
	c.removed = append(c.removed, r)
	return func() error { return c.vs.restore(r) }, nil
}

// Modify changes keys of a namespace. If its storage is another one, or becomes writable, it is
// opened again without an error for hosts. Otherwise it stays open, and lost writes are not
// forgotten. An error may come with a function that undoes the change.
func (c *Change) Modify(name config.Object, keys []lang.KeyChange) (undo func() error,
	err error,
) {
	vs, v, n := c.vs, c.vs.get(name), Find(c.next, name)
	reopen := false
	for _, k := range keys {
		if k.Storage && k.Restart { // the content of memory would be lost
			kept := *n.Namespace
			kept.Storage = v.Storage
			n = &Namespace{&kept, n.NQN, n.Key}
		}
		reopen = reopen || k.Storage && !k.Restart ||
			k.Key == "read_only" && !n.ReadOnly && v.Memory() == 0
	}
	if err := vs.awaitRetired(n); err != nil {
		return nil, err
	}
	if vs.Config.Open == nil && reopen && !n.Overlaps(v.Namespace) {
		if ps := ProbeOne(c.next, n); ps.Failed() {
			return nil, ps
		}
	}
	if v.endAttempts(); v.dev == nil { // its next storage may be there
		dev, err := vs.open(n)
		if err == nil {
			err = vs.add(n, dev)
		}
		return func() error {
			return errors.Join(vs.drop(name), vs.add(v.Namespace, nil), vs.degrade(name, v.lost))
		}, err
	}
	if err := vs.checkPromises(n); err != nil {
		return nil, err
	}
	before, had, lost := v.Namespace, v.dev.Info().Size, vs.lost(name)
	return func() error {
		err := errors.Join(vs.modify(name, before, reopen), vs.degrade(name, lost))
		// A file that has grown is not cut off again: hosts may have written there.
		now := vs.served(name)
		if err == nil && reopen && before.Overlaps(n) && now != nil && now.dev.Info().Size > had {
			err = fmt.Errorf("its file has %d bytes now", now.dev.Info().Size)
		}
		return err
	}, vs.modify(name, n, reopen)
}

// Commit ends a change that has succeeded. It notes where the promises of namespaces are. Hosts are
// promised nothing more of namespaces that were removed, and their storage is closed as soon as
// nothing uses it.
func (c *Change) Commit() {
	for _, n := range All(c.next) {
		if c.vs.Gates[n.ANAGroup] == nil {
			continue
		}
		name := state.Name{NQN: n.NQN, NSID: n.NSID}
		if err := c.vs.State.Note(name, c.vs.Pool); err != nil {
			c.vs.Log.Error("cannot record where the promises of a namespace are kept",
				append(n.attrs(), "err", err)...)
		}
	}
	var forgetting sync.WaitGroup
	for _, r := range c.removed {
		if c.vs.Get(r.Name()) != nil { // it has taken over other storage
			continue
		}
		r.forgotten = make(chan struct{})
		forgetting.Go(func() {
			defer close(r.forgotten)
			c.vs.forget(r)
		})
	}
	all := make(chan struct{})
	go func() {
		forgetting.Wait()
		close(all)
	}()
	_ = c.vs.Await(all) // a cluster may not answer for long
	for _, r := range c.removed {
		c.vs.retire(r)
	}
}

// forget ends the promises of a removed namespace.
func (vs *Volumes) forget(r *removed) {
	vs.Target.ForgetNamespace(r.NQN, r.NSID)
	if vs.Share != nil {
		vs.Share(r.NQN, r.NSID, false, 0)
	}
}

// Abort ends a change that was undone.
func (c *Change) Abort() error {
	var errs []error
	for _, dev := range c.opened {
		if dev != nil {
			errs = append(errs, dev.Close())
		}
	}
	return errors.Join(errs...)
}

func (vs *Volumes) remove(name config.Object) (*removed, error) {
	v := vs.get(name)
	v.endAttempts()
	vs.mu.Lock()
	delete(vs.list, name)
	vs.mu.Unlock()
	r := &removed{volume: v, closed: v.dev == nil}
	if v.lost = v.lost || vs.lost(name); r.closed {
		return r, nil
	}
	var err error
	r.gone, err = vs.Target.RemoveNamespace(v.NQN, v.NSID)
	return r, err
}

// retire closes storage when nothing uses it any more.
func (vs *Volumes) retire(r *removed) {
	if r.closed && r.forgotten == nil {
		return
	}
	r.ended = make(chan struct{})
	vs.mu.Lock()
	vs.retired[r] = struct{}{}
	vs.mu.Unlock()
	vs.closing.Go(func() {
		defer close(r.ended)
		for _, wait := range []<-chan struct{}{r.forgotten, r.gone} {
			if wait == nil { // it keeps its promises
				continue
			}
			select {
			case <-wait:
			case <-vs.stopped:
				return // Close closes it
			}
		}
		if !r.closed {
			if err := r.dev.Close(); err != nil {
				vs.Log.Warn("storage of a removed namespace cannot be closed",
					append(r.attrs(), "err", err)...)
			}
		}
		vs.mu.Lock()
		defer vs.mu.Unlock()
		delete(vs.retired, r)
	})
}

// restore adds a namespace that was removed. If its storage cannot be used again it is pending.
func (vs *Volumes) restore(r *removed) (err error) {
	dev := r.dev
	switch {
	case dev == nil:
	case r.closed:
		dev, err = vs.open(r.Namespace)
	default:
		_ = vs.Await(r.gone) // its notifications end with its last command
	}
	if err == nil {
		err = vs.add(r.Namespace, dev)
	}
	if err != nil {
		err = errors.Join(err, vs.add(r.Namespace, nil))
	}
	return errors.Join(err, vs.degrade(r.Name(), r.lost))
}

// lost reports whether a served namespace may have lost writes.
func (vs *Volumes) lost(name config.Object) bool { return vs.Target.Degraded(name.NQN, name.NSID) }

// degrade keeps it known that a namespace has lost writes, although its storage was opened again,
// or will be: that was not the decision of an operator, but undoes a change.
func (vs *Volumes) degrade(name config.Object, lost bool) error {
	vs.mu.Lock()
	v := vs.list[name]
	v.lost = v.lost || lost
	lost = v.lost && v.dev != nil // else serve does it
	vs.mu.Unlock()
	if !lost {
		return nil
	}
	return vs.Target.DegradeNamespace(name.NQN, name.NSID)
}

// drop removes a namespace and closes its storage.
func (vs *Volumes) drop(name config.Object) error {
	r, err := vs.remove(name)
	if err != nil || r.dev == nil {
		return err
	}
	vs.retire(r)
	return vs.awaitRetired(r.Namespace)
}

// modify changes a namespace to n. With reopen its storage is opened again.
func (vs *Volumes) modify(name config.Object, n *Namespace, reopen bool) error {
	v := vs.get(name)
	if v.Namespace == n {
		return nil
	}
	var swap func(backend.Device) (backend.Device, error)
	if reopen || vs.Gates[v.ANAGroup] != vs.Gates[n.ANAGroup] {
		swap = func(old backend.Device) (backend.Device, error) {
			return vs.reopen(old, v.Namespace, n)
		}
	}
	return vs.exchange(v, n, swap)
}

// exchange changes a namespace to n. swap, unless nil, is as for target.UpdateNamespace.
func (vs *Volumes) exchange(v *volume, n *Namespace,
	swap func(backend.Device) (backend.Device, error),
) error {
	dev, is := v.dev, v.Namespace
	swapped := swap
	if swap != nil {
		swapped = func(old backend.Device) (_ backend.Device, err error) {
			if dev, err = swap(old); err == nil {
				is = n
			}
			return dev, err
		}
	}
	nc := n.Config
	nc.Drive = n.drive()
	err := vs.Target.UpdateNamespace(v.NQN, nc, swapped)
	if err == nil {
		is = n
	}
	if dev == nil { // it has neither the new storage nor the old one
		lost := vs.lost(v.Name())
		if _, removed := vs.Target.RemoveNamespace(v.NQN, v.NSID); removed != nil {
			return errors.Join(err, removed)
		}
		return errors.Join(err, vs.add(is, nil), vs.degrade(v.Name(), lost))
	}
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.list[v.Name()] = &volume{Namespace: is, dev: dev}
	return err
}

// reopen closes the storage of a namespace and opens that of another configuration of it. The same
// file grows to the size of that one, but never shrinks. After a failure the old one is open.
func (vs *Volumes) reopen(dev backend.Device, old, n *Namespace) (backend.Device, error) {
	has := dev.Info().Size
	if err := closeToReopen(dev, n.Overlaps(old)); err != nil {
		return dev, err
	}
	var next backend.Device
	var err error
	if st, _ := n.backing(); n.ConfiguredSize() > has && !n.ReadOnly && n.Overlaps(old) {
		err = st.resize(vs.env(n), n.ConfiguredSize())
	}
	if err == nil {
		next, err = vs.openDevice(n)
	}
	if err == nil {
		return next, nil
	}
	dev, again := vs.openDevice(old)
	if again != nil {
		return nil, errors.Join(err, fmt.Errorf("and the storage before: %w", again))
	}
	return dev, err
}

// closeToReopen closes storage. If it is to be opened again, it must still be there: a deleted file
// would be lost, and hosts would find the content of another one.
func closeToReopen(dev backend.Device, again bool) error {
	if r, ok := dev.(backend.Replaceable); ok && again {
		if err := r.InPlace(); err != nil {
			return err
		}
	}
	return dev.Close()
}

// served returns the namespace with this name if it has its storage.
func (vs *Volumes) served(name config.Object) *volume {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if v := vs.list[name]; v != nil && v.dev != nil {
		return v
	}
	return nil
}

// Size returns the size of the storage of a namespace, in bytes. The error is a control.Problem.
func (vs *Volumes) Size(name config.Object) (int64, error) {
	v := vs.served(name)
	if v == nil {
		return 0, conflict("nsid", "the namespace is pending or was removed",
			"`nvmf-target namespaces` lists them.")
	}
	return v.dev.Info().Size, nil
}

// Resize changes the size of a namespace in a file, which MayResize allows, and reopens it.
// Commands wait meanwhile: none may write beyond the new end afterwards.
func (vs *Volumes) Resize(name config.Object, size int64) error {
	v := vs.served(name)
	st, _ := v.backing()
	again := *v.Namespace
	return vs.exchange(v, &again, func(old backend.Device) (backend.Device, error) {
		if err := closeToReopen(old, true); err != nil {
			return old, err
		}
		failed := st.resize(vs.env(v.Namespace), size)
		dev, err := vs.openDevice(v.Namespace)
		if err != nil {
			return nil, errors.Join(failed, err)
		}
		return dev, failed
	})
}

func conflict(place, what, hint string) error {
	return control.NewProblem(http.StatusConflict, what, hint).At(place)
}

// MayResize returns an error, a control.Problem, if a served namespace cannot have another size.
// With configured, its configuration gets the size as well.
func (vs *Volumes) MayResize(name config.Object, size int64, shrink, configured bool) error {
	v := vs.served(name)
	st, _ := v.backing()
	info := v.dev.Info()
	switch {
	case st.resize == nil && v.Memory() > 0:
		return conflict("subsystem", "its storage is memory, which keeps its size",
			"Change size in the configuration and restart the target: the content is lost.")
	case st.resize == nil && st.path == nil && st.image == nil:
		return conflict("subsystem", "its storage has the size of the configuration",
			"Change size there and reload.")
	case st.image != nil:
		return conflict("subsystem", "its storage is an image, which has its own size",
			"Resize the image (rbd resize): the target notices it within a second.")
	case st.resize == nil:
		return conflict("subsystem", "its storage is a device, which has its own size",
			"Resize the volume (lvextend, for instance): the target notices it in a second.")
	case v.ReadOnly:
		return conflict("subsystem", "it is read-only", "Delete read_only and reload.")
	case info.Offline || vs.lost(name):
		return conflict("subsystem", "its storage is offline or degraded", "Repair that first.")
	case st.least() > size && !configured:
		return conflict("size", fmt.Sprintf("the configuration says that the file has at least %d "+
			"bytes", st.least()), "Reduce size there, reload, and try again.")
	case size < info.Size && !shrink:
		return conflict("size", fmt.Sprintf("it has %d bytes: the data in the last %d of them "+
			"would be lost for good", info.Size, info.Size-size),
			"Shrink its file system or partitions first, on a host. Then use --shrink.")
	}
	if err := backend.CheckGeometry(size, info.BlockSize); err != nil {
		return conflict("size", err.Error(), "")
	}
	return nil
}
