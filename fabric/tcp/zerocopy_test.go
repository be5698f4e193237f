package tcp

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// newManualFile is a group whose zero-copy reads are of the memory of a file, with a connection
// without flow control of the submission queue, for which responses to reads are left out.
func newManualFile(t *testing.T, p pdu.Params) (h *manual, c *client, path string) {
	t.Helper()
	h = newManual(t, options{zeroCopy: true})
	path = filepath.Join(t.TempDir(), "file")
	testutil.Must(t, os.WriteFile(path, h.d.data.Bytes(), 0o600))
	f := testutil.Value(os.Open(path))(t)
	region := testutil.Value(mem.MapFile("test file", int(f.Fd()), diskSize))(t)
	testutil.Check(t, f.Close())
	testutil.Check(t, h.d.data.Unmap())
	h.d.data, h.d.file = region, true
	c = &client{tb: t, p: p}
	h.open()
	var r pdu.ICReq
	r.Set(&p, 1)
	h.send(r[:])
	h.send(c.connectPDU(1, 8, nvme.CATTRNoFlowControl))
	if got, want := len(h.recv()), pdu.ICRespSize+pdu.CapsuleRespSize+
		p.HeaderDigestSize(); got != want {
		t.Fatalf("%d bytes of answers, want %d", got, want)
	}
	return h, c, path
}

// drain takes everything that the target sends, though the socket takes little at a time.
func (h *manual) drain() (all []byte) {
	for idle := 0; idle < 2; idle++ {
		if b := h.recv(); len(b) > 0 {
			all, idle = append(all, b...), 0
		}
		for q := range h.g.queues.All() {
			q.event(unix.EPOLLOUT)
		}
		h.turn()
	}
	return all
}

// wantRead takes the answer to a read of n bytes at off, of which the file has less, off the front
// of b.
func wantRead(t *testing.T, c *client, b []byte, cid uint16, off, n, has int,
	want nvme.Status,
) []byte {
	t.Helper()
	d := (*pdu.Data)(b)
	if d.Header().Type() != pdu.TypeC2HData || d.CCCID() != cid || int(d.DATAL()) != n ||
		d.Header().Flags()&pdu.Success != 0 {
		t.Fatalf("command %d: %x", cid, b[:pdu.DataSize])
	}
	size := pdu.DataSize + c.p.HeaderDigestSize() + n
	data := b[size-n : size]
	for i := range has {
		if data[i] != pattern(off+i) {
			t.Fatalf("command %d: byte %d is %#x", cid, i, data[i])
		}
	}
	resp := (*pdu.CapsuleResp)(b[size:])
	if resp.Header().Type() != pdu.TypeCapsuleResp || resp.CQE().CID() != cid ||
		resp.CQE().Status() != want || resp.CQE().SQHD() != noFlowControl {
		t.Errorf("command %d: %x, want %v", cid, *resp, want)
	}
	return b[size+pdu.CapsuleRespSize+c.p.HeaderDigestSize():]
}

// A file is sent from where it is mapped. Where it has been cut off the command fails, and no
// other; nothing but the file reaches the host.
func TestFileCutOff(t *testing.T) {
	for _, p := range []pdu.Params{{}, {HeaderDigest: true}} {
		for _, n := range []int{512, 4 << 10, 16 << 10, 64 << 10} {
			fileCutOff(t, p, n)
		}
	}
}

