package uring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestCancel: an operation waiting in the kernel completes as canceled, its neighbour does not, and
// the ring is otherwise unaffected.
func TestCancel(t *testing.T) {
	each(t, func(t *testing.T, cfg Config) {
		g := newHarness(t, cfg)
		var p [2]int
		testutil.Must(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
		var first, second, none result
		for i, c := range []*result{&first, &second} {
			op := Read(g.b[i*4096:][:16], 0)
			testutil.MustTrue(t, g.Start(File{fd: int32(p[0])}, &op, c), "the ring is full")
		}
		slot := g.Last()
		g.Poll()
		testutil.True(t, !g.Cancel(&none, slot) && g.Cancel(&second, slot),
			"an operation that is not there was canceled, or one that is was not")
		testutil.Until(t, "a completion", func() bool { g.Poll(); return second.n > 0 })
		testutil.True(t, second.res == -int32(unix.ECANCELED) && first.n == 0,
			"canceled: %d after %d completions; the other one: %d completions", second.res,
			second.n, first.n)
		testutil.Value(unix.Write(p[1], []byte("hello")))(t)
		g.drain()
		testutil.True(t, first.n == 1 && first.res == 5 && second.n == 1, "%+v, %+v", first, second)
		testutil.Check(t, errors.Join(unix.Close(p[0]), unix.Close(p[1])))
	})
}

func TestOperations(t *testing.T) {
	each(t, func(t *testing.T, cfg Config) {
		g := newHarness(t, cfg)
		if g.size != 512<<10 || !g.f.fixed {
			t.Logf("memory registered: %d bytes; file registered: %v", g.size, g.f.fixed)
		}
		// registered, across the end of it, not registered
		for _, at := range []int{0, 256 << 10, 512<<10 - 2048, 768 << 10} {
			w, r := g.b[at:at+4096], g.b[at+8192:at+8192+4096]
			rnd := rand.NewChaCha8([32]byte{byte(at >> 16)})
			_, _ = rnd.Read(w)
			testutil.MustEqual(t, g.do(Write(w, int64(at), 0)), 4096, "write")
			clear(r)
			if res := g.do(Read(r, int64(at))); res != 4096 || !bytes.Equal(r, w) {
				t.Fatalf("read: %d, same %v", res, bytes.Equal(r, w))
			}
			iov := []unix.Iovec{{Base: &r[0], Len: 100}, {Base: &r[200], Len: 3996}}
			testutil.MustEqual(t, g.do(Writev(iov, 4096, unix.RWF_DSYNC)), 4096, "writev")
			clear(w)
			iov = []unix.Iovec{{Base: &w[0], Len: 100}, {Base: &w[200], Len: 3896}}
			if res := g.do(Readv(iov, 4096)); res != 3996 || !bytes.Equal(w[:100], r[:100]) ||
				!bytes.Equal(w[200:4096], r[200:4096]) {
				t.Fatalf("readv: %d", res)
			}
		}
		testutil.Equal(t, g.do(Datasync()), 0, "fdatasync")
		testutil.Equal(t,
			g.do(Fallocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20)), 0,
			"fallocate")
		b := g.b[:4096]
		if res := g.do(Read(b, 256<<10)); res != 4096 || bytes.Count(b, []byte{0}) != 4096 {
			t.Errorf("after punching a hole: %d", res)
		}
		testutil.Equal(t, g.do(Read(b, 2<<20)), 0, "read beyond the end")
		if res := g.do(Discard(0, 4096)); res >= 0 {
			t.Errorf("discard on a file: %d", res)
		}
		testutil.Equal(t, g.do(Op{}), 0, "nop")
	})
}

