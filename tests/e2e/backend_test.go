package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/file"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// gated runs fn on a rig whose namespace 1 (512-byte blocks) has a gate.
func gated(t *testing.T, fn func(t *testing.T, r *rig, w way, g *gate)) {
	for _, w := range ways {
		if w.name != "tcp" && w.name != "rdma" {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			o := w.options
			g := &gate{Device: ramDevice(t)}
			o.devices = []backend.Device{g, ramDevice(t)}
			fn(t, newRig(t, o), w, g)
		})
	}
}

// outstanding fills q with reads and writes of namespace 1 that the gate holds.
func outstanding(t *testing.T, r *rig, q *host.Queue, buf []byte, g *gate) {
	t.Helper()
	var op host.Op
	for i := range q.Depth() {
		if b := buf[i*4096:][:4096]; i%2 == 0 {
			op.Write(1, uint64(i*8), 8, b, 0)
		} else {
			op.Read(1, uint64(i*8), 8, b)
		}
		op.Token = uint64(i)
		if _, err := q.Submit(&op); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(patience)
	for g.holds() < q.Depth() {
		if n, err := q.Poll(nil); n != 0 || err != nil {
			t.Fatalf("%d completions of a device that holds everything, %v", n, err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d commands have arrived\n%s", g.holds(), q.Depth(), r.log)
		}
		_ = q.Wait(time.Millisecond)
	}
}

// TestDeadQueueWithBusyDevice ends connections while the device works for them. Memory must stay
// theirs until the device lets go, and everything must come back then.
func TestDeadQueueWithBusyDevice(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, r *rig, c *host.Controller, q *host.Queue){
		"connection": func(_ *testing.T, _ *rig, _ *host.Controller,
			q *host.Queue,
		) {
			_ = q.Close()
		},
		"admin connection": func(_ *testing.T, _ *rig, c *host.Controller, q *host.Queue) {
			c.Close()
			_ = q.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			gated(t, func(t *testing.T, r *rig, w way, g *gate) {
				other := r.connect(w,
					func(o *host.Options) { o.HostNQN, o.HostID = hostNQN2, [16]byte{9} })
				oq := r.open(other, 1, 32)
				noise := r.buffer(other, 65536)
				fillBytes(noise, 0xA5)
				c := r.connect(w)
				q := r.open(c, 1, 17)
				buf := r.buffer(c, q.Depth()*4096)
				fillBytes(buf, 0x11)
				g.set(true, nil)
				outstanding(t, r, q, buf, g)
				end(t, r, c, q)
				err := pipeline(oq, 200,
					func(op *host.Op, i int) { op.Write(2, uint64(i), 128, noise, 0) })
				if err != nil {
					t.Fatalf("another namespace: %v", err)
				}
				r.ping(other)
				g.set(false, nil)
				// The device still writes what the dead queue gave it: that memory must not have
				// had another use. The rig finds what has not come back.
				for slba := uint64(0); slba < uint64(q.Depth()*8); slba += 128 {
					if err := oq.Read(testContext(t), 1, slba, 128, noise); err != nil {
						t.Fatalf("the namespace afterwards: %v", err)
					}
					for i, b := range noise {
						if b != 0 && b != 0x11 {
							t.Fatalf("byte %d of block %d is %#x, which nobody wrote there", i%512,
								slba+uint64(i/512), b)
						}
					}
				}
			})
		})
	}
}

// TestHungDevice checks that a device which does nothing stops nothing else.
func TestHungDevice(t *testing.T) {
	gated(t, func(t *testing.T, r *rig, w way, g *gate) {
		t.Parallel() // it mostly waits
		c := r.connect(w, func(o *host.Options) { o.KATO = 2 * time.Second })
		q, q2 := r.open(c, 1, 17), r.open(c, 2, 17)
		buf := r.buffer(c, q.Depth()*4096+4096)
		g.set(true, nil)
		outstanding(t, r, q, buf, g)
		r.ping(c)
		if aborted, err := c.Abort(testContext(t), 1, 0x1000); aborted || err != nil {
			t.Errorf("abort of what the device has: %t, %v", aborted, err)
		}
		last := buf[q.Depth()*4096:]
		r.must(q2.Write(testContext(t), 2, 0, 8, last, 0))
		// longer than KATO: the host is alive
		for start := time.Now(); time.Since(start) < 4500*time.Millisecond; {
			r.must(q2.Read(testContext(t), 2, 0, 8, last))
			r.must(q2.Wait(50 * time.Millisecond))
		}
		g.set(false, nil)
		collectAll(t, q, nvme.Success)
	})
}

// collectAll waits for everything outstanding and wants one status of all.
func collectAll(t *testing.T, q *host.Queue, want nvme.Status) {
	t.Helper()
	var done [32]host.Completion
	for q.Outstanding() > 0 {
		n, err := q.Poll(done[:])
		if err != nil {
			t.Fatal(err)
		}
		for i := range done[:n] {
			if st := done[i].Status() &^ nvme.More; st != want {
				t.Errorf("command %d: %v, want %v", done[i].Token, st, want)
			}
		}
		if n == 0 {
			_ = q.Wait(time.Second)
		}
	}
}

