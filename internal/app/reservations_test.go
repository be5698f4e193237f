package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unique"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/marks"
	"github.com/nvmf-target/nvmf-target/backend/rbd"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/group"
	"github.com/nvmf-target/nvmf-target/internal/group/rados"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

const (
	reservedNQN = "nqn.2026-11.io.nvmf-target:reserved"
	rbdImage    = "rbd:1/image" // identity of the storage
)

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
	listed   bool          // the record has the object
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

// keeper is a gateway that keeps the promises of namespace 1.
type keeper struct {
	*testing.T
	r    *promises
	with rbd.Companion
	ns   *reservation.Namespace
	log  strings.Builder // of r
}

// newKeeper returns a gateway, with the image closed, and perhaps with a state directory.
func newKeeper(t *testing.T, o *memoryObject, dir ...*state.Store) *keeper {
	k := &keeper{T: t, r: newGroups(&config.Group{Pool: "nvme", ANAGroups: []uint32{7}}).kept}
	k.r.open = func(*rbd.Holder, string) (rados.Object, error) { return o, nil }
	k.r.reserve = func(_ context.Context, group uint32, name string) error {
		testutil.Equal(t, group, 7, "the group")
		o.mu.Lock()
		defer o.mu.Unlock()
		o.reserved, o.listed = true, o.listed || name != ""
		return nil
	}
	k.r.reserved = func(string) bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.listed
	}
	options := target.Options{Log: slog.New(slog.DiscardHandler)}
	k.r.state = testutil.Value(state.Open(""))(t)
	for _, s := range dir {
		k.r.state = s
		options.Reservations, options.Protection = s.Reservations, s.Protection
		options.Uncorrectable = s.Uncorrectable
	}
	k.r.target = target.New(k.r.through(options))
	k.r.local.Log = slog.New(slog.NewTextHandler(&k.log, nil))
	k.with = k.r.share(reservedNQN, 1, true, 7)
	k.ns = k.r.target.Reservations(reservedNQN, 1)
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

func (k *keeper) protect(on bool) error {
	return protection{k.r}.SetProtected(reservedNQN, 1, on)
}

func (k *keeper) mark(blocks ...int64) error {
	return marked{k.r}.Save(reservedNQN, 1, markedBlocks(blocks...))
}

func markedBlocks(blocks ...int64) *marks.Kept {
	m := &marks.Kept{Identity: rbdImage}
	for _, b := range blocks {
		m.Ranges = append(m.Ranges, backend.Range{Off: b * 512, End: (b + 1) * 512})
	}
	return m
}

