package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unique"

	"github.com/nvmf-target/nvmf-target/backend/rbd"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/group/rados"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

const reservedNQN = "nqn.2026-11.io.nvmf-target:reserved"

// memoryObject is an object of a cluster in memory.
type memoryObject struct {
	mu       sync.Mutex
	data     []byte
	version  uint64
	err      error         // of the next calls
	hung     chan struct{} // not nil: calls wait for it
	entered  chan struct{} // gets a value for each Write that waits
	reads    int           // that have waited
	fences   int           // attempts, the first of which fails
	reserved bool          // the record notes that the group may have reservations
}

func (o *memoryObject) Read(ctx context.Context, _ int) ([]byte, uint64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.hung != nil {
		o.reads++
		select {
		case <-o.hung:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
	return o.data, o.version, o.err
}

func (o *memoryObject) Write(_ context.Context, data []byte, version uint64) (uint64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.hung != nil:
		o.entered <- struct{}{}
		<-o.hung
		return 0, errors.New("fenced")
	case o.err != nil:
		return 0, o.err
	case version != o.version:
		return 0, errors.New("another version")
	case !o.reserved:
		return 0, errors.New("a gateway of an older version could drop it")
	}
	o.data, o.version = data, version+1
	return o.version, nil
}

func (o *memoryObject) FenceSelf() error {
	if o.fences++; o.fences == 1 {
		return errors.New("no monitor answers")
	}
	close(o.hung)
	return nil
}

func (o *memoryObject) Close() {
	if o.hung != nil {
		<-o.hung
	}
}

// keeper is a gateway that keeps the reservations of namespace 1.
type keeper struct {
	*testing.T
	r    *reservations
	with rbd.Companion
	ns   *reservation.Namespace
}

// newKeeper returns a gateway, with the image closed.
func newKeeper(t *testing.T, o *memoryObject) *keeper {
	k := &keeper{T: t, r: newGroups(&config.Group{ANAGroups: []uint32{7}}).kept}
	k.r.open = func(*rbd.Holder, string) (rados.Object, error) { return o, nil }
	k.r.reserve = func(_ context.Context, group uint32) error {
		testutil.Equal(t, group, 7, "the group")
		o.mu.Lock()
		defer o.mu.Unlock()
		o.reserved = true
		return nil
	}
	tg := target.New(target.Options{Log: slog.New(slog.DiscardHandler), Reservations: k.r})
	k.r.of = tg.Reservations
	k.with = k.r.share(reservedNQN, 1, true, 7)
	k.ns = tg.Reservations(reservedNQN, 1)
	return k
}

// do carries out a command of a host.
func (k *keeper) do(host byte, op nvme.Opcode, a nvme.ReservationAction, typ nvme.ReservationType,
	current, other uint64,
) nvme.Status {
	return testutil.Receive(k, "the status", k.start(host, op, a, typ, current, other))
}

func (k *keeper) start(host byte, op nvme.Opcode, a nvme.ReservationAction,
	typ nvme.ReservationType, current, other uint64,
) <-chan nvme.Status {
	q := &reservation.Request{
		Op: op, Known: func(string) bool { return true },
		Host: reservation.Host{HostID: [16]byte{host}, NQN: fmt.Sprint("h", host)},
	}
	q.ReservationSQE.Set(a, false, typ, 0)
	q.Keys.Set(current, other)
	done := make(chan nvme.Status, 1)
	k.ns.Submit(&reservation.Change{
		Log:   ratelog.New(slog.New(slog.DiscardHandler)).Peer(netip.AddrPort{}),
		Done:  func(st nvme.Status) { done <- st },
		Apply: func(s *reservation.State) (reservation.Outcome, nvme.Status) { return s.Apply(q) },
	})
	return done
}

func (k *keeper) register(host byte) nvme.Status {
	return k.do(host, nvme.IOReservationRegister, nvme.ReservationRegister, 0, 0, uint64(host))
}

// TestTakeover: a gateway that opens an image has the registrants and each type of reservation of
// the one before, also if they do not persist. One that does not have it open answers with an ANA
// status.
func TestTakeover(t *testing.T) {
	for typ := nvme.WriteExclusive; typ <= nvme.ExclusiveAccessAllRegistrants; typ++ {
		o := &memoryObject{}
		a, b := newKeeper(t, o), newKeeper(t, o)
		testutil.Equal(t, a.register(1), nvme.ANAInaccessible, "before the image is open")
		testutil.Must(t, a.with.Open(nil))
		testutil.Equal(t, a.register(1), nvme.Success, "register")
		testutil.Equal(t, a.register(2), nvme.Success, "register")
		testutil.Equal(t, a.do(1, nvme.IOReservationAcquire, nvme.ReservationAcquire, typ, 1, 0),
			nvme.Success, "acquire")
		was := a.ns.State()
		a.with.Close()
		testutil.Equal(t, a.register(3), nvme.ANAInaccessible, "after it was closed")
		testutil.True(t, a.ns.Elsewhere() && b.ns.Elsewhere(), "one of them answers reports")
		testutil.Must(t, b.with.Open(nil))
		now := b.ns.State()
		testutil.True(t, now.Type == typ && len(now.Registrants) == 2 && !now.PTPL &&
			now.Generation == was.Generation && now.Holder == was.Holder, "%+v: %+v", was, now)
		third := reservation.Host{HostID: [16]byte{3}, NQN: "h3"}
		testutil.True(t, !b.ns.Access().Permits(unique.Make(third), reservation.GroupWrite),
			"%v does not keep others out", typ)
		key := uint64(1)
		if typ.AllRegistrants() {
			key = 0
		}
		st := b.do(2, nvme.IOReservationAcquire, nvme.ReservationPreemptAndAbort, typ, 2, key)
		testutil.Equal(t, st, nvme.Success, "preempt and abort")
		testutil.Equal(t, len(b.ns.State().Registrants), 1, "registrants")
	}
}

// TestFormerHolder: a gateway that has lost an image without noticing cannot replace the
// reservations of its successor, and reports that.
func TestFormerHolder(t *testing.T) {
	o := &memoryObject{}
	a, b := newKeeper(t, o), newKeeper(t, o)
	testutil.Must(t, a.with.Open(nil))
	testutil.Equal(t, a.register(1), nvme.Success, "register")
	testutil.Must(t, b.with.Open(nil))
	testutil.Equal(t, b.register(2), nvme.Success, "register")
	testutil.Equal(t, a.register(3), nvme.InternalError, "register at the former holder")
	testutil.Equal(t, len(a.ns.State().Registrants), 1, "registrants there")
	b.with.Close()
	testutil.Must(t, b.with.Open(nil))
	testutil.Equal(t, len(b.ns.State().Registrants), 2, "registrants")
}

// TestReservationsUnknown: an image with reservations that cannot be read, or that are damaged, of
// another namespace, or too large, stays offline, with the reason in the status of its group.
func TestReservationsUnknown(t *testing.T) {
	o := &memoryObject{}
	a := newKeeper(t, o)
	testutil.Must(t, a.with.Open(nil))
	testutil.Equal(t, a.register(1), nvme.Success, "register")
	a.with.Close()
	good := o.data
	foreign := testutil.Value(state.EncodeReservations(state.Name{NQN: reservedNQN, NSID: 2},
		a.ns.State()))(t)
	for want, change := range map[string]func(){
		"no answer":   func() { o.err = errors.New("no answer") },
		"damaged":     func() { o.data = good[:len(good)-1] },
		"checksum":    func() { o.data = append([]byte(" "), good...) },
		"namespace 2": func() { o.data = foreign },
		"too large":   func() { o.data = make([]byte, state.MaxReservations+1) },
	} {
		change()
		b := newKeeper(t, o)
		testutil.Fails(t, b.with.Open(nil), want, "open")
		testutil.Fails(t, b.r.problem(7), "is not served", "%s: the status", want)
		testutil.Equal(t, b.register(1), nvme.ANAInaccessible, want)
		o.data, o.err = good, nil
		testutil.Until(t, "it is open", func() bool { return b.with.Open(nil) == nil })
		testutil.Check(t, b.r.problem(7))
		testutil.Equal(t, len(b.ns.State().Registrants), 1, "registrants after a repair")
	}
}

// TestReservationsNotKept: a change that cannot be kept fails, and may be repeated. One that does
// not end is ended by a fence when the image is closed, also if the first fence fails.
func TestReservationsNotKept(t *testing.T) {
	o := &memoryObject{}
	a := newKeeper(t, o)
	testutil.Must(t, a.with.Open(nil))
	o.err = errors.New("the pool is full")
	testutil.Equal(t, a.register(1), nvme.InternalError, "register in a full pool")
	o.err = nil
	reserve := a.r.reserve
	a.r.reserve = func(context.Context, uint32) error { return errors.New("no answer") }
	testutil.Equal(t, a.register(1), nvme.InternalError, "register without the record")
	testutil.Equal(t, len(a.ns.State().Registrants), 0, "registrants")
	a.r.reserve = reserve
	testutil.Equal(t, a.register(1), nvme.Success, "register")

	o.hung, o.entered = make(chan struct{}), make(chan struct{}, 2)
	hung := a.start(2, nvme.IOReservationRegister, nvme.ReservationRegister, 0, 0, 2)
	testutil.Receive(t, "the write", o.entered)
	a.r.patience = time.Millisecond
	a.with.Close()
	testutil.Equal(t, testutil.Receive(t, "the status", hung), nvme.ANAInaccessible, "register")
}

// TestLateChange: a change that waited while the image was closed does not replace the state
// that another gateway has written meanwhile.
func TestLateChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &memoryObject{}
		a, b := newKeeper(t, o), newKeeper(t, o)
		testutil.Must(t, a.with.Open(nil))
		testutil.Equal(t, a.register(1), nvme.Success, "register")
		goOn := make(chan struct{})
		a.r.reserve = func(context.Context, uint32) error { <-goOn; return nil }
		late := a.start(2, nvme.IOReservationRegister, nvme.ReservationRegister, 0, 0, 2)
		synctest.Wait()
		a.with.Close()
		testutil.Must(t, b.with.Open(nil))
		testutil.Equal(t, b.register(3), nvme.Success, "register at the other gateway")
		b.with.Close()
		opened := make(chan error, 1)
		go func() { opened <- a.with.Open(nil) }()
		synctest.Wait()
		close(goOn)
		testutil.Must(t, <-opened)
		testutil.Equal(t, <-late, nvme.ANAInaccessible, "the change that waited")
		kept := testutil.Value(state.DecodeReservations(state.Name{NQN: reservedNQN, NSID: 1},
			o.data))(t)
		for _, s := range []*reservation.State{kept, a.ns.State()} {
			testutil.True(t, len(s.Registrants) == 2 && s.Registrants[1].Key == 3, "%+v", s)
		}
	})
}

