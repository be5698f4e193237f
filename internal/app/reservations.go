package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/backend/rbd"
	"github.com/nvmf-target/nvmf-target/config"
	grouprados "github.com/nvmf-target/nvmf-target/internal/group/rados"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// This file keeps reservations of namespaces in shared groups in the cluster.

// reservations implements reservation.Store.
type reservations struct {
	local reservation.Store // of other namespaces; nil: none persist
	of    func(nqn string, nsid uint32) *reservation.Namespace
	// open returns the object with this name; reserve notes that a group has reservations.
	open    func(h *rbd.Holder, name string) (grouprados.Object, error)
	reserve func(ctx context.Context, group uint32) error
	// writers has room for the writes of a group at a time. Each takes a call of the connection,
	// which renews the lease as well.
	writers  map[uint32]chan struct{}
	patience time.Duration // with the cluster

	mu   sync.Mutex
	list map[state.Name]*kept // of namespaces in shared groups
}

// reservationWriters is the number of reservations of a group that are written at a time.
const reservationWriters = 2

// newReservations returns the reservations of a target. The caller sets of.
func newReservations(g *groups, c *config.Group) *reservations {
	r := &reservations{
		open: func(h *rbd.Holder, name string) (grouprados.Object, error) {
			return grouprados.Open(h.Cluster, c.Pool, name)
		},
		reserve: func(ctx context.Context, id uint32) error {
			g.mu.Lock()
			one := g.list[id]
			g.mu.Unlock()
			return one.Reserve(ctx)
		},
		writers: map[uint32]chan struct{}{}, patience: changePatience,
		list: map[state.Name]*kept{},
	}
	for _, id := range c.ANAGroups {
		r.writers[id] = make(chan struct{}, reservationWriters)
	}
	return r
}

// share returns the reservations that belong to the image of a namespace, see volumes.Config.
func (r *reservations) share(nqn string, nsid uint32, shared bool, group uint32) rbd.Companion {
	name := state.Name{NQN: nqn, NSID: nsid}
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.list[name]
	delete(r.list, name)
	if !shared {
		if was != nil {
			was.ns.Move(reservation.Here)
		}
		return nil
	}
	k := &kept{reservations: r, name: name, group: group, ns: r.of(nqn, nsid)}
	k.ns.Move(reservation.Elsewhere)
	r.list[name] = k
	return k
}

func (r *reservations) find(nqn string, nsid uint32) *kept {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.list[state.Name{NQN: nqn, NSID: nsid}]
}

// Load implements reservation.Store. Open restores the reservations of shared groups.
func (r *reservations) Load(nqn string, nsid uint32) *reservation.State {
	if r.local == nil {
		return nil
	}
	return r.local.Load(nqn, nsid)
}

// Save implements reservation.Store.
func (r *reservations) Save(nqn string, nsid uint32, now *reservation.State) error {
	switch k := r.find(nqn, nsid); {
	case k != nil:
		return k.save(now)
	case r.local == nil:
		return errors.New("there is no state directory")
	}
	return r.local.Save(nqn, nsid, now)
}

// problem returns why a namespace of a group cannot be served, nil if all can.
func (r *reservations) problem(group uint32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.list {
		if k.group == group && k.err != nil {
			return k.err
		}
	}
	return nil
}

// kept has the reservations of a namespace in a shared group. They are in the cluster in an object
// of their own, which only the gateway uses that has the image open, since they are read after it
// is opened. It implements rbd.Companion.
type kept struct {
	*reservations
	name  state.Name
	group uint32
	ns    *reservation.Namespace

	mu      sync.Mutex        // held while they are written
	object  grouprados.Object // nil: the image is closed
	version uint64            // of the object

	reading sync.Mutex // held until the cluster has answered a read
	err     error      // of the last Open; guarded by reservations.mu
}

// Open reads the reservations. The image stays offline if they are not known.
func (k *kept) Open(h *rbd.Holder) error {
	err := k.load(h)
	k.reservations.mu.Lock()
	defer k.reservations.mu.Unlock()
	k.err = err
	return err
}

func (k *kept) load(h *rbd.Holder) error {
	if !k.reading.TryLock() {
		return k.err // each read that waits takes a call of the connection
	}
	name := "nvmf.reservations." + k.name.ID()
	o, err := k.open(h, name)
	if err != nil {
		k.reading.Unlock()
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), k.patience)
	defer cancel()
	now := &reservation.State{}
	data, version, err := o.Read(ctx, state.MaxReservations+1)
	if err == nil && version != 0 {
		now, err = state.DecodeReservations(k.name, data)
	}
	if err == nil && k.find(k.name.NQN, k.name.NSID) != k {
		err = errReplaced
	}
	if err != nil {
		go func() { // when the cluster has answered
			defer k.reading.Unlock()
			o.Close()
		}()
		return fmt.Errorf("namespace %d of %s is not served, because its reservations (object %s) "+
			"are not known: %w. If the object is damaged, restore it, or remove it: then no host "+
			"is registered", k.name.NSID, k.name.NQN, name, err)
	}
	k.reading.Unlock()
	k.ns.Restore(now)
	if !k.current(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.object, k.version = o, version // not before: earlier changes are from before now
		k.ns.Move(reservation.Shared)
	}) {
		o.Close()
		return errReplaced
	}
	return nil
}

var errReplaced = errors.New("the namespace has other storage now")

// current calls fn unless the namespace was removed or has other storage meanwhile. It reports
// whether it has called fn.
func (k *kept) current(fn func()) bool {
	k.reservations.mu.Lock()
	defer k.reservations.mu.Unlock()
	is := k.list[k.name] == k
	if is {
		fn()
	}
	return is
}

// Close waits for a write that has begun. If the cluster does not answer, it fences the connection,
// which ends the write.
func (k *kept) Close() {
	k.current(func() { k.ns.Move(reservation.Elsewhere) })
	o, ended := k.object, make(chan struct{})
	var fence sync.WaitGroup
	fence.Go(func() {
		for fenced := false; !fenced; {
			select {
			case <-ended:
				return
			case <-time.After(k.patience):
				fenced = o.FenceSelf() == nil
			}
		}
	})
	k.mu.Lock()
	k.object = nil
	k.mu.Unlock()
	close(ended)
	fence.Wait() // it uses the connection
	o.Close()
}

// save replaces the object. It waits for the cluster's answer for as long as that takes, so the
// result is known, unless the cluster has fenced this gateway.
func (k *kept) save(now *reservation.State) error {
	data, err := state.EncodeReservations(k.name, now)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), k.patience)
	defer cancel()
	if err := k.reserve(ctx, k.group); err != nil {
		return err
	}
	writers := k.writers[k.group]
	writers <- struct{}{}
	defer func() { <-writers }()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.object == nil {
		return errors.New("this gateway does not serve the group")
	}
	version, err := k.object.Write(context.Background(), data, k.version)
	if err == nil {
		k.version = version
	}
	return err
}
