package e2e

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/file"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// faulty runs fn on a harness whose namespace 1 (512-byte blocks) fails or holds IOs on request.
func faulty(t *testing.T, fn func(t *testing.T, h *Env, v Variant, g *backendtest.Faulty)) {
	for _, v := range Plain {
		t.Run(v.Name, func(t *testing.T) {
			o := v.Options
			g := backendtest.NewFaulty(harness.OpenRAM(t, 8<<20, 512))
			o.Devices = []backend.Device{g, harness.OpenRAM(t, 8<<20, 512)}
			fn(t, New(t, o), v, g)
		})
	}
}

// outstanding fills q with reads and writes of namespace 1, which the device holds.
func outstanding(t *testing.T, h *Env, q *host.Queue, buf []byte, g *backendtest.Faulty) {
	t.Helper()
	var op host.Op
	for i := range q.Depth() {
		if b := buf[i*4096:][:4096]; i%2 == 0 {
			op.Write(1, uint64(i*8), 8, b, 0)
		} else {
			op.Read(1, uint64(i*8), 8, b)
		}
		op.Token = uint64(i)
		testutil.Value(q.Submit(&op))(t)
	}
	h.Until("the device has all commands", func() bool {
		if n, err := q.Poll(nil); n != 0 || err != nil {
			t.Fatalf("%d completions of a device that holds everything, %v", n, err)
		}
		return g.Held() == q.Depth()
	})
}

// TestEndedQueueWithBusyDevice ends connections while the device has their I/Os. Their memory must
// not be reused until the device has completed them, and then all of it must be freed.
func TestEndedQueueWithBusyDevice(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, h *Env, c *host.Controller, q *host.Queue){
		"connection": func(_ *testing.T, _ *Env, _ *host.Controller, q *host.Queue) {
			_ = q.Close()
		},
		"admin connection": func(_ *testing.T, _ *Env, c *host.Controller, q *host.Queue) {
			c.Close()
			_ = q.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			faulty(t, func(t *testing.T, h *Env, v Variant, g *backendtest.Faulty) {
				other := h.Dial(v,
					func(o *host.Options) { o.HostNQN, o.HostID = HostNQN2, [16]byte{9} })
				oq := h.Open(other, 1, 32)
				seen := h.Buffer(other, 65536)
				copy(seen, bytes.Repeat([]byte{0xA5}, len(seen)))
				c := h.Dial(v)
				q := h.Open(c, 1, 17)
				buf := h.Buffer(c, q.Depth()*4096)
				copy(buf, bytes.Repeat([]byte{0x11}, len(buf)))
				g.Hold(nil)
				outstanding(t, h, q, buf, g)
				end(t, h, c, q)
				err := pipeline(oq, 200,
					func(op *host.Op, i int) { op.Write(2, uint64(i), 128, seen, 0) })
				testutil.MustEqual(t, err, nil, "another namespace")
				h.Ping(other)
				g.Release()
				// The device now writes the data of the ended queue, so its memory must not have
				// been reused. The harness checks that all of it is freed.
				for slba := uint64(0); slba < uint64(q.Depth()*8); slba += 128 {
					testutil.MustEqual(t, hosttest.Read(testutil.Context(t), oq, 1, slba, 128,
						seen), nil, "the namespace afterwards")
					other := len(seen) - bytes.Count(seen, []byte{0}) -
						bytes.Count(seen, []byte{0x11})
					testutil.MustEqual(t, other, 0,
						"bytes after block %d that were never written there", slba)
				}
			})
		})
	}
}

// TestHungDevice: a device that completes nothing delays nothing else.
func TestHungDevice(t *testing.T) {
	faulty(t, func(t *testing.T, h *Env, v Variant, g *backendtest.Faulty) {
		c := h.Dial(v, func(o *host.Options) { o.KATO = time.Minute })
		q, q2 := h.Open(c, 1, 17), h.Open(c, 2, 17)
		buf := h.Buffer(c, q.Depth()*4096+4096)
		g.Hold(nil)
		outstanding(t, h, q, buf, g)
		h.Ping(c)
		aborted, err := hosttest.Abort(testutil.Context(t), c, 1, 0x1000)
		testutil.True(t, !aborted && err == nil, "abort of a command that the device has: %t, %v",
			aborted, err)
		last := buf[q.Depth()*4096:]
		h.Must(hosttest.Write(testutil.Context(t), q2, 2, 0, 8, last, 0))
		for range 100 {
			h.Must(hosttest.Read(testutil.Context(t), q2, 2, 0, 8, last))
			op := new(host.Op)
			op.SQE.SetOpcode(nvme.AdminKeepAlive)
			if cqe, err := c.Admin(testutil.Context(t), op); err != nil || !cqe.Status().OK() {
				t.Fatalf("keep alive: %v, %v", cqe.Status(), err)
			}
		}
		g.Release()
		collectAll(t, q, nvme.Success)
	})
}

// collectAll waits for all outstanding commands and checks their status.
func collectAll(t *testing.T, q *host.Queue, want nvme.Status) {
	t.Helper()
	var done [32]host.Completion
	for q.Outstanding() > 0 {
		n := testutil.Value(q.Poll(done[:]))(t)
		for i := range done[:n] {
			testutil.Equal(t, done[i].Status()&^nvme.More, want, "command %d", done[i].Token)
		}
		if n == 0 {
			_ = q.Wait(time.Second)
		}
	}
}

// TestFile serves a file, stops the target and serves the file again.
func TestFile(t *testing.T) {
	t.Parallel()
	for _, v := range Plain {
		for _, buffered := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, buffered %t", v.Name, buffered), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "disk")
				type body func(t *testing.T, h *Env, q *host.Queue, buf []byte)
				serve := func(name string, fn body) {
					t.Run(name, func(t *testing.T) {
						d := testutil.Value(file.Open(file.Config{
							Path: path, Size: 16 << 20, BlockSize: 4096, Buffered: buffered,
						}))(t)
						o := v.Options
						o.Devices = []backend.Device{d}
						h := New(t, o)
						c := h.Dial(v)
						fn(t, h, h.Open(c, 1, 32), h.Buffer(c, 1<<20))
					})
				}
				serve("write", func(t *testing.T, h *Env, q *host.Queue, buf []byte) {
					ctx := testutil.Context(t)
					pattern(buf, 5)
					h.Must(hosttest.Write(ctx, q, 1, 3, 256, buf, 0))
					h.Must(hosttest.WriteZeroes(ctx, q, 1, 10, 2, 0))
					h.Must(pipeline(q, 100, func(op *host.Op, i int) {
						op.Write(1, uint64(1000+i), 1, buf[i*4096:][:4096], nvme.RWFUA)
					}))
					h.Must(hosttest.Flush(ctx, q, 1))
				})
				serve("read", func(t *testing.T, h *Env, q *host.Queue, buf []byte) {
					ctx := testutil.Context(t)
					want := make([]byte, 1<<20)
					pattern(want, 5)
					h.Must(pipeline(q, 100, func(op *host.Op, i int) {
						op.Read(1, uint64(1000+i), 1, buf[i*4096:][:4096])
					}))
					testutil.MustEqual(t, Differ(buf[:100*4096], want[:100*4096]), "", "")
					clear(want[7*4096 : 9*4096])
					h.Must(hosttest.Read(ctx, q, 1, 3, 256, buf))
					testutil.MustEqual(t, Differ(buf, want), "", "")
				})
			})
		}
	}
}
