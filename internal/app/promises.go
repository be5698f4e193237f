package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/marks"
	"github.com/nvmf-target/nvmf-target/backend/rbd"
	"github.com/nvmf-target/nvmf-target/config"
	grouprados "github.com/nvmf-target/nvmf-target/internal/group/rados"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// This file keeps promises of namespaces in shared groups in the cluster: reservations, write
// protection and uncorrectable blocks.

// promises has the stores of a target.
type promises struct {
	local  target.Options // has the stores of other namespaces
	told   *notifications
	target *target.Target
	state  *state.Store
	pool   string // with the objects
	// open returns the object with this name. reserve notes that a group has promises and, unless
	// the name is "", that it has this object; reserved reports whether a group of the gateway has.
	open     func(h *rbd.Holder, name string) (grouprados.Object, error)
	reserve  func(ctx context.Context, group uint32, name string) error
	reserved func(name string) bool
	// writers limits the writes of a group in progress. Each takes a call of the connection, and
	// reads share these calls.
	writers  map[uint32]chan struct{}
	patience time.Duration // with the cluster

	mu   sync.Mutex
	list map[state.Name]*kept // of namespaces in shared groups
	// begun has the operations that the cluster has not answered. Each takes a call of the
	// connection, so there is one for each namespace.
	begun map[state.Name]*operation
}

// operation is a read or write of an object.
type operation struct {
	object grouprados.Object
	writes atomic.Bool
	ended  chan struct{}
}

// promiseWriters is the number of objects of a group that are written at a time.
const promiseWriters = 2

// newPromises returns the promises of a target. The caller sets target and state.
func newPromises(g *groups, c *config.Group) *promises {
	p := &promises{
		open: func(h *rbd.Holder, name string) (grouprados.Object, error) {
			return grouprados.Open(h.Cluster, c.Pool, name)
		},
		reserve: func(ctx context.Context, id uint32, name string) error {
			g.mu.Lock()
			one := g.list[id]
			g.mu.Unlock()
			return one.Reserve(ctx, name)
		},
		reserved: func(name string) bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			for _, one := range g.list { // the namespace may have been in another group
				if one.Reserved(name) {
					return true
				}
			}
			return false
		},
		pool: c.Pool, writers: map[uint32]chan struct{}{}, patience: changePatience,
		told: g.told,
		list: map[state.Name]*kept{}, begun: map[state.Name]*operation{},
	}
	for _, id := range c.ANAGroups {
		p.writers[id] = make(chan struct{}, promiseWriters)
	}
	return p
}

// through puts the stores of p in front of the stores of o, if there are shared groups.
func (p *promises) through(o target.Options) target.Options {
	if len(p.writers) == 0 {
		return o
	}
	if o.Protection == nil { // there is no state directory
		o.Reservations, o.Protection = nowhere[reservation.State]{}, nowhere[bool]{}
		o.Uncorrectable = nowhere[marks.Kept]{}
	}
	p.local = o
	o.Reservations, o.Protection, o.Uncorrectable = reservations{p}, protection{p}, marked{p}
	return o
}

// nowhere is a store that stores nothing.
type nowhere[V any] struct{}

var errNoDirectory = errors.New("there is no state directory")

func (nowhere[V]) Load(string, uint32) *V { return nil }

func (nowhere[V]) Save(string, uint32, *V) error { return errNoDirectory }

func (nowhere[V]) Protected(string, uint32) bool { return false }

func (nowhere[V]) SetProtected(string, uint32, bool) error { return errNoDirectory }

// share returns the promises that belong to the image of a namespace, see volumes.Config.
func (p *promises) share(nqn string, nsid uint32, shared bool, group uint32) rbd.Companion {
	name := state.Name{NQN: nqn, NSID: nsid}
	var k *kept
	if shared { // before the lock: the target calls find with a lock of its own
		k = &kept{promises: p, name: name, group: group, ns: p.target.Reservations(nqn, nsid)}
	}
	p.mu.Lock()
	was := p.list[name]
	if delete(p.list, name); shared {
		k.ns.Move(reservation.Elsewhere)
		p.list[name] = k
	}
	p.mu.Unlock() // reactors may wait for it
	if shared {
		k.ns.Share(func(to map[reservation.Host]nvme.ReservationNotification) {
			p.told.add(group, name.Object(), to)
		})
		return k
	}
	if was != nil { // it was removed
		was.ns.Share(nil)
		was.ns.Move(reservation.Here)
	}
	return nil
}

