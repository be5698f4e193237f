package mem

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// user waits for memory and records the outcome.
type user struct {
	w    Allocation
	name string
	log  *[]string
}

func newUser(name string, log *[]string) *user {
	u := &user{name: name, log: log}
	u.w.Owner = u
	return u
}

func (u *user) Granted() { *u.log = append(*u.log, fmt.Sprintf("%s %d", u.name, Length(u.w.Segs))) }
func (u *user) Expired() { *u.log = append(*u.log, u.name+" expired") }

// taken allocates without a flow.
func taken(alloc func(*Allocation, *Flow, int) bool, n int) (*Allocation, bool) {
	a := new(Allocation)
	return a, alloc(a, nil, n)
}

func newTestPool(t *testing.T, size, reserve int) *Pool {
	t.Helper()
	a := testutil.Value(NewArena("test pool", size))(t)
	p := NewPool(a, reserve)
	t.Cleanup(func() { testutil.Check(t, p.Close()) })
	return p
}

func TestPool(t *testing.T) {
	p := newTestPool(t, 64<<10, 16<<10)
	testutil.MustTrue(t, p.Max(nil) == 48<<10 && p.Available() == 48<<10 && !p.HasWaiters(),
		"most %d, available %d", p.Max(nil), p.Available())
	all, ok := taken(p.Alloc, 48<<10)
	testutil.MustTrue(t, ok, "an empty pool has no memory")
	if _, ok := taken(p.Alloc, 1); ok {
		t.Fatal("Alloc hands out the reserve")
	}
	urgent, ok := taken(p.AllocReserve, 16<<10)
	testutil.MustTrue(t, ok && p.Available() == -16<<10,
		"AllocReserve does not hand out the reserve")

	var log []string
	a, b, c := newUser("a", &log), newUser("b", &log), newUser("c", &log)
	p.Wait(&a.w, nil, 40<<10, 10)
	p.Wait(&b.w, nil, 4<<10, 20)
	p.Wait(&c.w, nil, 4<<10, 30)
	testutil.MustTrue(t, !p.CanServe() && p.Serve() == 0 && b.w.Waiting(),
		"memory was granted that is not there")
	urgent.Free()
	testutil.MustTrue(t, !p.CanServe(), "the reserve is granted")
	b.w.Cancel()
	b.w.Cancel()
	all.Free()
	_, ok = taken(p.Alloc, 4096)
	testutil.MustTrue(t, !ok, "Alloc did not wait for its turn")
	testutil.MustTrue(t, p.CanServe() && p.Serve() == 2 &&
		slices.Equal(log, []string{"a 40960", "c 4096"}) && !p.HasWaiters(), "served: %v", log)
	a.w.Free()
	c.w.Free()
}

func TestPoolExpire(t *testing.T) {
	p := newTestPool(t, 16<<10, 0)
	all, _ := taken(p.Alloc, 16<<10)
	var log []string
	a, b := newUser("a", &log), newUser("b", &log)
	p.Wait(&a.w, nil, 4096, 10)
	p.Wait(&b.w, nil, 4096, 20)
	testutil.MustTrue(t, expire(p, 10) == 0 && expire(p, 11) == 1 && !a.w.Waiting() &&
		b.w.Waiting(), "expired: %v", log)
	p.Wait(&a.w, nil, 8192, 30)
	all.Free()
	testutil.MustTrue(t,
		p.Serve() == 2 && slices.Equal(log, []string{"a expired", "b 4096", "a 8192"}), "%v", log)
	a.w.Free()
	b.w.Free()
}