// has checks the write protection and the marked blocks.
func (k *keeper) has(protected bool, blocks ...int64) {
	k.Helper()
	testutil.Equal(k, protection{k.r}.Protected(reservedNQN, 1), protected, "write protection")
	var got []int64
	if m := (marked{k.r}).Load(reservedNQN, 1); m != nil {
		for _, r := range m.Ranges {
			got = append(got, r.Off/512)
		}
	}
	testutil.True(k, slices.Equal(got, blocks), "blocks %v are marked, want %v", got, blocks)
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
		testutil.Must(t, a.with.Open(nil, rbdImage))
		testutil.Equal(t, a.register(1), nvme.Success, "register")
		testutil.Equal(t, a.register(2), nvme.Success, "register")
		testutil.Equal(t, a.do(1, nvme.IOReservationAcquire, nvme.ReservationAcquire, typ, 1, 0),
			nvme.Success, "acquire")
		was := a.ns.State()
		a.with.Close()
		testutil.Equal(t, a.register(3), nvme.ANAInaccessible, "after it was closed")
		testutil.True(t, a.ns.Elsewhere() && b.ns.Elsewhere(), "one of them answers reports")
		testutil.Must(t, b.with.Open(nil, rbdImage))
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

// TestOtherPromises: write protection and uncorrectable blocks stay through a takeover, and no
// change of one promise loses another one. Marks of other storage do not count. A gateway that does
// not have the image open cannot change them.
func TestOtherPromises(t *testing.T) {
	o := &memoryObject{}
	a, b := newKeeper(t, o), newKeeper(t, o)
	for range promiseWriters { // of other namespaces wait for the cluster
		a.r.writers[7] <- struct{}{}
	}
	done := make(chan error, 1)
	go func() { done <- a.protect(true) }()
	testutil.Is(t, testutil.Receive(t, "the error", done), backend.ErrOffline, "before it is open")
	for range promiseWriters {
		<-a.r.writers[7]
	}
	testutil.Must(t, a.with.Open(nil, rbdImage))
	a.has(false)
	testutil.Must(t, a.protect(true))
	testutil.Must(t, a.mark(1, 3))
	testutil.Equal(t, a.register(1), nvme.Success, "register")
	o.err = errors.New("the pool is full")
	testutil.Is(t, a.protect(false), o.err, "in a full pool")
	testutil.Is(t, a.mark(), o.err, "in a full pool")
	o.err = nil
	a.has(true, 1, 3)
	a.with.Close()
	testutil.Is(t, a.mark(), backend.ErrOffline, "after it was closed")
	testutil.Must(t, b.with.Open(nil, rbdImage))
	b.has(true, 1, 3)
	testutil.Equal(t, len(b.ns.State().Registrants), 1, "registrants")
	testutil.Must(t, b.protect(false))
	testutil.Must(t, b.mark(1))
	b.with.Close()
	testutil.Must(t, a.with.Open(nil, rbdImage))
	a.has(false, 1)
	a.with.Close()
	testutil.Must(t, a.with.Open(nil, "rbd:1/other"))
	a.has(false)
}

// TestInherited: the first gateway that opens an image moves the promises of the namespace from its
// state directory to the cluster. The image stays offline until it has.
func TestInherited(t *testing.T) {
	s := testutil.Value(state.Open(t.TempDir()))(t)
	defer func() { testutil.Check(t, s.Close()) }()
	testutil.Must(t, s.Protection.SetProtected(reservedNQN, 1, true))
	testutil.Must(t, s.Uncorrectable.Save(reservedNQN, 1, markedBlocks(1)))
	five := &reservation.State{Generation: 5, PTPL: true}
	testutil.Must(t, s.Reservations.Save(reservedNQN, 1, five))
	o := &memoryObject{}
	a, b := newKeeper(t, o, s), newKeeper(t, o)
	reserve := a.r.reserve
	a.r.reserve = func(context.Context, uint32, string) error { return errors.New("no answer") }
	testutil.Fails(t, a.with.Open(nil, rbdImage), "no answer", "open")
	a.r.reserve = reserve
	testutil.Until(t, "the image is open", func() bool { return a.with.Open(nil, rbdImage) == nil })
	for _, k := range []*keeper{a, b} {
		k.has(true, 1)
		testutil.Equal(t, k.ns.State().Generation, 5, "generation")
		k.with.Close()
		testutil.Must(t, b.with.Open(nil, rbdImage))
	}
	testutil.True(t, !s.Protection.Protected(reservedNQN, 1) &&
		s.Uncorrectable.Load(reservedNQN, 1) == nil && s.Reservations.Load(reservedNQN, 1) == nil,
		"the state directory still has them")
}

// TestInheritedLater: a later gateway adds write protection and uncorrectable blocks of its state
// directory. Reservations stay there if the cluster has others, and none is deleted before it is in
// the cluster.
func TestInheritedLater(t *testing.T) {
	s := testutil.Value(state.Open(t.TempDir()))(t)
	defer func() { testutil.Check(t, s.Close()) }()
	o := &memoryObject{}
	a, b := newKeeper(t, o), newKeeper(t, o, s)
	testutil.Must(t, a.with.Open(nil, rbdImage))
	testutil.Must(t, a.mark(1, 4))
	a.with.Close()
	testutil.Must(t, s.Uncorrectable.Save(reservedNQN, 1, markedBlocks(1, 6)))
	five, nine := &reservation.State{Generation: 5, PTPL: true}, &reservation.State{Generation: 9}
	testutil.Must(t, s.Reservations.Save(reservedNQN, 1, five))
	testutil.Must(t, b.with.Open(nil, rbdImage))
	testutil.Equal(t, b.ns.State().Generation, 5, "generation without others in the cluster")
	b.has(false, 1, 4, 6)
	b.with.Close()
	testutil.Must(t, s.Protection.SetProtected(reservedNQN, 1, true))
	testutil.Must(t, s.Reservations.Save(reservedNQN, 1, nine))
	testutil.Must(t, b.with.Open(nil, rbdImage))
	testutil.Equal(t, b.ns.State().Generation, 5, "generation")
	b.has(true, 1, 4, 6)
	testutil.True(t, s.Reservations.Load(reservedNQN, 1) == nine, "the others are deleted")
	testutil.True(t, strings.Contains(b.log.String(), "the cluster has others"), "no warning")
	testutil.True(t, s.Uncorrectable.Load(reservedNQN, 1) == nil, "the blocks are there twice")
}

// slowObject answers a write after its deadline.
type slowObject struct {
	*memoryObject
	answer chan struct{} // ends the write
	fenced error
}

func (o *slowObject) Write(ctx context.Context, _ []byte, _ uint64) (uint64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

func (o *slowObject) FenceSelf() error {
	if o.fenced == nil {
		o.fenced = errors.New("no monitor answers") // the first time
		return o.fenced
	}
	close(o.answer)
	return nil
}

func (o *slowObject) Close() { <-o.answer }

// TestInheritedLate: a gateway whose promises of the state directory are written late does not give
// the image away before the write has ended, so it changes nothing that another one has read. The
// image does not get other storage either.
func TestInheritedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &memoryObject{}
		slow := &slowObject{memoryObject: o, answer: make(chan struct{})}
		a := newKeeper(t, o)
		a.r.local.Protection = always{}
		a.r.open = func(*rbd.Holder, string) (rados.Object, error) { return slow, nil }
		testutil.Fails(t, a.with.Open(nil, rbdImage), "deadline", "open")
		next := a.r.share(reservedNQN, 1, true, 7)
		testutil.Fails(t, next.Open(nil, rbdImage), "earlier operation", "other storage")
		for _, with := range []rbd.Companion{a.with, next} {
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				with.Close()
			}()
			synctest.Wait()
			if with == a.with {
				select {
				case <-closed:
					t.Error("the image is closed, and the write may still be carried out")
				default:
				}
			}
			<-closed // after a fence
		}
		a.with.Close() // again
	})
}