// TestAbortWaiting aborts commands that the device has not taken yet.
func TestAbortWaiting(t *testing.T) {
	gated(t, func(t *testing.T, r *rig, w way, g *gate) {
		c := r.connect(w)
		q := r.open(c, 1, 17)
		buf := r.buffer(c, 8192)
		r.must(q.Write(testContext(t), 1, 0, 8, buf[:4096], 0))
		g.choke(true)
		var op host.Op
		op.Read(1, 0, 8, buf[:4096])
		first, err := q.Submit(&op)
		r.must(err)
		op.Read(1, 0, 8, buf[4096:])
		op.Token = 1
		_, err = q.Submit(&op)
		r.must(err)
		if _, err := q.Poll(nil); err != nil {
			t.Fatal(err)
		}
		aborted := false
		for range 1000 { // until it has arrived
			if aborted, err = c.Abort(testContext(t), 1, first); err != nil {
				t.Fatal(err)
			}
			if aborted {
				break
			}
		}
		var done [1]host.Completion
		for n := 0; n == 0; {
			if n, err = q.Poll(done[:]); err != nil {
				t.Fatal(err)
			}
			_ = q.Wait(time.Millisecond)
		}
		if !aborted || done[0].Token != 0 || done[0].Status().Code() != nvme.AbortRequested {
			t.Errorf("aborted %t, command %d: %v", aborted, done[0].Token, done[0].Status())
		}
		g.choke(false)
		collectAll(t, q, nvme.Success)
	})
}

// TestDeviceErrors checks what hosts are told.
func TestDeviceErrors(t *testing.T) {
	gated(t, func(t *testing.T, r *rig, w way, g *gate) {
		c := r.connect(w)
		q := r.open(c, 1, 17)
		buf := r.buffer(c, 4096)
		ctx := testContext(t)
		for _, tc := range []struct {
			err         error
			read, write nvme.Status
		}{
			{backend.ErrIO, nvme.UnrecoveredReadError, nvme.WriteFault},
			{
				backend.ErrNoSpace, nvme.CapacityExceeded | nvme.DNR,
				nvme.CapacityExceeded | nvme.DNR,
			},
			{
				backend.ErrReadOnly, nvme.NamespaceWriteProtected | nvme.DNR,
				nvme.NamespaceWriteProtected | nvme.DNR,
			},
			{backend.ErrOutOfRange, nvme.LBAOutOfRange | nvme.DNR, nvme.LBAOutOfRange | nvme.DNR},
			{backend.ErrUnsupported, nvme.InvalidOpcode | nvme.DNR, nvme.InvalidOpcode | nvme.DNR},
			{backend.ErrOffline, nvme.InternalPathError, nvme.InternalPathError},
			{errors.New("something else"), nvme.InternalError, nvme.InternalError},
		} {
			g.set(false, fmt.Errorf("injected: %w", tc.err))
			wantStatus(t, fmt.Sprintf("read: %v", tc.err), q.Read(ctx, 1, 0, 8, buf), tc.read)
			wantStatus(t, fmt.Sprintf("write: %v", tc.err), q.Write(ctx, 1, 0, 8, buf, 0), tc.write)
			wantStatus(t, fmt.Sprintf("flush: %v", tc.err), q.Flush(ctx, 1), tc.write)
			wantStatus(t, fmt.Sprintf("write zeroes: %v", tc.err), q.WriteZeroes(ctx, 1, 0, 8, 0),
				tc.write)
		}
		g.set(false, nil)
		r.must(q.Read(ctx, 1, 0, 8, buf))
	})
}

// TestFile serves a file, ends the target and serves it again.
func TestFile(t *testing.T) {
	for _, w := range ways {
		if w.name != "tcp" && w.name != "rdma" {
			continue
		}
		for _, buffered := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, buffered %t", w.name, buffered), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "disk")
				serve := func(name string,
					fn func(t *testing.T, r *rig, q *host.Queue, buf []byte),
				) {
					t.Run(name, func(t *testing.T) {
						d, err := file.Open(file.Config{
							Path: path, Size: 16 << 20, BlockSize: 4096,
							Buffered: buffered,
						})
						if err != nil {
							t.Fatal(err)
						}
						o := w.options
						o.devices = []backend.Device{d}
						r := newRig(t, o)
						c := r.connect(w)
						fn(t, r, r.open(c, 1, 32), r.buffer(c, 1<<20))
					})
				}
				serve("write", func(t *testing.T, r *rig, q *host.Queue, buf []byte) {
					ctx := testContext(t)
					pattern(buf, 5)
					r.must(q.Write(ctx, 1, 3, 256, buf, 0))
					r.must(q.WriteZeroes(ctx, 1, 10, 2, 0))
					r.must(pipeline(q, 100,
						func(op *host.Op,
							i int,
						) {
							op.Write(1, uint64(1000+i), 1, buf[i*4096:][:4096],
								nvme.RWFUA)
						}))
					r.must(q.Flush(ctx, 1))
				})
				serve("read", func(t *testing.T, r *rig, q *host.Queue, buf []byte) {
					ctx := testContext(t)
					want := make([]byte, 1<<20)
					pattern(want, 5)
					r.must(pipeline(q, 100,
						func(op *host.Op,
							i int,
						) {
							op.Read(1, uint64(1000+i), 1, buf[i*4096:][:4096])
						}))
					if d := differ(buf[:100*4096], want[:100*4096]); d != "" {
						t.Fatal(d)
					}
					clear(want[7*4096 : 9*4096])
					r.must(q.Read(ctx, 1, 3, 256, buf))
					if d := differ(buf, want); d != "" {
						t.Fatal(d)
					}
				})
			})
		}
	}
}
