package ram

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestUnreadReads: zero-copy reads that never end stop no write. Beyond a limit they are refused,
// so each of their frames may be replaced, while zero-copy writes get their full part.
func TestUnreadReads(t *testing.T) {
	const size, n = 64 << 20, 256 << 10
	dev := audited{mustOpen(t, size, 512).(*device), t}
	var clients [3]*backendtest.Client
	for i := range clients {
		clients[i] = backendtest.NewClient(t, dev, 1<<20)
	}
	writer := clients[0]
	for off := int64(0); off < size; off += 1 << 20 {
		fill(writer, off, 1<<20, 1)
	}
	type read struct {
		l    backend.ZeroCopyReader
		segs []mem.Segment
		off  int64
	}
	var reads []read
	off := int64(0)
	for _, c := range clients {
		l := c.Channel.(backend.ZeroCopyReader)
		for ; off < size; off += n {
			segs, ok := l.StartZeroCopyRead(nil, off, n)
			if !ok {
				break
			}
			reads = append(reads, read{l, segs, off})
		}
	}
	if got, limit := int64(len(reads))*n, dev.frames.readLimit()*minFrame; got > limit ||
		got < limit-3*n {
		t.Errorf("%d bytes are being read, the limit is %d", got, limit)
	}
	var writes [][]mem.Segment
	w := clients[1].Channel.(backend.ZeroCopyWriter)
	for {
		segs, ok := w.StartZeroCopyWrite(nil, 0, n)
		if !ok {
			break
		}
		writes = append(writes, segs)
	}
	for off := int64(0); off < size; off += minFrame {
		io := writer.Write(off, writer.Memory(0, 512))
		writer.Submit(io)
		testutil.MustTrue(t, !writer.Channel.Arm(), "a write at %d waits for reads", off)
		writer.Wait(1)
	}
	for _, r := range reads {
		uniform(t, r.segs, 1)
		r.l.EndZeroCopyRead(r.segs, r.off, n)
	}
	for _, segs := range writes {
		w.AbortZeroCopyWrite(segs)
	}
	for _, c := range clients {
		c.Close()
	}
	testutil.Equal(t, dev.readable.Load(), dev.frames.readLimit(), "frames may be read afterwards")
	testutil.Must(t, dev.Close())
}