// TestCommands mixes transfers with commands, which /dev/null accepts from Linux 6.4 on and regular
// files refuse.
func TestCommands(t *testing.T) {
	g := newSmall(t, Config{Commands: true}, 4, 16)
	null := testutil.Value(os.Open(os.DevNull))(t)
	defer null.Close()
	fill := bytes.Repeat([]byte{0xA5}, commandRoom)
	write, read := Write(g.b[:512], 0, 0), Read(g.b[4096:4608], 0)
	copy(g.b, "what is written")
	var refused, taken, other result
	other.res = -1
	for range 20 { // more than once around the queue
		clear(g.b[4096:4608])
		for _, start := range []func() bool{
			func() bool { return g.Start(g.f, &write, &other) },
			func() bool { return g.StartCommand(g.f, 7, fill, g.b[:512], &refused) },
			func() bool { return g.StartCommand(File{fd: int32(null.Fd())}, 7, fill, nil, &taken) },
		} {
			testutil.MustTrue(t, start(), "full")
		}
		g.drain()
		testutil.MustTrue(t, refused.res == -int32(unix.EOPNOTSUPP) &&
			(taken.res == 0 || taken.res == -int32(unix.EOPNOTSUPP)) && other.res == 512,
			"a file: %d, /dev/null: %d, a write: %d", refused.res, taken.res, other.res)
		testutil.MustTrue(t, g.Start(g.f, &read, &other), "full")
		if g.drain(); other.res != 512 || !bytes.Equal(g.b[:512], g.b[4096:4608]) {
			t.Fatalf("a read: %d", other.res)
		}
	}
	testutil.True(t, refused.n == 20 && taken.n == 20 && other.n == 40, "%d, %d and %d completions",
		refused.n, taken.n, other.n)
}

// TestCommandEntry checks the entry as seen by the kernel.
func TestCommandEntry(t *testing.T) {
	g := newHarness(t, Config{Commands: true})
	payload := make([]byte, commandRoom)
	for i := range payload {
		payload[i] = byte(i + 1)
	}
	// none, registered, not registered
	for _, data := range [][]byte{nil, g.b[8192:12288], g.b[600<<10:][:4096]} {
		var c result
		g.sqes[2*g.tail+1] = sqe{opcode: 0xFF}
		testutil.MustTrue(t, g.StartCommand(g.f, 0xC0484E80, payload, data, &c), "full")
		e := unsafe.Slice((*byte)(unsafe.Pointer(&g.sqes[2*(g.tail-1)])), 128)
		fixed := len(data) > 0 && &data[0] == &g.b[8192]
		testutil.True(t, e[0] == opCommand && binary.LittleEndian.Uint32(e[8:]) == 0xC0484E80 &&
			bytes.Equal(e[48:], payload) && (e[28] == commandFixed) == fixed, "registered %v: % x",
			fixed, e)
		g.drain()
	}
}

// TestFull: operations beyond the submission queue are submitted at once, operations beyond the
// slots are refused, and Completers start the rest.
func TestFull(t *testing.T) {
	each(t, func(t *testing.T, cfg Config) {
		const slots, total = 64, 1000
		g := newSmall(t, cfg, 8, slots)
		idle := Op{} // IORING_OP_NOP
		started, finished := 0, 0
		var c result
		c.then = func() {
			finished++
			if started < total && g.Start(g.f, &idle, &c) {
				started++
			}
		}
		for started < total {
			before := started
			for started < total && g.Start(g.f, &idle, &c) {
				started++
			}
			testutil.MustTrue(t, before != 0 || started == slots, "%d taken, %d slots", started,
				slots)
			g.Poll()
		}
		g.drain()
		testutil.True(t, finished == total && g.Outstanding() == 0,
			"%d of %d finished, %d outstanding", finished, total, g.Outstanding())
	})
}

// TestOverflow: the kernel keeps completions that do not fit until the next polls.
func TestOverflow(t *testing.T) {
	each(t, func(t *testing.T, cfg Config) {
		g := newSmall(t, cfg, 8, 8) // 16 completions
		const total = 200
		g.slots = make([]Completer, total)
		g.free = nil
		for i := range total {
			g.free = append(g.free, int32(i))
		}
		var c result
		idle := Op{} // IORING_OP_NOP
		for range total {
			for !g.Start(g.f, &idle, &c) {
				runtime.Gosched()
				if len(g.free) > 0 {
					g.enter(enterGetEvents) // refused while completions wait
					g.Poll()
				}
			}
		}
		g.drain()
		testutil.True(t, c.n == total, "%d of %d completions", c.n, total)
	})
}
