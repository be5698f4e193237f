package app

import (
	"errors"
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/config"
)

// This file has the changes of namespaces.

// releaseLimit is how long storage that changes its owner may take to finish what it has.
const releaseLimit = 30 * time.Second

func (tr *transition) addNamespace(c config.Change) error {
	n := tr.namespace(c.Object)
	dev, opened := tr.opened[c.Object]
	delete(tr.opened, c.Object)
	if !opened {
		err := tr.release(n)
		if err == nil {
			dev, err = tr.s.namespaces.open(n)
		}
		if err != nil {
			return err
		}
	}
	err := tr.s.namespaces.add(n, dev)
	if err == nil {
		tr.done(c.Object.String(), func() error { return tr.s.namespaces.drop(c.Object) })
	}
	return err
}

func (tr *transition) removeNamespace(c config.Change) error {
	tr.commit = append(tr.commit, func() { tr.s.target.ForgetNamespace(c.NQN, c.NSID) })
	v := tr.s.namespaces.get(c.Object)
	dev, gone, err := tr.s.namespaces.remove(v)
	if err != nil {
		return err
	}
	if dev == nil {
		tr.done(c.Object.String(), func() error { return tr.s.namespaces.add(v.namespace, nil) })
		return nil
	}
	r := &removed{served: v, dev: dev, gone: gone}
	tr.removed = append(tr.removed, r)
	tr.done(c.Object.String(), func() error { return tr.s.namespaces.restore(r) })
	tr.commit = append(tr.commit, func() {
		if !r.closed {
			tr.s.namespaces.retire(r)
		}
	})
	return nil
}

// restore adds a namespace that was removed. If its storage cannot be used again it is pending.
func (ns *namespaces) restore(r *removed) (err error) {
	dev := r.dev
	if r.closed {
		dev, err = ns.open(r.namespace)
	} else {
		_ = ns.s.await(r.gone) // what works on it still ends its notifications
	}
	if err == nil {
		err = ns.add(r.namespace, dev)
	}
	if err != nil {
		err = errors.Join(err, ns.add(r.namespace, nil))
	}
	return err
}

// drop removes a namespace and closes its storage.
func (ns *namespaces) drop(name config.Object) error {
	v := ns.get(name)
	dev, gone, err := ns.remove(v)
	if err != nil || dev == nil {
		return err
	}
	ns.retire(&removed{served: v, dev: dev, gone: gone})
	return ns.awaitRetired(v.namespace)
}

// overlaps reports whether two namespaces are on the same storage.
func (n *namespace) overlaps(o *namespace) bool {
	mine, ok := stackOf(n)
	theirs, also := stackOf(o)
	if !ok || !also {
		return false
	}
	_, overlaps := mine.Overlaps(theirs.Stack)
	return overlaps
}

// release closes what others have lost of the storage that a namespace is to have.
func (tr *transition) release(n *namespace) error {
	for _, r := range tr.removed {
		if r.closed || !n.overlaps(r.namespace) {
			continue
		}
		err := tr.s.await(r.gone)
		if err == nil {
			err = r.dev.Close()
		}
		if err != nil {
			return fmt.Errorf("the storage of namespace %d of %s, which it takes over: %w",
				r.NSID, r.nqn, err)
		}
		r.closed = true
	}
	return nil
}

// await waits for storage to be released, but not for ever.
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