func (p *promises) find(nqn string, nsid uint32) *kept {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.list[state.Name{NQN: nqn, NSID: nsid}]
}

// reservations implements reservation.Store.
type reservations struct{ *promises }

// Load returns reservations of the state directory. Open restores the ones of shared groups.
func (r reservations) Load(nqn string, nsid uint32) *reservation.State {
	return r.local.Reservations.Load(nqn, nsid)
}

func (r reservations) Save(nqn string, nsid uint32, now *reservation.State) error {
	if k := r.find(nqn, nsid); k != nil {
		return k.change(func(s *state.Shared) { s.Reservations = now })
	}
	return r.local.Reservations.Save(nqn, nsid, now)
}

// protection implements controllers.ProtectionStore.
type protection struct{ *promises }

func (p protection) Protected(nqn string, nsid uint32) bool {
	if k := p.find(nqn, nsid); k != nil {
		now := k.now.Load()
		return now != nil && now.Protected
	}
	return p.local.Protection.Protected(nqn, nsid)
}

func (p protection) SetProtected(nqn string, nsid uint32, protected bool) error {
	if k := p.find(nqn, nsid); k != nil {
		return k.change(func(s *state.Shared) { s.Protected = protected })
	}
	return p.local.Protection.SetProtected(nqn, nsid, protected)
}

// marked implements marks.Store.
type marked struct{ *promises }

func (m marked) Load(nqn string, nsid uint32) *marks.Kept {
	if k := m.find(nqn, nsid); k != nil {
		return cmp.Or(k.now.Load(), &state.Shared{}).Uncorrectable
	}
	return m.local.Uncorrectable.Load(nqn, nsid)
}

func (m marked) Save(nqn string, nsid uint32, now *marks.Kept) error {
	if k := m.find(nqn, nsid); k != nil {
		return k.change(func(s *state.Shared) { s.Uncorrectable = now })
	}
	return m.local.Uncorrectable.Save(nqn, nsid, now)
}

// problem returns why a namespace of a group cannot be served, nil if all can.
func (p *promises) problem(group uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.list {
		if k.group == group && k.err != nil {
			return k.err
		}
	}
	return nil
}

// kept has the promises of a namespace in a shared group. They are in an object of the cluster that
// one gateway at a time uses: it reads the object after it has opened the image. It implements
// rbd.Companion.
type kept struct {
	*promises
	name  state.Name
	group uint32
	ns    *reservation.Namespace
	now   atomic.Pointer[state.Shared] // as they were last in the object; nil: not known yet

	mu      sync.Mutex        // held while they are written
	object  grouprados.Object // nil: the image is closed
	version uint64            // of the object
	opened  int               // how often the image was

	err error // of the last Open; guarded by promises.mu
}

// Open reads the promises. The image stays offline if they are not known.
func (k *kept) Open(h *rbd.Holder, identity string) error {
	err := k.load(h, identity)
	k.promises.mu.Lock()
	defer k.promises.mu.Unlock()
	k.err = err
	return err
}

func (k *kept) load(h *rbd.Holder, identity string) error {
	op := &operation{ended: make(chan struct{})}
	if err := k.begin(op); err != nil {
		return k.unknown(err)
	}
	o, err := k.promises.open(h, k.name.Object())
	if err != nil {
		k.end(op)
		return err
	}
	op.object = o
	now, version, err := k.read(op, identity)
	if err == nil && k.find(k.name.NQN, k.name.NSID) != k {
		err = errReplaced
	}
	if err != nil {
		go func() {
			o.Close() // when the cluster has answered
			k.end(op)
		}()
		return k.unknown(err)
	}
	op.writes.Store(false) // they have ended
	k.now.Store(now)
	k.target.RestorePromises(k.name.NQN, k.name.NSID, now.Reservations,
		cmp.Or(now.Uncorrectable, &marks.Kept{}))
	k.end(op) // not before: other storage that is opened meanwhile has newer ones
	if !k.current(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.object, k.version = o, version // not before: earlier changes are from before now
		k.opened++
		k.ns.Move(reservation.Shared)
	}) {
		o.Close()
		return errReplaced
	}
	return nil
}