// TestPoolReserve: waiters that may use the reserve get memory ahead of others, which may not.
func TestPoolReserve(t *testing.T) {
	p := newTestPool(t, 64<<10, 16<<10)
	rest, _ := taken(p.AllocReserve, 44<<10)
	some, _ := taken(p.AllocReserve, 20<<10)
	var log []string
	a, b, c := newUser("a", &log), newUser("b", &log), newUser("c", &log)
	p.Wait(&a.w, nil, 4<<10, 10)
	p.WaitReserve(&b.w, nil, 16<<10, 20)
	p.WaitReserve(&c.w, nil, 4<<10, 30)
	testutil.MustTrue(t, p.HasWaiters() && !p.CanServe(), "memory is granted that is not there")
	some.Free()
	testutil.MustTrue(t, p.Serve() == 2 && slices.Equal(log, []string{"b 16384", "c 4096"}), "%v",
		log)
	b.w.Free()
	p.WaitReserve(&b.w, nil, 32<<10, 20)
	b.w.Cancel()
	testutil.MustTrue(t, expire(p, 15) == 1 && !p.HasWaiters() && len(a.w.Segs) == 0, "%v", log)
	p.WaitReserve(&b.w, nil, 32<<10, 20)
	testutil.MustTrue(t, expire(p, 21) == 1 && !p.HasWaiters() && len(b.w.Segs) == 0, "%v", log)
	rest.Free()
	c.w.Free()
}

// TestPoolPromote: a promoted waiter is served according to its age.
func TestPoolPromote(t *testing.T) {
	p := newTestPool(t, 64<<10, 16<<10)
	all, _ := taken(p.AllocReserve, 64<<10)
	var log []string
	var users [5]*user
	for i := range users {
		users[i] = newUser(string(rune('a'+i)), &log)
	}
	a, b, c, d, e := users[0], users[1], users[2], users[3], users[4]
	p.WaitReserve(&a.w, nil, 4096, 10)
	p.Wait(&b.w, nil, 4096, 20)
	p.Wait(&c.w, nil, 4096, 30)
	p.WaitReserve(&d.w, nil, 4096, 40)
	p.WaitReserve(&e.w, nil, 4096, 50)
	p.Promote(&c.w)
	p.Promote(&d.w) // it has its promised memory
	testutil.MustTrue(t, expire(p, 11) == 1 && slices.Equal(log, []string{"a expired"}), "%v", log)
	p.Promote(&a.w) // it does not wait
	all.Free()
	testutil.MustTrue(t, p.Serve() == 4 &&
		slices.Equal(log[1:], []string{"c 4096", "d 4096", "e 4096", "b 4096"}), "%v", log)
	for _, u := range users[1:] {
		u.w.Free()
	}
}

func TestPoolNoAllocation(t *testing.T) {
	p := newTestPool(t, 64<<10, 0)
	var log []string
	u := newUser("u", &log)
	log = make([]string, 0, 1)
	quiet := &quietOwner{}
	u.w.Owner = quiet
	if n := testing.AllocsPerRun(100, func() {
		p.Wait(&u.w, nil, 8192, 1)
		p.Serve()
		u.w.Free()
	}); n != 0 || quiet.granted == 0 {
		t.Errorf("%v allocations, %d grants", n, quiet.granted)
	}
}

type quietOwner struct{ granted int }

func (o *quietOwner) Granted() { o.granted++ }
func (o *quietOwner) Expired() {}

// policy returns the memory policy of an address: get_mempolicy(2), MPOL_F_ADDR.
func policy(t *testing.T, addr uint64) (mode int32, mask [maxNodes / 64]uint64) {
	t.Helper()
	const byAddress = 1 << 1
	_, _, e := syscall.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&mode)),
		uintptr(unsafe.Pointer(&mask)), maxNodes,
		uintptr(addr), byAddress, 0)
	testutil.MustEqual(t, e, 0, "get_mempolicy")
	return mode, mask
}

func TestPrefer(t *testing.T) {
	var regions [3]*Region
	for i := range regions {
		r := testutil.Value(Map("place test", 3*4096))(t)
		regions[i] = r
		defer func() { testutil.Check(t, r.Unmap()) }()
	}
	testutil.Must(t, regions[0].Prefer(0))
	testutil.Check(t, regions[1].Follow(regions[0]))
	testutil.Check(t, regions[2].Follow(regions[2]))
	for i, want := range []int32{mpolPreferred, mpolPreferred, 0} {
		b := regions[i].Bytes()
		for _, at := range []int{0, len(b) - 1} {
			mode, mask := policy(t, Addr(b[at:]))
			testutil.True(t, mode == want && (want == 0 || mask == [maxNodes / 64]uint64{1}),
				"region %d, byte %d: mode %d, nodes %x; want mode %d", i, at, mode, mask[0], want)
		}
		b[0] = 1
	}
	for _, node := range []int{-1, maxNodes - 1, maxNodes} {
		testutil.True(t, regions[2].Prefer(node) != nil, "node %d is taken", node)
	}
}