// modifyNamespace changes a namespace. Its storage is opened anew if that has changed, or is to be
// written from now on; hosts see no error meanwhile. Otherwise it stays open, and with it what is
// known of lost writes.
func (tr *transition) modifyNamespace(c config.Change) error {
	v, n := tr.s.namespaces.get(c.Object), tr.namespace(c.Object)
	anew := false
	for _, k := range c.Keys {
		if k.Storage && k.Restart { // what is in memory would be lost
			kept := *n.Namespace
			kept.Storage = v.Storage
			n = &namespace{&kept, n.nqn, n.key}
		}
		anew = anew || k.Storage && !k.Restart ||
			k.Key == "read_only" && !n.ReadOnly && !v.volatile()
	}
	if err := tr.s.namespaces.awaitRetired(n); err != nil {
		return err
	}
	if !tr.s.external && anew && !n.overlaps(v.namespace) {
		if ps := probeAgain(tr.next, n); ps.Failed() {
			return ps
		}
	}
	if v.endAttempts(); v.dev == nil {
		return tr.modifyPending(v, n)
	}
	before, had := v.namespace, v.dev.Info().Size
	tr.done(c.Object.String(), func() error {
		err := tr.s.namespaces.modify(c.Object, before, anew)
		// A file that has grown is not cut off again: hosts may have written there.
		now := tr.s.namespaces.served(c.Object)
		if err == nil && anew && before.overlaps(n) && now != nil && now.dev.Info().Size > had {
			err = fmt.Errorf("its file has %d bytes now", now.dev.Info().Size)
		}
		return err
	})
	return tr.s.namespaces.modify(c.Object, n, anew)
}

// modifyPending changes a namespace that waits for its storage to n, whose storage may be there.
func (tr *transition) modifyPending(v *served, n *namespace) error {
	tr.done(v.name().String(), func() error {
		return errors.Join(tr.s.namespaces.drop(v.name()), tr.s.namespaces.add(v.namespace, nil))
	})
	dev, err := tr.s.namespaces.open(n)
	if err == nil {
		err = tr.s.namespaces.add(n, dev)
	}
	return err
}

// modify changes a namespace to n; anew: its storage is another one, or is used in another way.
func (ns *namespaces) modify(name config.Object, n *namespace, anew bool) error {
	v := ns.get(name)
	if v.namespace == n {
		return nil
	}
	var swap func(backend.Device) (backend.Device, error)
	if anew {
		swap = func(old backend.Device) (backend.Device, error) {
			return ns.reopen(old, v.namespace, n)
		}
	}
	return ns.exchange(v, n, swap)
}

// exchange changes a namespace to n. swap, if it is not nil, exchanges its storage, as for
// target.UpdateNamespace.
func (ns *namespaces) exchange(v *served, n *namespace,
	swap func(backend.Device) (backend.Device, error),
) error {
	dev, is := v.dev, v.namespace
	swapped := swap
	if swap != nil {
		swapped = func(old backend.Device) (_ backend.Device, err error) {
			if dev, err = swap(old); err == nil {
				is = n
			}
			return dev, err
		}
	}
	nc := n.NamespaceConfig
	nc.Drive = driveOf(n)
	err := ns.s.target.UpdateNamespace(v.nqn, nc, swapped)
	if err == nil {
		is = n
	}
	if dev == nil { // it has neither the new storage nor the old one
		if _, removed := ns.s.target.RemoveNamespace(v.nqn, v.NSID); removed != nil {
			return errors.Join(err, removed)
		}
		return errors.Join(err, ns.add(is, nil))
	}
	ns.mu.Lock()
	defer ns.mu.Unlock()
	ns.list[v.name()] = &served{namespace: is, dev: dev}
	return err
}

// reopen closes the storage of a namespace and opens that of another configuration of it. The same
// file grows to the size that the other one has; it does not shrink. If that fails it opens the
// first one again.
func (ns *namespaces) reopen(dev backend.Device, old, n *namespace) (backend.Device, error) {
	has := dev.Info().Size
	if err := dev.Close(); err != nil {
		return dev, err
	}
	var next backend.Device
	var err error
	if st, _ := n.backing(); st.resize != nil && st.least() > has && !n.ReadOnly &&
		n.overlaps(old) {
		err = st.resize(ns.s.env(n.Namespace), st.least())
	}
	if err == nil {
		next, err = ns.s.opts.OpenDevice(n.Namespace)
	}
	if err == nil {
		return next, nil
	}
	dev, again := ns.s.opts.OpenDevice(old.Namespace)
	if again != nil {
		return nil, errors.Join(err, fmt.Errorf("and the storage before: %w", again))
	}
	return dev, err
}