// always is write protection of all namespaces.
type always struct{ nowhere[bool] }

func (always) Protected(string, uint32) bool { return true }

// TestFormerHolder: a gateway that has lost an image without noticing cannot replace the
// reservations of its successor, and reports that.
func TestFormerHolder(t *testing.T) {
	o := &memoryObject{}
	a, b := newKeeper(t, o), newKeeper(t, o)
	testutil.Must(t, a.with.Open(nil, rbdImage))
	testutil.Equal(t, a.register(1), nvme.Success, "register")
	testutil.Must(t, b.with.Open(nil, rbdImage))
	testutil.Equal(t, b.register(2), nvme.Success, "register")
	testutil.Equal(t, a.register(3), nvme.InternalError, "register at the former holder")
	testutil.Equal(t, len(a.ns.State().Registrants), 1, "registrants there")
	b.with.Close()
	testutil.Must(t, b.with.Open(nil, rbdImage))
	testutil.Equal(t, len(b.ns.State().Registrants), 2, "registrants")
}

// TestReservationsUnknown: an image with reservations that cannot be read, or that are damaged, of
// another namespace, or too large, stays offline, with the reason in the status of its group.
func TestReservationsUnknown(t *testing.T) {
	o := &memoryObject{}
	a := newKeeper(t, o)
	testutil.Must(t, a.with.Open(nil, rbdImage))
	testutil.Equal(t, a.register(1), nvme.Success, "register")
	a.with.Close()
	good := o.data
	foreign := testutil.Value(state.EncodeShared(state.Name{NQN: reservedNQN, NSID: 2},
		&state.Shared{Reservations: a.ns.State()}))(t)
	for want, change := range map[string]func(){
		"no answer":   func() { o.err = errors.New("no answer") },
		"damaged":     func() { o.data = good[:len(good)-1] },
		"checksum":    func() { o.data = append([]byte(" "), good...) },
		"namespace 2": func() { o.data = foreign },
		"too large":   func() { o.data = make([]byte, state.MaxShared+1) },
		"it has format 3, and this program knows format 2": func() {
			o.data = bytes.Replace(good, []byte(`"version": 2`), []byte(`"version": 3`), 1)
		},
		"it is of the kind": func() {
			o.data = bytes.Replace(good, []byte(`"reservations"`), []byte(`"protected"`), 1)
		},
		"unexpected end": func() { o.data = nil }, // it exists
	} {
		change()
		b := newKeeper(t, o)
		testutil.Fails(t, b.with.Open(nil, rbdImage), want, "open")
		testutil.Fails(t, b.r.problem(7), "is not served", "%s: the status", want)
		testutil.Equal(t, b.register(1), nvme.ANAInaccessible, want)
		o.data, o.err = good, nil
		testutil.Until(t, "it is open", func() bool { return b.with.Open(nil, rbdImage) == nil })
		testutil.Check(t, b.r.problem(7))
		testutil.Equal(t, len(b.ns.State().Registrants), 1, "registrants after a repair")
	}
}