var errNoAnswer = errors.New("the cluster has not answered an earlier operation")

// begin begins an operation, unless an earlier one has not ended, even one of the previous storage.
func (k *kept) begin(op *operation) error {
	err := errReplaced
	k.current(func() {
		if err = errNoAnswer; k.begun[k.name] == nil {
			k.begun[k.name], err = op, nil
		}
	})
	return err
}

func (k *kept) end(op *operation) {
	k.promises.mu.Lock()
	defer k.promises.mu.Unlock()
	delete(k.begun, k.name)
	close(op.ended)
}

func (k *kept) unknown(err error) error {
	return fmt.Errorf("namespace %d of %s is not served, because its reservations, write "+
		"protection and uncorrectable blocks (object %s) are not known: %w. If the object is "+
		"damaged or missing, restore it, or give them up: echo %s | rados -p %s put %[3]s - . "+
		"Then hosts that were locked out can write, and read the old data of uncorrectable blocks",
		k.name.NSID, k.name.NQN, k.name.Object(), err, state.NoPromises, k.pool)
}

// read returns the content of the object, without marks of other storage.
func (k *kept) read(op *operation, identity string) (*state.Shared, uint64, error) {
	o := op.object
	ctx, cancel := context.WithTimeout(context.Background(), k.patience)
	defer cancel()
	now := &state.Shared{Reservations: &reservation.State{}}
	data, version, err := o.Read(ctx, state.MaxShared+1)
	if err == nil && version != 0 {
		now, err = state.DecodeShared(k.name, data)
	}
	if err == nil && version == 0 && k.reserved(k.name.Object()) {
		err = errors.New("it is missing, although it existed (the record of the group says so)")
	}
	if err == nil {
		err = k.state.Found(k.name, "", version != 0) // a reload may fail yet

		// The promises are known, so a full disk ends no I/O.
		if err != nil && version != 0 {
			k.local.Log.Warn("hosts cannot change reservations, write protection and "+
				"uncorrectable blocks, because the target cannot record that the cluster has them",
				"subsystem", k.name.NQN, "nsid", k.name.NSID, "err", err)
			err = nil
		}
	}
	if err != nil {
		return nil, 0, err
	}
	if now.Uncorrectable != nil && now.Uncorrectable.Identity != identity {
		now.Uncorrectable = nil
	}
	forget, err := k.inherit(now, identity)
	if err == nil && (version != 0 || len(forget) > 0) { // the record may be a new one
		err = k.reserve(ctx, k.group, "")
	}
	if err == nil && len(forget) > 0 {
		data, err = state.EncodeShared(k.name, now)
		if err == nil { // if that is late, it is read again
			op.writes.Store(true)
			version, err = o.Write(ctx, data, version)
		}
		if err == nil {
			err = k.found(ctx)
		}
		for i := 0; i < len(forget) && err == nil; i++ {
			err = forget[i]()
		}
	} else if err == nil && version != 0 { // they are known, so they are served in any case
		_ = k.reserve(ctx, k.group, k.name.Object())
	}
	return now, version, err
}

// found notes that the object is there, for all gateways and for this one, before a promise in it
// is acknowledged.
func (k *kept) found(ctx context.Context) error {
	err := k.reserve(ctx, k.group, k.name.Object())
	if err == nil {
		err = k.state.Found(k.name, k.pool, true)
	}
	return err
}

