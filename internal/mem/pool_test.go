package mem

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

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

// cut makes segments of b with these lengths; the region of each is its index plus one.
func cut(b []byte, lengths ...int) (segs []Segment) {
	for i, n := range lengths {
		segs = append(segs, Segment{B: b[:n:n], Region: RegionID(i + 1)})
		b = b[n:]
	}
	return segs
}

func count(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

func TestCursor(t *testing.T) {
	for _, lengths := range [][]int{
		{10},
		{3, 7},
		{0, 1, 0, 0, 8, 1, 0},
		{5, 5},
		{1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
	} {
		for off := range 12 {
			for step := 1; step < 12; step++ {
				b := count(10)
				c := NewCursor(cut(b, lengths...), off)
				testutil.MustEqual(t, c.Rest(), max(10-off, 0), "%v at %d: rest", lengths, off)
				var got []byte
				for s := c.Segment(); s != nil; s = c.Segment() {
					n := c.Next(step)
					testutil.MustTrue(t, len(n) != 0 && len(n) <= step && &n[0] == &b[off+len(got)],
						"%v at %d by %d: %d bytes after %d", lengths, off, step, len(n), len(got))
					got = append(got, n...)
				}
				testutil.MustTrue(t, bytes.Equal(got, b[min(off, 10):]) && c.Next(step) == nil &&
					c.Rest() == 0, "%v at %d by %d: %v", lengths, off, step, got)
			}
		}
	}
}

func TestCursorCopies(t *testing.T) {
	for off := range 12 {
		for n := range 14 {
			want := count(10)
			segs := cut(count(10), 0, 3, 0, 4, 3)
			c := NewCursor(segs, off)
			src := bytes.Repeat([]byte{0xEE}, n)
			moved := copy(want[min(off, 10):], src)
			testutil.MustEqual(t, c.CopyFrom(src), moved, "%d bytes at %d were filled", n, off)
			all, c := make([]byte, 10), NewCursor(segs, 0)
			testutil.MustTrue(t, c.CopyTo(all) == 10 && bytes.Equal(all, want),
				"%d bytes at %d: %v, want %v", n, off, all, want)
			clear(want[min(off, 10):min(off+n, 10)])
			c = NewCursor(segs, off)
			c.Clear(n)
			c = NewCursor(segs, 0)
			if c.CopyTo(all); !bytes.Equal(all, want) {
				t.Fatalf("%d zeroes at %d: %v, want %v", n, off, all, want)
			}
		}
	}
}

// TestCursorIsAValue: a copy continues from its position, and the segments do not change.
func TestCursorIsAValue(t *testing.T) {
	segs := cut(count(10), 4, 6)
	c := NewCursor(segs, 3)
	d := c
	c.Skip(5)
	if b := d.Next(9); len(b) != 1 || b[0] != 3 || d.Segment().Region != 2 {
		t.Error("a copy moved with its original")
	}
	testutil.True(t, len(segs[0].B) == 4 && len(segs[1].B) == 6, "the segments changed")
	var zero Cursor
	testutil.True(t, zero.Segment() == nil && zero.Next(1) == nil && zero.CopyFrom([]byte{1}) == 0,
		"the zero cursor has something")
}

func BenchmarkCursorNext(b *testing.B) {
	segs := cut(count(64), 16, 16, 16, 16)
	for b.Loop() {
		c := NewCursor(segs, 4)
		for c.Next(64) != nil {
		}
	}
}