// pageSize returns the size of the pages at an address, in bytes, from /proc/self/smaps.
func pageSize(t *testing.T, addr uint64) int {
	t.Helper()
	text := testutil.Value(os.ReadFile("/proc/self/smaps"))(t)
	inside := false
	for line := range bytes.Lines(text) {
		var from, to uint64
		if n, _ := fmt.Sscanf(string(line), "%x-%x ", &from, &to); n == 2 {
			inside = from <= addr && addr < to
		}
		if rest, ok := strings.CutPrefix(string(line), "KernelPageSize:"); ok && inside {
			kib := testutil.Value(strconv.Atoi(strings.Fields(rest)[0]))(t)
			return kib << 10
		}
	}
	t.Fatalf("no mapping at %#x", addr)
	return 0
}

// freeHugePages returns the number of free huge pages.
func freeHugePages(t *testing.T) int {
	t.Helper()
	count := map[string]int{}
	for _, name := range []string{"free_hugepages", "resv_hugepages"} {
		text, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/" + name)
		if err != nil {
			return 0 // a kernel without huge pages
		}
		if count[name], err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			t.Fatal(err)
		}
	}
	return count["free_hugepages"] - count["resv_hugepages"]
}

// TestArenaPages: arenas use huge pages while some are free, and work without.
func TestArenaPages(t *testing.T) {
	for _, size := range []int{2 * hugeSize, 2*hugeSize + BlockMin} {
		want := os.Getpagesize()
		if freeHugePages(t) >= 2 && size%hugeSize == 0 {
			want = hugeSize
		}
		a := testutil.Value(NewArena("place test", size))(t)
		b := a.Region().Bytes()
		if got := pageSize(t, Addr(b)); got != want || len(b) != size {
			t.Errorf("%d bytes: pages of %d bytes, want %d", len(b), got, want)
		}
		for i := range b {
			b[i] = byte(i)
		}
		testutil.Check(t, a.Close())
	}
	// More than any machine has free, so ordinary pages.
	b := testutil.Value(mapPages(1<<40, true))(t)
	got := pageSize(t, Addr(b))
	testutil.True(t, got == os.Getpagesize(), "1 TiB in pages of %d bytes", got)
	testutil.Check(t, unix.Munmap(b))
}

// expire ends waits and returns their number.
func expire(p *Pool, before int64) int {
	n := p.waiters
	for next := p.Expire(before); next() > 0; {
	}
	return n - p.waiters
}

// TestManyWait: however many flows wait, a look at them is bounded, all have their turn, and
// waiting flows hold others back meanwhile.
func TestManyWait(t *testing.T) {
	for _, n := range []int{10, 10_000} {
		p := newTestPool(t, 64*mebi, 0)
		var all []*Allocation
		f := &Flow{}
		for a := new(Allocation); p.Alloc(a, f, BlockMax); a = new(Allocation) {
			all = append(all, a)
		}
		var log []string
		flows, users := make([]Flow, n), make([]*user, n)
		for i := range flows {
			flows[i].Host = new(Share)
			users[i] = newUser("u", &log)
			p.Wait(&users[i].w, &flows[i], 4096, 1)
		}
		late := &Flow{Host: new(Share)}
		served, calls := 0, 0
		for served < n {
			if len(all) > 0 && p.Available() < 2*BlockMax {
				all[0].Free()
				all = all[1:]
			}
			testutil.MustTrue(t, !p.Alloc(new(Allocation), late, BlockMax/2),
				"a late one overtakes the waiting ones")
			granted := p.Serve()
			testutil.MustTrue(t, granted <= serveMost && (granted != 0 || p.cursor != nil),
				"%d of %d were served, and then %d", served, n, granted)
			served += granted
			calls++
		}
		least := (n + serveMost - 1) / serveMost
		testutil.True(t, calls >= least && calls <= 3*least+1, "%d waiters took %d turns", n, calls)
		for _, u := range users {
			u.w.Free()
		}
		freeAll(all)
	}
}