// inherit adds the promises in the state directory of this gateway, from the time before they were
// shared: reservations only if the object never had any. forget removes them from the directory.
func (k *kept) inherit(now *state.Shared, identity string) (forget []func() error, err error) {
	l, nqn, nsid := &k.local, k.name.NQN, k.name.NSID
	switch r := l.Reservations.Load(nqn, nsid); {
	case r == nil:
	case now.Reservations.Generation == 0, reflect.DeepEqual(r, now.Reservations):
		now.Reservations = r
		forget = append(forget, func() error { return l.Reservations.Save(nqn, nsid, nil) })
	default:
		l.Log.Warn("reservations in the state directory are not used: the cluster has others",
			"subsystem", nqn, "nsid", nsid)
	}
	if l.Protection.Protected(nqn, nsid) {
		now.Protected = true
		forget = append(forget, func() error { return l.Protection.SetProtected(nqn, nsid, false) })
	}
	if m := l.Uncorrectable.Load(nqn, nsid); m != nil && m.Identity == identity {
		now.Uncorrectable = m.With(now.Uncorrectable)
		forget = append(forget, func() error { return l.Uncorrectable.Save(nqn, nsid, nil) })
		err = now.Uncorrectable.Validate()
	}
	return forget, err
}

var errReplaced = errors.New("the namespace has other storage now")

// current calls fn unless the namespace was removed or has other storage meanwhile. It reports
// whether it has called fn.
func (k *kept) current(fn func()) bool {
	k.promises.mu.Lock()
	defer k.promises.mu.Unlock()
	is := k.list[k.name] == k
	if is {
		fn()
	}
	return is
}

// Close waits for a write that has begun, also that of an Open that has failed: later it would
// change the object behind another gateway. If the cluster does not answer, it fences the
// connection, which ends the write.
func (k *kept) Close() {
	k.current(func() { k.ns.Move(reservation.Elsewhere) })
	k.promises.mu.Lock()
	moves := k.begun[k.name]
	k.promises.mu.Unlock()
	o, ended := k.object, make(chan struct{})
	at := o
	switch {
	case o != nil:
		moves = nil
	case moves != nil && moves.writes.Load():
		at = moves.object
	default:
		return
	}
	var fence sync.WaitGroup
	fence.Go(func() {
		for fenced := false; !fenced; {
			select {
			case <-ended:
				return
			case <-time.After(k.patience):
				fenced = at.FenceSelf() == nil
			}
		}
	})
	if moves != nil {
		<-moves.ended
	}
	k.mu.Lock()
	k.object = nil
	k.mu.Unlock()
	close(ended)
	fence.Wait() // it uses the connection
	if o != nil {
		o.Close()
	}
}

// errNotServed has a status that hosts repeat on another path.
var errNotServed = fmt.Errorf("this gateway does not serve the group: %w", backend.ErrOffline)

// change replaces the object. It waits for the cluster's answer for as long as that takes, so the
// result is known, unless the cluster has fenced this gateway. It fails if the image is closed
// meanwhile, because another gateway may have changed the object since.
func (k *kept) change(fn func(*state.Shared)) error {
	k.mu.Lock()
	opened := k.opened
	k.mu.Unlock()
	err := k.within(func(ctx context.Context) error { return k.reserve(ctx, k.group, "") })
	if err == nil {
		err = k.replace(opened, fn)
	}
	if err == nil { // Close does not wait for it, and it changes no object
		err = k.within(k.found)
	}
	return err
}

func (k *kept) within(fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), k.patience)
	defer cancel()
	return fn(ctx)
}

// replace replaces the object if the image was opened as often.
func (k *kept) replace(opened int, fn func(*state.Shared)) error {
	k.mu.Lock() // first, so that one namespace has one writer
	defer k.mu.Unlock()
	if k.object == nil || k.opened != opened { // before it waits: load takes the lock
		return errNotServed
	}
	op := &operation{ended: make(chan struct{})}
	if err := k.begin(op); err != nil {
		return fmt.Errorf("%w: %w", errNotServed, err)
	}
	defer k.end(op)
	writers := k.writers[k.group]
	writers <- struct{}{}
	defer func() { <-writers }()
	next := *k.now.Load()
	fn(&next)
	data, err := state.EncodeShared(k.name, &next)
	if err != nil {
		return err
	}
	version, err := k.object.Write(context.Background(), data, k.version)
	if err == nil {
		k.version = version
		k.now.Store(&next)
	}
	return err
}
