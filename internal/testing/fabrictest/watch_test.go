package fabrictest

import (
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// faulty is a handler in which a test may replace every step.
type faulty struct {
	q       fabric.Queue
	prepare func(*fabric.Request)
	execute func(*fabric.Request)
	free    func() // of buffers that were handed over
}

func (f *faulty) Open(q fabric.Queue) (fabric.Session, error) {
	f.q = q
	return f, nil
}

func (f *faulty) Prepare(reqs []*fabric.Request) {
	if f.prepare != nil {
		f.prepare(reqs[0])
	}
}

func (f *faulty) Execute(reqs []*fabric.Request) {
	if f.execute != nil {
		f.execute(reqs[0])
		return
	}
	f.complete(reqs[0])
}

func (f *faulty) complete(r *fabric.Request) {
	r.CQE.Fill(0, 1, r.SQE.CID(), r.Status)
	f.q.Complete([]*fabric.Request{r})
}

func (f *faulty) Abandon(*fabric.Request)          {}
func (f *faulty) EndZeroCopy(*fabric.Request)      {}
func (f *faulty) Sent(*fabric.Request)             {}
func (f *faulty) WriterWaits(*fabric.Request) bool { return false }
func (f *faulty) Close(fabric.Session)             {}

// sink is a queue with the test as its transport.
type sink struct{ info fabric.QueueInfo }

func (*sink) Complete([]*fabric.Request)                    {}
func (*sink) SetDepth(int, fabric.Peer, fabric.Claim) error { return nil }
func (*sink) Hold(bool)                                     {}
func (*sink) Allow() error                                  { return nil }
func (*sink) Disconnect(error)                              {}
func (*sink) Resume(*fabric.Request)                        {}

func (*sink) HandOverBuffers(r *fabric.Request) (free func()) {
	r.Segs = r.Segs[:len(r.Segs)/2]
	return func() {}
}

func (*sink) CanReceiveInto(segs []mem.Segment) bool { return len(segs) == 1 }

func (*sink) CanSendFrom(segs []mem.Segment) bool { return len(segs) == 1 }

// attach makes Prepare attach n segments of 8 bytes; the sink accepts only one.
func (f *faulty) attach(n int) {
	f.prepare = func(r *fabric.Request) {
		r.Dir, r.ZeroCopy = fabric.ControllerToHost, true
		for range n {
			r.Segs = append(r.Segs, mem.Segment{B: make([]byte, 8)})
			r.Length += 8
		}
		f.q.CanSendFrom(r.Segs)
	}
}

func (s *sink) Info() *fabric.QueueInfo { return &s.info }

// TestWatchReports commits every violation and expects a report of it.
func TestWatchReports(t *testing.T) {
	for _, row := range testutil.Rows(t, "violations") {
		var name, want string
		var steps []string
		row.Scan(&name, &want, &steps)
		t.Run(name, func(t *testing.T) {
			var got []string
			f := new(faulty)
			w := Watch(f, func(s string) { got = append(got, s) })
			q := &sink{info: fabric.QueueInfo{MaxDepth: 32}}
			s := testutil.Value(w.Open(q))(t)
			r := &fabric.Request{Session: s, Queue: q}
			r.SQE.SetCID(7)
			for _, name := range steps {
				step, known := violationSteps[name]
				testutil.MustTrue(t, known, "unknown step %s", name)
				step(env{f, w, s, r})
			}
			all := strings.Join(got, "; ")
			testutil.True(t, (want == "") == (all == "") && strings.Contains(all, want),
				"reported %q, want %q", all, want)
		})
	}
}