func fileCutOff(t *testing.T, p pdu.Params, n int) {
	h, c, path := newManualFile(t, p)
	defer h.close()
	h.d.piece = 4096
	read := func(offs ...int) []byte {
		var all []byte
		for i, off := range offs {
			sqe := rw(nvme.NVMRead, uint16(i), off, n, false)
			all = append(all, c.capsule(&sqe, nil)...)
		}
		h.send(all)
		return h.drain()
	}
	before, counted := mem.Copied()
	if b := wantRead(t, c, read(1<<20), 0, 1<<20, n, n, nvme.Success); len(b) != 0 {
		t.Errorf("more came: %x", b)
	}
	if after, _ := mem.Copied(); counted && after != before {
		t.Errorf("%d bytes were copied", after-before)
	}
	const end = 2<<20 + 8192
	testutil.Must(t, os.Truncate(path, end))
	half := end - n/1024*512
	b := read(0, end-n, half, 1<<20, end, end+n)
	b = wantRead(t, c, b, 0, 0, n, n, nvme.Success)
	b = wantRead(t, c, b, 1, end-n, n, n, nvme.Success)
	b = wantRead(t, c, b, 2, half, n, 0, nvme.UnrecoveredReadError)
	b = wantRead(t, c, b, 3, 1<<20, n, n, nvme.Success)
	b = wantRead(t, c, b, 4, end, n, 0, nvme.UnrecoveredReadError)
	if b = wantRead(t, c, b, 5, end+n, n, 0, nvme.UnrecoveredReadError); len(b) != 0 {
		t.Errorf("more came: %x", b)
	}
	if b = wantRead(t, c, read(4096), 0, 4096, n, n, nvme.Success); len(b) != 0 {
		t.Errorf("more came: %x", b)
	}
	h.exhaust()
	if b = read(end); h.t.Usage().Connections != 0 {
		t.Errorf("the connection lives on without memory to copy to: %d bytes", len(b))
	}
}

// A file that is cut off while its data is on the way to a slow host: the data that has left was
// right, and the command fails, whether the rest is to be sent or is copied first.
func TestFileCutOffUnderway(t *testing.T) {
	for _, tick := range []bool{false, true} {
		h, c, path := newManualFile(t, pdu.Params{})
		h.narrow()
		const n = 1 << 20
		for i := range 3 {
			sqe := rw(nvme.NVMRead, uint16(i), i*n, n, false)
			h.send(c.capsule(&sqe, nil))
		}
		q := h.queue()
		has := q.sent - pdu.DataSize
		if !q.blocked || has <= 0 || has >= n {
			t.Fatalf("%d bytes of data have left", has)
		}
		testutil.Must(t, os.Truncate(path, 0))
		if tick {
			h.loop.advance(300 * time.Millisecond)
			h.loop.advance(300 * time.Millisecond)
			if h.d.ended.Load() != 3 {
				t.Errorf("zero copy of %d reads ended", h.d.ended.Load())
			}
		}
		b := wantRead(t, c, h.drain(), 0, 0, n, has, nvme.UnrecoveredReadError)
		b = wantRead(t, c, b, 1, n, n, 0, nvme.UnrecoveredReadError)
		if b = wantRead(t, c, b, 2, 2*n, n, 0, nvme.UnrecoveredReadError); len(b) != 0 {
			t.Errorf("more came: %d bytes", len(b))
		}
		h.close()
	}
}

// A command whose data has left does not fail: a part of its response may have left, too.
func TestFileCutOffAfterwards(t *testing.T) {
	h, c, path := newManualFile(t, pdu.Params{})
	h.narrow()
	const n = 1 << 20
	sqe := rw(nvme.NVMRead, 0, 0, n, false)
	h.send(c.capsule(&sqe, nil))
	testutil.Must(t, os.Truncate(path, 0))
	q := h.queue()
	for left, want := range map[int]nvme.Status{
		pdu.CapsuleRespSize + 1: nvme.UnrecoveredReadError,
		pdu.CapsuleRespSize:     nvme.Success, 1: nvme.Success,
	} {
		r, sent := q.sendq.First(), q.sent
		cqe, segs := r.CQE, append([]mem.Segment(nil), r.Segs...)
		q.sent = r.wire - left
		if !q.copyData(r) || r.CQE.Status() != want || r.ZeroCopy {
			t.Errorf("%d bytes before the end: %v", left, r.CQE.Status())
		}
		r.memory.Free() // all as it was
		r.CQE, r.Segs, r.ZeroCopy, q.sent = cqe, segs, true, sent
		h.d.change(&r.Request, idle, attached)
	}
	h.close()
}

// Data digests are computed by the target, which leaves files to the kernel; everything else may be
// sent from where it is.
func TestReachesFiles(t *testing.T) {
	for _, digest := range []bool{false, true} {
		h := newManual(t, options{})
		h.connect(pdu.Params{DataDigest: digest}, 8)
		b := h.d.data.Bytes()[:512]
		if q := h.queue(); q.CanSendFrom([]mem.Segment{{B: b, File: true}}) == digest ||
			!q.CanSendFrom([]mem.Segment{{B: b}}) || !q.CanSendFrom(nil) {
			t.Errorf("data digest %v: reaches something else", digest)
		}
		h.close()
	}
}
