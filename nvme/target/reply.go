package target

import (
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// replyWriter writes a reply into the memory of a request, in order. What does not fit is dropped.
type replyWriter struct {
	segs []mem.Segment // not changed: the transport sends them
	i    int           // the segment to write next
	off  int           // and the byte in it
}

// space is the unwritten rest of the current segment, nil at the end.
func (w *replyWriter) space() []byte {
	for w.i < len(w.segs) {
		if b := w.segs[w.i].B[w.off:]; len(b) > 0 {
			return b
		}
		w.i, w.off = w.i+1, 0
	}
	return nil
}

func (w *replyWriter) write(b []byte) {
	for len(b) > 0 {
		n := copy(w.space(), b)
		if n == 0 {
			return
		}
		b = b[n:]
		w.off += n
	}
}

// fill zeroes the rest: the memory has been used before, and a host must not see what for.
func (w *replyWriter) fill() {
	for b := w.space(); b != nil; b = w.space() {
		clear(b)
		w.off += len(b)
	}
}

// reply completes a command with data from the controller; the rest of the host's buffer becomes
// zeroes.
func (h *Handler) reply(c *cmd, result uint64, data []byte) {
	w := replyWriter{segs: c.req.Segs}
	w.write(data)
	w.fill()
	h.finish(c, result, nvme.Success)
}
