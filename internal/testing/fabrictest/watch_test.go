package fabrictest

import (
	"errors"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// faulty is a handler in which a test may replace every step.
type faulty struct {
	q       fabric.Queue
	prepare func(*fabric.Request)
	execute func(*fabric.Request)
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

// TestHandlerOverLoop: the scripted handler and the in-process transport keep the contract with
// each other.
func TestHandlerOverLoop(t *testing.T) {
	w := testutil.Value(NewWorld(1))(t)
	region := testutil.Value(mem.Map("fabrictest", 4096))(t)
	var written []byte
	h := &handler{
		Script: func(r *fabric.Request) answer {
			switch r.SQE.Opcode() {
			case nvme.NVMRead:
				return answer{
					Dir: fabric.ControllerToHost, Length: r.HostLength,
					Data: []byte("hello"), Result: 9,
				}
			case nvme.NVMWrite:
				return answer{Dir: fabric.HostToController, Length: r.HostLength, Hold: true}
			case nvme.NVMFlush:
				return answer{
					Dir: fabric.ControllerToHost, Length: 4096,
					ZeroCopy: []mem.Segment{{B: region.Bytes(), Region: region.ID()}},
				}
			}
			return answer{Status: nvme.InvalidOpcode}
		},
		Written: func(_ *fabric.Request, b []byte) { written = b },
	}
	q := testutil.Value(Dial(w.Reactors[0], Watch(h, func(s string) { t.Error(s) }),
		fabric.QueueInfo{MaxDepth: 8}))(t)
	cmd := func(op nvme.Opcode, data []byte) *Command {
		c := &Command{Data: data}
		c.SQE.SetOpcode(op)
		return c
	}
	read, write := cmd(nvme.NVMRead, make([]byte, 8)), cmd(nvme.NVMWrite, []byte("data"))
	attached, refused, lost := cmd(nvme.NVMFlush, make([]byte, 4096)), cmd(0x55, nil),
		cmd(nvme.NVMRead, make([]byte, 8))
	lost.Lost = true
	copy(region.Bytes(), "zero")
	testutil.Must(t, q.Send(read, write, attached, refused, lost))
	if string(read.Data) != "hello\x00\x00\x00" || read.CQE.Result() != 9 ||
		string(attached.Data[:4]) != "zero" || string(written) != "data" {
		t.Errorf("read %q, attached %q, written %q", read.Data, attached.Data[:4], written)
	}
	testutil.True(t, refused.CQE.Status() == nvme.InvalidOpcode && !write.Done && h.Held() == 1 &&
		h.Abandoned == 1 && h.ZeroCopyEnds == 1, "refused %v, write done %v, %+v",
		refused.CQE.Status(), write.Done, h)
	h.Finish()
	testutil.True(t, write.Done && h.Held() == 0, "Finish did not complete the write")
	held := cmd(nvme.NVMWrite, []byte("more"))
	testutil.Must(t, q.Send(held))
	h.Disconnect(errors.New("enough"))
	w.Settle()
	if held.Done || !q.Closed() || q.Outstanding() != 0 || h.Closed != 1 {
		t.Errorf("done %v, closed %v, %d outstanding", held.Done, q.Closed(), q.Outstanding())
	}
	h.RefuseOpen = true
	testutil.True(t, testutil.Err(Dial(w.Reactors[0], h, fabric.QueueInfo{MaxDepth: 8})) != nil,
		"Open was not refused")
	testutil.Check(t, errors.Join(w.Close(), region.Unmap()))
}