// TestReservationsRemoved: an image whose promises were removed while no gateway had it open stays
// offline at gateways that have known them, until the operator has decided.
func TestReservationsRemoved(t *testing.T) {
	dir, o := t.TempDir(), &memoryObject{}
	s := testutil.Value(state.Open(dir))(t)
	defer func() { testutil.Check(t, s.Close()) }()
	a := newKeeper(t, o, s)
	open := func() error { return a.with.Open(nil, rbdImage) }
	opens := func() { testutil.Until(t, "it is open", func() bool { return open() == nil }) }
	opens()
	a.with.Close()
	opens() // no promises were made
	testutil.Must(t, a.protect(true))
	a.with.Close()
	data, version := o.data, o.version
	testutil.True(t, o.listed, "other gateways do not know")
	o.data, o.version, o.listed = nil, 0, false
	testutil.Fails(t, open(), "although it existed", "open")
	a = newKeeper(t, o, s)
	testutil.Fails(t, open(), "although it existed", "open after a restart")
	file := filepath.Join("shared", state.Name{NQN: reservedNQN, NSID: 1}.ID()+".json")
	testutil.Fails(t, a.r.problem(7), file, "the status")
	o.data, o.version = data, version
	opens()
	a.has(true)
	a.with.Close()
	testutil.True(t, o.listed, "a gateway that has opened it does not list it")
	o.data, o.version = nil, 0
	testutil.Must(t, os.Remove(filepath.Join(dir, file)))
	a = newKeeper(t, o) // which has never seen it
	testutil.Fails(t, open(), "the record of the group says so", "open at another gateway")
	testutil.Fails(t, a.r.problem(7), "echo none | rados -p nvme put nvmf.", "the status")
	o.data, o.version = []byte("none\n"), 1
	opens()
	a.has(false)
	testutil.Must(t, a.protect(true))
	a.with.Close()
	opens()
	a.has(true)
}

// TestReservationsNotNoted: a gateway that cannot write its state directory serves an image with
// the promises of before, but makes no others.
func TestReservationsNotNoted(t *testing.T) {
	dir, o := t.TempDir(), &memoryObject{}
	a := newKeeper(t, o)
	testutil.Must(t, a.with.Open(nil, rbdImage))
	testutil.Must(t, a.protect(true))
	a.with.Close()
	s := testutil.Value(state.Open(dir))(t)
	defer func() { testutil.Check(t, s.Close()) }()
	inTheWay := filepath.Join(dir, "shared")
	testutil.Must(t, os.WriteFile(inTheWay, nil, 0o600))
	b := newKeeper(t, o, s)
	testutil.Must(t, b.with.Open(nil, rbdImage))
	b.has(true)
	testutil.Fails(t, b.protect(false), "cannot be written", "a change")
	testutil.Must(t, os.Remove(inTheWay))
	testutil.Must(t, b.protect(false))
	b.has(false)
}

