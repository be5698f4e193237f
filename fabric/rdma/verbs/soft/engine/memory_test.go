package engine

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

const (
	lw = verbs.AccessLocalWrite
	rw = verbs.AccessRemoteWrite
	rr = verbs.AccessRemoteRead
)

func newPD(t testing.TB, d *Device) *PD {
	t.Helper()
	pd := testutil.Value(d.AllocPD())(t)
	t.Cleanup(func() { testutil.Check(t, pd.Dealloc()) })
	return pd.(*PD)
}

func register(t testing.TB, pd *PD, b []byte, access verbs.Access) verbs.MR {
	t.Helper()
	m := testutil.Value(pd.RegMR(b, access))(t)
	t.Cleanup(func() { testutil.Check(t, m.Dereg()) })
	return m
}

func TestMemory(t *testing.T) {
	d := alone(t, Options{})
	pd, other := newPD(t, d), newPD(t, d)
	b := make([]byte, 4096)
	base := mem.Addr(b)
	all, local := register(t, pd, b, lw|rw|rr), register(t, pd, b, lw)
	none := register(t, pd, b, 0)
	for _, c := range []struct {
		name   string
		pd     *PD
		key    uint32
		addr   uint64
		n      uint32
		need   verbs.Access
		lo, re bool // local and remote access
	}{
		{"all of it", pd, all.RKey(), base, 4096, rw, true, true},
		{"the last byte", pd, all.RKey(), base + 4095, 1, rr, true, true},
		{"one byte beyond", pd, all.RKey(), base + 1, 4096, rr, false, false},
		{"after", pd, all.RKey(), base + 4096, 1, rr, false, false},
		{"before", pd, all.RKey(), base - 1, 1, rr, false, false},
		{"around the address space", pd, all.RKey(), ^uint64(0), 1<<32 - 1, rr, false, false},
		{"address 0", pd, all.RKey(), 0, 1, rr, false, false},
		{"the largest length", pd, all.RKey(), base, 1<<32 - 1, rr, false, false},
		{"wrong domain", other, all.RKey(), base, 1, rr, false, false},
		{"wrong key in the same slot", pd, all.RKey() ^ 1<<31, base, 1, rr, false, false},
		{"wrong key in another slot", pd, all.RKey() ^ 1, base, 1, rr, false, false},
		{"key 0", pd, 0, base, 1, 0, false, false},
		{"nothing with a wrong key", other, 0, 0, 0, rr, true, true},
		{"a local region", pd, local.RKey(), base, 1, lw, true, false},
		{"no rights at all", pd, none.LKey(), base, 1, 0, true, false},
		{"a read-only region", pd, none.LKey(), base, 1, lw, false, false},
	} {
		d.Engine(0).Do(func() {
			_, ok := d.Local(c.pd, verbs.SGE{Addr: c.addr, Length: c.n, LKey: c.key}, c.need)
			testutil.Equal(t, ok, c.lo, "%s: local", c.name)
			m, ok := d.Remote(c.pd, c.key, c.addr, c.n, c.need)
			testutil.Equal(t, ok, c.re, "%s: remote", c.name)
			testutil.True(t, !ok || len(m) == int(c.n), "%s: %d bytes", c.name, len(m))
		})
	}
	d.Engine(0).Do(func() {
		testutil.True(t, !d.Invalidate(other, all.RKey()), "invalidated by another domain")
		testutil.True(t, !d.Invalidate(pd, local.RKey()), "invalidated a local key")
		testutil.True(t, !d.Invalidate(pd, all.RKey()^1), "invalidated a wrong key")
		testutil.True(t, d.Invalidate(pd, all.RKey()), "not invalidated")
		testutil.True(t, !d.Invalidate(pd, all.RKey()), "invalidated twice")
		_, ok := d.Remote(pd, all.RKey(), base, 1, rr)
		testutil.True(t, !ok, "the key is still valid")
		_, ok = d.Local(pd, verbs.SGE{Addr: base, Length: 1, LKey: all.LKey()}, lw)
		testutil.True(t, ok, "the local key is no longer valid")
	})
	for name, err := range map[string]error{
		"no bytes":                   testutil.Err(pd.RegMR(nil, lw)),
		"unknown rights":             testutil.Err(pd.RegMR(b, 1<<5)),
		"remote without local write": testutil.Err(pd.RegMR(b, rw)),
	} {
		testutil.Is(t, err, unix.EINVAL, "%s", name)
	}
}

// TestKeys fills the table: keys differ, and a key is free again after Dereg.
func TestKeys(t *testing.T) {
	d := alone(t, Options{})
	pd := newPD(t, d)
	b := make([]byte, 8)
	keys := map[uint32]verbs.MR{}
	for range maxMR {
		m := testutil.Value(pd.RegMR(b, lw))(t)
		keys[m.LKey()] = m
	}
	testutil.Equal(t, len(keys), maxMR, "different keys")
	testutil.Is(t, testutil.Err(pd.RegMR(b, lw)), unix.ENOMEM, "one more")
	for key, m := range keys {
		testutil.Must(t, m.Dereg())
		testutil.MustTrue(t, d.slot(key).Load() == nil, "key %#x is still there", key)
	}
	for _, m := range keys {
		testutil.Is(t, m.Dereg(), unix.EINVAL, "deregister twice")
		break
	}
}

