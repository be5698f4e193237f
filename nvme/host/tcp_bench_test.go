package host

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// wire is a TCP queue with the test itself as the controller, at the other end of a socket pair.
// There is no other goroutine, so only the host can allocate.
type wire struct {
	tb     testing.TB
	q      *Queue
	p      pdu.Params
	fd     int
	drain  []byte
	answer []byte
	data   []byte
	op     Op
	cids   []uint16
	done   []Completion
	sqhd   uint16
}

func newWire(tb testing.TB, p pdu.Params, size, bytes int) *wire {
	a, b := socketPair(tb)
	l := newTCPLink(a, linkParams{qid: 1, size: size})
	l.p = p
	return &wire{
		tb: tb, q: newQueue(l, 1, size, 8192), p: p, fd: b, drain: make([]byte, 1<<20),
		data:   make([]byte, bytes),
		answer: make([]byte, 0, size*(bytes+256)), done: make([]Completion, size),
	}
}

// round submits n commands, answers them and collects the completions.
func (w *wire) round(n int, write bool) {
	w.cids = w.cids[:0]
	blocks := uint32(len(w.data) / 512)
	for i := range n {
		if w.op.Read(1, uint64(i), blocks, w.data); write {
			w.op.Write(1, uint64(i), blocks, w.data, 0)
		}
		cid := testutil.Value(w.q.Submit(&w.op))(w.tb)
		w.cids = append(w.cids, cid)
	}
	if k, err := w.q.Poll(w.done); k != 0 || err != nil {
		w.tb.Fatalf("%d completions, %v", k, err)
	}
	w.answer = w.answer[:0]
	for _, cid := range w.cids {
		if !write {
			w.appendData(cid)
		}
		w.appendResponse(cid)
	}
	pipeRoundTrip(w.tb, w.fd, w.drain, w.answer)
	for got := 0; got < n; {
		k, err := w.q.Poll(w.done)
		if k == 0 {
			w.tb.Fatalf("%d of %d completions, %v", got, n, err)
		}
		got += k
	}
}

func (w *wire) appendData(cid uint16) {
	at := len(w.answer)
	w.answer = w.answer[:at+pdu.DataSize]
	d := (*pdu.Data)(w.answer[at:])
	pdo := d.SetC2H(&w.p, pdu.LastPDU, cid, 0, uint32(len(w.data)))
	w.answer = w.answer[:at+pdo]
	if w.p.HeaderDigest {
		pdu.PutHeaderDigest(w.answer[at:], pdu.DataSize)
	}
	w.answer = append(w.answer, w.data...)
	if w.p.DataDigest {
		end := len(w.answer)
		w.answer = w.answer[:end+pdu.DigestSize]
		pdu.PutCRC(w.answer[end:], pdu.CRC(0, w.data))
	}
}

func (w *wire) appendResponse(cid uint16) {
	at := len(w.answer)
	w.answer = w.answer[:at+pdu.CapsuleRespSize]
	r := (*pdu.CapsuleResp)(w.answer[at:])
	var cqe nvme.CQE
	w.sqhd = uint16((int(w.sqhd) + 1) % w.q.size)
	cqe.Fill(0, w.sqhd, cid, nvme.Success)
	r.Set(&w.p, &cqe)
	if w.p.HeaderDigest {
		w.answer = w.answer[:at+pdu.CapsuleRespSize+pdu.DigestSize]
		pdu.PutHeaderDigest(w.answer[at:], pdu.CapsuleRespSize)
	}
}

func TestTCPZeroAllocation(t *testing.T) {
	for _, p := range []pdu.Params{{}, {HeaderDigest: true, DataDigest: true}} {
		w := newWire(t, p, 33, 4096)
		for _, write := range []bool{false, true} {
			w.round(32, write)
			testutil.Equal(t, testutil.AllocsPerRun(50, func() { w.round(32, write) }), 0,
				"%+v, write %t allocations in 32 commands", p, write)
		}
	}
}

// BenchmarkTCP measures a command of the host at queue depth 32, with its share of the system calls
// and of the controller's answer.
func BenchmarkTCP(b *testing.B) {
	for name, write := range map[string]bool{"read4K": false, "write4K": true} {
		b.Run(name, func(b *testing.B) {
			w := newWire(b, pdu.Params{}, 33, 4096)
			b.ReportAllocs()
			for n := 0; n < b.N; n += 32 {
				w.round(32, write)
			}
		})
	}
}