// TestManyKept: if the first of many flows have to wait, a search is still bounded, and flows
// behind them that can be served are served.
func TestManyKept(t *testing.T) {
	p := newTestPool(t, 64*mebi, 0)
	var hung Share
	var all []*Allocation
	hog(p, &Flow{Host: new(Share), Namespace: &hung}, mebi, &all)
	var log []string
	users := make([]*user, 1000)
	for i := range users {
		h := new(Share)
		h.used[dataPool] = 1 // not its first allocation
		users[i] = newUser("u", &log)
		p.Wait(&users[i].w, &Flow{Host: h, Namespace: &hung}, 8*mebi, 1)
	}
	last := newUser("last", &log)
	p.Wait(&last.w, &Flow{Host: new(Share), Namespace: new(Share)}, 4096, 1)
	calls := 0
	for last.w.Waiting() {
		p.Serve()
		testutil.MustTrue(t, calls <= len(users)/searchMost, "not served after %d searches", calls)
		calls++
	}
	testutil.True(t, calls >= len(users)/searchMost, "%d flows were looked at in %d turns",
		len(users), calls)
	for p.CanServe() {
		p.Serve()
	}
	testutil.Equal(t, expire(p, 2), len(users), "waits were ended")
	last.w.Free()
	freeAll(all)
}

// TestFreedInSearch: memory freed during a search also serves flows that the search has passed,
// without another event.
func TestFreedInSearch(t *testing.T) {
	p := newTestPool(t, 64*mebi, 0)
	var all []*Allocation
	for a := new(Allocation); p.Alloc(a, new(Flow), BlockMax); a = new(Allocation) {
		all = append(all, a)
	}
	var log []string
	first := newUser("first", &log)
	h := new(Share)
	h.used[dataPool] = 1 // not its first allocation
	p.Wait(&first.w, &Flow{Host: h}, mebi, 1)
	users := make([]*user, 2*searchMost)
	for i := range users {
		users[i] = newUser("u", &log)
		p.Wait(&users[i].w, &Flow{Host: &Share{Limit: 1}}, mebi, 1)
	}
	for p.CanServe() {
		testutil.MustEqual(t, p.Serve(), 0, "served while there is no memory")
	}
	p.changed = true
	for i := 0; p.CanServe(); i++ { // as Arm of a transport does
		if i == 0 {
			freeAll(all)
		}
		if i > 2*len(users)/searchMost {
			p.Serve()
		}
	}
	testutil.True(t, !first.w.Waiting(), "memory was freed, and the first one does not get any")
	expire(p, 2)
	first.w.Free()
}

// TestExpireAll: all waits of a flow that took too long end, in pieces.
func TestExpireAll(t *testing.T) {
	p := newTestPool(t, 64*mebi, 0)
	var all []*Allocation
	f := &Flow{Host: new(Share)}
	hog(p, f, mebi, &all)
	var log []string
	for range 1000 {
		u := newUser("u", &log)
		p.Wait(&u.w, f, BlockMax, 1)
	}
	late := newUser("late", &log)
	p.Wait(&late.w, f, BlockMax, 2)
	n := 0
	for next := p.Expire(2); ; n++ {
		before := p.waiters
		if next() == 0 {
			break
		}
		ended := before - p.waiters
		testutil.MustTrue(t, ended <= expireMost, "%d waits end in a piece", ended)
	}
	testutil.True(t, p.waiters == 1 && n <= 1000/expireMost+2, "%d wait after %d pieces, want 1",
		p.waiters, n)
	late.w.Cancel()
	freeAll(all)
}
