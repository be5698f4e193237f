package e2e

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestCopiedBytes counts what the target copies of the data of commands on RAM namespaces: nothing
// of reads, what was never written included, nothing of writes of whole frames whose data is asked
// for, and the ends of others (docs/adr/0015). Over iWARP data is received in a place of its own
// and copied once. So is data in capsules of RDMA, and small data in those of TCP.
func TestCopiedBytes(t *testing.T) {
	if _, counted := mem.Copied(); !counted {
		t.Skip("a build with the tag invariants is missing: only that counts copies")
	}
	eachWay(t, nil, func(t *testing.T, r *rig, w way) {
		c := r.connect(w)
		q := r.open(c, 1, 33)
		small := 16 << 10 // data that comes with its command
		if n := w.options.tcp.InCapsuleSize; n > 0 {
			small = n
		}
		for _, size := range []int{512, 4096, 8192, 16 << 10, 128 << 10, 1 << 20} {
			const ios, frame = 40, 16 << 10
			buf := r.buffer(c, size)
			var done [64]host.Completion
			run := func(write bool, base int) int64 {
				t.Helper()
				before, _ := mem.Copied()
				var op host.Op
				for i := range ios {
					slba := uint64(base + i*size%(4<<20))
					if write {
						op.Write(1, slba/512, uint32(size/512), buf, 0)
					} else {
						op.Read(1, slba/512, uint32(size/512), buf)
					}
					if _, err := q.Submit(&op); err != nil {
						t.Fatal(err)
					}
					for q.Outstanding() > 0 {
						if err := collect(q, done[:]); err != nil {
							t.Fatal(err)
						}
					}
				}
				after, _ := mem.Copied()
				return after - before
			}
			run(true, 0)
			// RDMA devices learn the memory when it is first asked for.
			for end := time.Now().Add(patience); run(false, 0)+run(false, 32<<20) > 0 &&
				time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			if n := run(false, 0); n != 0 {
				t.Errorf("%d reads of %d bytes: %d bytes were copied", ios, size, n)
			}
			if n := run(false, 32<<20); n != 0 {
				t.Errorf("%d reads of %d bytes that were never written: %d bytes were copied", ios,
					size, n)
			}
			bound := int64(ios * size)
			switch {
			case !w.isRDMA && size <= small:
				n := run(true, 0)
				for i := 0; n != bound && i < 100; n, i = run(true, 0), i+1 {
					// a capsule that arrives in two parts is copied out of the receive buffer first
				}
				if n != bound {
					t.Errorf("%d writes of %d bytes: %d bytes were copied", ios, size, n)
				}
				continue
			case w.isRDMA && (size < frame || w.options.iwarp):
				if n := run(true, 0); n != bound {
					t.Errorf("%d writes of %d bytes: %d bytes were copied", ios, size, n)
				}
				continue
			}
			least := int64(0)
			if size < frame {
				least = bound
			}
			// of the latter the ends are copied
			for base, want := range map[int]int64{0: least, 512: ios * int64(min(size, frame))} {
				if w.options.tcp.MaxH2CData > 0 {
					want += bound / 3 // in small PDUs, each received with a part of the next
				}
				n := run(true, base)
				for i := 0; n > want && i < 100; n, i = run(true, base), i+1 {
					time.Sleep(time.Millisecond) // until devices know the memory
				}
				if n > want {
					t.Errorf("%d writes of %d bytes from %d on: %d bytes were copied", ios, size,
						base, n)
				}
			}
		}
	})
}
