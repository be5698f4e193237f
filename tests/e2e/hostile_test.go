package e2e

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// outcome is what a hostile command may end with.
type outcome struct {
	codes []nvme.Status // without DNR and More
	retry bool          // the host may try again: DNR must not be set; otherwise it must be
	ends  bool          // the connection may end instead
	// endsTCP: over TCP only.
	endsTCP bool
}

func refused(codes ...nvme.Status) outcome { return outcome{codes: codes} }

// accepts judges an answer.
func (o outcome) accepts(cqe *nvme.CQE, err error) bool {
	if err != nil {
		return o.ends && errors.Is(err, host.ErrClosed)
	}
	st := cqe.Status()
	if !slices.Contains(o.codes, st.Code()) {
		return false
	}
	return st.OK() || (st&nvme.DNR == 0) == o.retry
}

// attack is one hostile command on an I/O or admin queue.
type attack struct {
	name string
	op   func(p *prey, op *host.Op)
	want outcome
	rdma bool // RDMA only
	tcp  bool // TCP only
}

// prey is a connected host that attacks from a queue, and another that must not notice.
type prey struct {
	r       *rig
	w       way
	c       *host.Controller
	q       *host.Queue
	buf     []byte
	steady  *host.Controller
	steadyQ *host.Queue
	data    []byte
}

func newPrey(r *rig, w way) *prey {
	p := &prey{r: r, w: w}
	p.steady = r.connect(w, func(o *host.Options) { o.HostNQN, o.HostID = hostNQN2, [16]byte{9} })
	p.steadyQ = r.open(p.steady, 1, 32)
	p.data = r.buffer(p.steady, 8192)
	pattern(p.data[:4096], 77)
	r.must(p.steadyQ.Write(testContext(r.t), 2, 100, 1, p.data[:4096], 0))
	p.reconnect()
	return p
}

func (p *prey) reconnect() {
	p.c = p.r.connect(p.w)
	p.q = p.r.open(p.c, 1, 32)
	p.buf = p.r.buffer(p.c, mdts+65536)
}

// unharmed checks that the other host reads what it wrote.
func (p *prey) unharmed(t *testing.T) {
	t.Helper()
	back := p.data[4096:]
	clear(back)
	if err := p.steadyQ.Read(testContext(t), 2, 100, 1, back); err != nil {
		t.Fatalf("another host: %v", err)
	}
	if d := differ(back, p.data[:4096]); d != "" {
		t.Fatalf("another host: %s", d)
	}
}

// run makes each attack, on a connection that works.
func (p *prey) run(t *testing.T, admin bool, attacks []attack) {
	for _, a := range attacks {
		if a.rdma && !p.w.isRDMA || a.tcp && p.w.isRDMA {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			op := new(host.Op)
			a.op(p, op)
			var cqe nvme.CQE
			var err error
			if admin {
				cqe, err = p.c.Admin(testContext(t), op)
			} else {
				cqe, err = p.q.Do(testContext(t), op)
			}
			a.want.ends = a.want.ends || a.want.endsTCP && !p.w.isRDMA
			if !a.want.accepts(&cqe, err) {
				t.Errorf("got %v, error %v; want %v, retry %t, or the end %t", cqe.Status(), err,
					a.want.codes, a.want.retry, a.want.ends)
			}
			p.unharmed(t)
			if p.q.Err() != nil || p.c.Err() != nil {
				p.reconnect()
			}
			if err := p.q.Read(testContext(t), 1, 0, 1, p.buf[:512]); err != nil {
				t.Fatalf("the queue afterwards: %v", err)
			}
		})
	}
}

// refuses tries the opcodes that are not known: each is an invalid one.
func (p *prey) refuses(t *testing.T, do func(context.Context, *host.Op) (nvme.CQE, error),
	known ...nvme.Opcode,
) {
	for code := range 256 {
		if slices.Contains(known, nvme.Opcode(code)) {
			continue
		}
		op := new(host.Op)
		op.SQE.SetOpcode(nvme.Opcode(code))
		op.SQE.SetNSID(1)
		if cqe, err := do(testContext(t), op); err != nil ||
			cqe.Status()&^nvme.More != nvme.InvalidOpcode|nvme.DNR {
			t.Fatalf("opcode %#x: %v, %v", code, cqe.Status(), err)
		}
	}
}

// TestBeforeConnect sends commands on connections without a controller (F01).
func TestBeforeConnect(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		for _, code := range []nvme.Opcode{
			nvme.AdminIdentify, nvme.AdminKeepAlive,
			nvme.AdminAsyncEventReq, nvme.AdminAbort, 0xC0,
		} {
			q, err := host.DialQueue(testContext(t), r.transport(w), 0, 32, 0)
			r.must(err)
			op := new(host.Op)
			op.SQE.SetOpcode(code)
			cqe, err := q.Do(testContext(t), op)
			if !(outcome{codes: []nvme.Status{nvme.CommandSequenceError}, ends: true}).accepts(&cqe,
				err) {
				t.Errorf("opcode %#x: %v, %v", code, cqe.Status(), err)
			}
			r.must(q.Close())
		}
	})
}

// TestIOBeforeEnable connects an I/O queue to a controller that is not enabled (F14).
func TestIOBeforeEnable(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		c, err := host.Dial(testContext(t), r.transport(w), w.hostOptions())
		r.must(err)
		defer c.Close()
		var ce *host.ConnectError
		if _, err := c.OpenQueue(testContext(t), 1, 32); !errors.As(err, &ce) {
			t.Errorf("got %v", err)
		}
		op := new(host.Op)
		op.SQE.SetOpcode(nvme.AdminIdentify)
		op.SQE.Identify().Set(nvme.CNSController, 0, 0)
		op.Data = make([]byte, 4096)
		if cqe, err := c.Admin(testContext(t), op); err != nil || cqe.Status().OK() {
			t.Errorf("identify before enable: %v, %v", cqe.Status(), err)
		}
		if err := c.Enable(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