// TestReservationsNotKept: a change that cannot be kept fails, and may be repeated. One that does
// not end is ended by a fence when the image is closed, also if the first fence fails.
func TestReservationsNotKept(t *testing.T) {
	o := &memoryObject{}
	a := newKeeper(t, o)
	testutil.Must(t, a.with.Open(nil, rbdImage))
	o.err = errors.New("the pool is full")
	testutil.Equal(t, a.register(1), nvme.InternalError, "register in a full pool")
	o.err = nil
	reserve := a.r.reserve
	a.r.reserve = func(context.Context, uint32, string) error { return errors.New("no answer") }
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
		testutil.Must(t, a.with.Open(nil, rbdImage))
		testutil.Equal(t, a.register(1), nvme.Success, "register")
		goOn := make(chan struct{})
		a.r.reserve = func(context.Context, uint32, string) error { <-goOn; return nil }
		late := a.start(2, nvme.IOReservationRegister, nvme.ReservationRegister, 0, 0, 2)
		synctest.Wait()
		a.with.Close()
		testutil.Must(t, b.with.Open(nil, rbdImage))
		testutil.Equal(t, b.register(3), nvme.Success, "register at the other gateway")
		b.with.Close()
		opened := make(chan error, 1)
		go func() { opened <- a.with.Open(nil, rbdImage) }()
		synctest.Wait()
		close(goOn)
		testutil.Must(t, <-opened)
		testutil.Equal(t, <-late, nvme.ANAInaccessible, "the change that waited")
		kept := testutil.Value(state.DecodeShared(state.Name{NQN: reservedNQN, NSID: 1}, o.data))(t)
		for _, s := range []*reservation.State{kept.Reservations, a.ns.State()} {
			testutil.True(t, len(s.Registrants) == 2 && s.Registrants[1].Key == 3, "%+v", s)
		}
	})
}

// TestLateProtection: the same with write protection.
func TestLateProtection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &memoryObject{reserved: true}
		a, b := newKeeper(t, o), newKeeper(t, o)
		testutil.Must(t, a.with.Open(nil, rbdImage))
		goOn, late := make(chan struct{}), make(chan error, 1)
		a.r.reserve = func(context.Context, uint32, string) error { <-goOn; return nil }
		go func() { late <- a.protect(false) }()
		synctest.Wait()
		a.with.Close()
		testutil.Must(t, b.with.Open(nil, rbdImage))
		testutil.Must(t, b.protect(true))
		b.with.Close()
		opened := make(chan error, 1)
		go func() { opened <- a.with.Open(nil, rbdImage) }()
		synctest.Wait()
		close(goOn)
		testutil.Must(t, <-opened)
		testutil.Is(t, <-late, backend.ErrOffline, "the change that waited")
		a.has(true)
	})
}

// TestReservationsHang: an image is tried again if its reservations cannot be read, but one read at
// a time waits for the cluster.
func TestReservationsHang(t *testing.T) {
	o := &memoryObject{hung: make(chan struct{})}
	a := newKeeper(t, o)
	a.r.patience = time.Millisecond
	for range 3 {
		testutil.Fails(t, a.with.Open(nil, rbdImage), "are not known", "open")
	}
	testutil.Equal(t, o.reads, 1, "reads")
	close(o.hung)
	testutil.Until(t, "the image is open", func() bool { return a.with.Open(nil, rbdImage) == nil })
}

// TestReservationsReplaced: the end of storage that a namespace had before does not concern it.
func TestReservationsReplaced(t *testing.T) {
	o := &memoryObject{}
	a := newKeeper(t, o)
	testutil.Must(t, a.with.Open(nil, rbdImage))
	next := a.r.share(reservedNQN, 1, true, 7)
	testutil.Must(t, next.Open(nil, rbdImage))
	a.with.Close()
	testutil.Equal(t, a.register(1), nvme.Success, "register")
	testutil.Fails(t, a.with.Open(nil, rbdImage), "other storage", "the former storage")
	testutil.Equal(t, a.register(2), nvme.Success, "register")
}

// TestReservationsRolledBack: storage that gets the promises while the namespace gets other storage
// again, because a reload has failed, does not undo what hosts do with that.
func TestReservationsRolledBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newKeeper(t, &memoryObject{})
		testutil.Must(t, a.with.Open(nil, rbdImage))
		reserve, goOn := a.r.reserve, make(chan struct{})
		a.r.reserve = func(context.Context, uint32, string) error { <-goOn; return nil }
		late := a.start(1, nvme.IOReservationRegister, nvme.ReservationRegister, 0, 0, 1)
		synctest.Wait()
		a.with.Close()
		next, opened := a.r.share(reservedNQN, 1, true, 7), make(chan error, 1)
		go func() { opened <- next.Open(nil, rbdImage) }() // which waits for that change
		synctest.Wait()
		back, again := a.r.share(reservedNQN, 1, true, 7), make(chan error, 1)
		go func() { again <- back.Open(nil, rbdImage) }()
		synctest.Wait()
		close(goOn)
		testutil.Fails(t, <-again, "earlier operation", "the storage before")
		testutil.Fails(t, <-opened, "other storage", "the next storage")
		testutil.Equal(t, <-late, nvme.ANAInaccessible, "the change that waited")
		a.r.reserve = reserve
		testutil.Must(t, back.Open(nil, rbdImage))
		testutil.Equal(t, a.register(2), nvme.Success, "register")
	})
}