// TestReservationsHang: an image is tried again if its reservations cannot be read, but one read at
// a time waits for the cluster.
func TestReservationsHang(t *testing.T) {
	o := &memoryObject{hung: make(chan struct{})}
	a := newKeeper(t, o)
	a.r.patience = time.Millisecond
	for range 3 {
		testutil.Fails(t, a.with.Open(nil), "are not known", "open")
	}
	testutil.Equal(t, o.reads, 1, "reads")
	close(o.hung)
	testutil.Until(t, "the image is open", func() bool { return a.with.Open(nil) == nil })
}

// TestReservationsReplaced: the end of storage that a namespace had before does not concern it.
func TestReservationsReplaced(t *testing.T) {
	o := &memoryObject{}
	a := newKeeper(t, o)
	testutil.Must(t, a.with.Open(nil))
	next := a.r.share(reservedNQN, 1, true, 7)
	testutil.Must(t, next.Open(nil))
	a.with.Close()
	testutil.Equal(t, a.register(1), nvme.Success, "register")
	testutil.Fails(t, a.with.Open(nil), "other storage", "the former storage")
	testutil.Equal(t, a.register(2), nvme.Success, "register")
}

// TestReservationsLocal: reservations of other namespaces stay in this target.
func TestReservationsLocal(t *testing.T) {
	a := newKeeper(t, &memoryObject{})
	testutil.True(t, a.r.share(reservedNQN, 2, false, 1) == nil, "it is shared")
	testutil.Fails(t, a.r.Save(reservedNQN, 2, &reservation.State{}), "no state directory", "")
	testutil.True(t, a.r.share(reservedNQN, 1, false, 1) == nil, "it is shared")
	testutil.Equal(t, a.register(1), nvme.Success, "a namespace that is not shared any more")
}