// TestDereg: when Dereg returns, no engine uses the memory: it is unmapped at once while engines
// write to it.
func TestDereg(t *testing.T) {
	d := alone(t, Options{Engines: 2})
	pd := newPD(t, d)
	var sges [2]atomic.Pointer[verbs.SGE]
	var stop atomic.Bool
	var wg sync.WaitGroup
	written := [2]int{}
	for v := range d.engines {
		ep := attach(t, d.Engine(v), &endpoint{onRun: func(*endpoint) bool {
			if s := sges[v].Load(); s != nil {
				if b, ok := d.Local(pd, *s, lw); ok {
					for i := range b {
						b[i]++
					}
					written[v]++
				}
			}
			return true
		}})
		ep.Kick()
		wg.Go(func() {
			for !stop.Load() {
				ep.Kick()
				runtime.Gosched()
			}
		})
	}
	for range 300 {
		r := testutil.Value(mem.Map("test", 4096))(t)
		m := testutil.Value(pd.RegMR(r.Bytes(), lw))(t)
		s := &verbs.SGE{Addr: mem.Addr(r.Bytes()), Length: 4096, LKey: m.LKey()}
		for v := range sges {
			sges[v].Store(s)
			held(d.Engine(v), func() {}) // it is used at least once
		}
		testutil.Must(t, m.Dereg())
		testutil.Must(t, r.Unmap())
	}
	stop.Store(true)
	wg.Wait()
	for v := range written {
		d.Engine(v).Do(func() { testutil.True(t, written[v] > 0, "engine %d never wrote", v) })
	}
}

// TestDeregWaits: Dereg does not return while an engine that has found the region is held.
func TestDeregWaits(t *testing.T) {
	d := alone(t, Options{Engines: 2})
	pd := newPD(t, d)
	b := make([]byte, 8)
	m := testutil.Value(pd.RegMR(b, lw))(t)
	found, gate, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	used := false // the race detector sees a write after Dereg
	ep := attach(t, d.Engine(1), &endpoint{onRun: func(*endpoint) bool {
		s, ok := d.Local(pd, verbs.SGE{Addr: mem.Addr(b), Length: 8, LKey: m.LKey()}, lw)
		if !ok {
			t.Error("not found")
			close(found)
			return false
		}
		close(found)
		<-gate
		s[0], used = 1, true
		return false
	}})
	go ep.Kick()
	testutil.Receive(t, "the region in use", found)
	go func() {
		testutil.Check(t, m.Dereg())
		close(ended)
	}()
	testutil.Until(t, "the key to be removed", func() bool {
		return d.slot(m.LKey()).Load() == nil
	})
	select {
	case <-ended:
		t.Error("Dereg has returned while the memory is in use")
	default:
	}
	close(gate)
	testutil.Receive(t, "Dereg", ended)
	testutil.True(t, used && b[0] == 1, "Dereg returned before the memory was used")
}

// TestRecvRing posts and takes at the same time: every receive is taken once, and one engine takes
// them in order.
func TestRecvRing(t *testing.T) {
	for _, takers := range []int{1, 4} {
		ring := testutil.Value(NewRecvRing(7, 2))(t)
		const n = 20_000
		var wg sync.WaitGroup
		var taken atomic.Int64
		var sum atomic.Uint64
		for range takers {
			wg.Go(func() {
				last := uint64(0)
				for taken.Load() < n {
					var wr verbs.RecvWR
					if !ring.Take(&wr) {
						runtime.Gosched()
						continue
					}
					testutil.True(t, wr.WRID > last && wr.SGE[1].Length == uint32(wr.WRID),
						"receive %+v after %d", wr, last)
					last = wr.WRID
					sum.Add(wr.WRID)
					taken.Add(1)
				}
			})
		}
		for id := uint64(1); id <= n; {
			wrs := make([]verbs.RecvWR, 3)
			for i := range wrs {
				wrs[i].WRID, wrs[i].SGE[1].Length = id+uint64(i), uint32(id)+uint32(i)
			}
			k, err := ring.Post(wrs[:min(3, n-id+1)])
			id += uint64(k)
			if err != nil {
				testutil.Is(t, err, unix.ENOMEM, "post")
				runtime.Gosched()
			}
		}
		wg.Wait()
		testutil.Equal(t, sum.Load(), n*(n+1)/2, "sum of the receives taken")
	}
	ring := testutil.Value(NewRecvRing(8, 1))(t)
	n, err := ring.Post([]verbs.RecvWR{{}, {NumSGE: 2}})
	testutil.True(t, n == 1, "%d posted", n)
	testutil.Is(t, err, unix.EINVAL, "too many elements")
	n, err = ring.Post(make([]verbs.RecvWR, 8))
	testutil.True(t, n == 7, "%d posted", n)
	testutil.Is(t, err, unix.ENOMEM, "full")

	// The smallest ring refuses a receive as well before it overwrites another one.
	ring = testutil.Value(NewRecvRing(1, 1))(t)
	n, err = ring.Post([]verbs.RecvWR{{WRID: 1}, {WRID: 2}, {WRID: 3}})
	testutil.Is(t, err, unix.ENOMEM, "full")
	for id := range uint64(n) {
		var wr verbs.RecvWR
		testutil.True(t, ring.Take(&wr) && wr.WRID == id+1, "%+v taken, want %d", wr, id+1)
	}
}