// loading is a store of reservations that calls a function to load some.
type loading struct {
	nowhere[reservation.State]
	fn func() *reservation.State
}

func (l loading) Load(string, uint32) *reservation.State { return l.fn() }

// TestShareLocks: the lock of promises is free while the target, which has a lock of its own, loads
// reservations of a new namespace: with that lock it asks whether others are write protected.
func TestShareLocks(t *testing.T) {
	p, loads := newKeeper(t, &memoryObject{}).r, 0
	p.local.Reservations = loading{fn: func() *reservation.State {
		loads++
		testutil.MustTrue(t, p.mu.TryLock(), "it is locked")
		p.mu.Unlock()
		return nil
	}}
	p.share(reservedNQN, 2, true, 7)
	testutil.Equal(t, loads, 1, "loads")
}

// TestReservationsLocal: reservations of other namespaces stay in this target.
func TestReservationsLocal(t *testing.T) {
	a := newKeeper(t, &memoryObject{})
	testutil.True(t, a.r.share(reservedNQN, 2, false, 1) == nil, "it is shared")
	err := reservations{a.r}.Save(reservedNQN, 2, &reservation.State{})
	testutil.Is(t, err, errNoDirectory, "")
	testutil.True(t, a.r.share(reservedNQN, 1, false, 1) == nil, "it is shared")
	testutil.Equal(t, a.register(1), nvme.Success, "a namespace that is not shared any more")
	testutil.Is(t, a.protect(true), errNoDirectory, "")
	testutil.Is(t, a.mark(1), errNoDirectory, "")
	a.has(false)
}

// notified gets the notifications for host 2.
type notified struct {
	types []nvme.ReservationNotification
}

func (*notified) Adopt(*reservation.Access, map[reservation.Host]bool, *reservation.Change) {}

func (l *notified) Notify(of func(reservation.Host) nvme.ReservationNotification) {
	if typ := of(reservation.Host{HostID: [16]byte{2}, NQN: "h2"}); typ != 0 {
		l.types = append(l.types, typ)
	}
}

// TestNotificationsElsewhere: hosts of another gateway get the notifications of a change once,
// unless they have masked them there. What was published before they could connect is not new. A
// gateway that starts again is another process.
func TestNotificationsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, l := &memoryObject{}, &notified{}
		a, b := newKeeper(t, o), newKeeper(t, o)
		b.ns.Attach(l)
		testutil.Must(t, a.with.Open(nil, rbdImage))
		looks := func(process string, want int) {
			t.Helper()
			f := group.Facts{Notifications: a.r.told.recent(7), Process: process}
			s := group.Status{Instances: []group.Instance{
				{Gateway: "a", Facts: testutil.Value(json.Marshal(f))(t)},
				{Gateway: "b", Facts: testutil.Value(json.Marshal(f))(t)}, // its own
			}}
			for range 2 {
				b.r.told.receive(7, "b", &s, b.r.pass)
			}
			testutil.Equal(t, len(l.types), want, "notifications")
		}
		preempted := func() {
			t.Helper()
			for host := byte(1); host <= 2; host++ {
				testutil.Equal(t, a.register(host), nvme.Success, "register")
			}
			st := a.do(1, nvme.IOReservationAcquire, nvme.ReservationPreempt, nvme.WriteExclusive,
				1, 2)
			testutil.Equal(t, st, nvme.Success, "preempt")
		}
		preempted()
		looks("x", 0)
		preempted()
		preempted()
		looks("x", 2)
		testutil.Equal(t, l.types[0], nvme.RegistrationPreempted, "the type")
		b.ns.Mask.Store(nvme.RegistrationPreempted.Mask())
		preempted()
		looks("x", 2)
		b.ns.Mask.Store(0)
		<-time.After(notifyFor)
		looks("x", 2)
		preempted()
		looks("y", 3)
		for range 2 * maxNotifications {
			preempted()
		}
		looks("y", 3+maxNotifications)
		b.r.pass(7, &group.Notification{Object: "of a namespace that is not here"})
	})
}
