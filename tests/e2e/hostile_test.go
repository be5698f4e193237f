package e2e

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// outcome is the permitted outcome of a hostile command.
type outcome struct {
	codes []nvme.Status // without DNR and More
	retry bool          // DNR must not be set; otherwise it must be set
	ends  bool          // the connection may end instead
	// endsTCP is ends over TCP only.
	endsTCP bool
}

func refused(codes ...nvme.Status) outcome { return outcome{codes: codes} }

// accepts says whether a completion, or an error of the queue, is permitted.
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
	op   func(a *attacker, op *host.Op)
	want outcome
	rdma bool // RDMA only
	tcp  bool // TCP only
}

// attacker is a host that sends hostile commands, with another host beside it that must not be
// affected.
type attacker struct {
	h          *env
	v          variant
	c          *host.Controller
	q          *host.Queue
	buf        []byte
	bystander  *host.Controller
	bystanderQ *host.Queue
	data       []byte
}

func newAttacker(h *env, v variant) *attacker {
	a := &attacker{h: h, v: v}
	a.bystander = h.connect(v,
		func(o *host.Options) { o.HostNQN, o.HostID = hostNQN2, [16]byte{9} })
	a.bystanderQ = h.Open(a.bystander, 1, 32)
	a.data = h.Buffer(a.bystander, 8192)
	pattern(a.data[:4096], 77)
	h.Must(a.bystanderQ.Write(harness.Context(h.T), 2, 100, 1, a.data[:4096], 0))
	a.reconnect()
	return a
}

func (a *attacker) reconnect() {
	a.c = a.h.connect(a.v)
	a.q = a.h.Open(a.c, 1, 32)
	a.buf = a.h.Buffer(a.c, mdts+65536)
}

// checkBystander checks that the other host reads what it has written.
func (a *attacker) checkBystander(t *testing.T) {
	t.Helper()
	back := a.data[4096:]
	clear(back)
	if err := a.bystanderQ.Read(harness.Context(t), 2, 100, 1, back); err != nil {
		t.Fatalf("another host: %v", err)
	}
	if d := differ(back, a.data[:4096]); d != "" {
		t.Fatalf("another host: %s", d)
	}
}

// run sends the hostile commands, each on a working connection.
func (a *attacker) run(t *testing.T, admin bool, attacks []attack) {
	for _, tc := range attacks {
		if tc.rdma && !a.v.isRDMA || tc.tcp && a.v.isRDMA {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			op := new(host.Op)
			tc.op(a, op)
			var cqe nvme.CQE
			var err error
			if admin {
				cqe, err = a.c.Admin(harness.Context(t), op)
			} else {
				cqe, err = a.q.Do(harness.Context(t), op)
			}
			tc.want.ends = tc.want.ends || tc.want.endsTCP && !a.v.isRDMA
			if !tc.want.accepts(&cqe, err) {
				t.Errorf("got %v, error %v; want %v, retry %t, or the end %t", cqe.Status(), err,
					tc.want.codes, tc.want.retry, tc.want.ends)
			}
			a.checkBystander(t)
			if a.q.Err() != nil || a.c.Err() != nil {
				a.reconnect()
			}
			if err := a.q.Read(harness.Context(t), 1, 0, 1, a.buf[:512]); err != nil {
				t.Fatalf("the queue afterwards: %v", err)
			}
		})
	}
}

// refuses sends all opcodes that are not known: each is an Invalid Opcode.
func (a *attacker) refuses(t *testing.T, do func(context.Context, *host.Op) (nvme.CQE, error),
	known ...nvme.Opcode,
) {
	for code := range 256 {
		if slices.Contains(known, nvme.Opcode(code)) {
			continue
		}
		op := new(host.Op)
		op.SQE.SetOpcode(nvme.Opcode(code))
		op.SQE.SetNSID(1)
		if cqe, err := do(harness.Context(t), op); err != nil ||
			cqe.Status()&^nvme.More != nvme.InvalidOpcode|nvme.DNR {
			t.Fatalf("opcode %#x: %v, %v", code, cqe.Status(), err)
		}
	}
}

// TestBeforeConnect sends commands on connections without a controller (F01).
func TestBeforeConnect(t *testing.T) {
	eachTransport(t, nil, func(t *testing.T, h *env, v variant) {
		for _, code := range []nvme.Opcode{
			nvme.AdminIdentify, nvme.AdminKeepAlive,
			nvme.AdminAsyncEventReq, nvme.AdminAbort, 0xC0,
		} {
			q, err := host.DialQueue(harness.Context(t), h.transport(v), 0, 32, 0)
			h.Must(err)
			op := new(host.Op)
			op.SQE.SetOpcode(code)
			cqe, err := q.Do(harness.Context(t), op)
			want := outcome{codes: []nvme.Status{nvme.CommandSequenceError}, ends: true}
			if !want.accepts(&cqe, err) {
				t.Errorf("opcode %#x: %v, %v", code, cqe.Status(), err)
			}
			h.Must(q.Close())
		}
	})
}

// TestIOBeforeEnable connects an I/O queue to a controller that is not enabled (F14).
func TestIOBeforeEnable(t *testing.T) {
	eachTransport(t, nil, func(t *testing.T, h *env, v variant) {
		c, err := host.Dial(harness.Context(t), h.transport(v), v.hostOptions())
		h.Must(err)
		defer c.Close()
		var ce *host.ConnectError
		if _, err := c.OpenQueue(harness.Context(t), 1, 32); !errors.As(err, &ce) {
			t.Errorf("got %v", err)
		}
		op := new(host.Op)
		op.SQE.SetOpcode(nvme.AdminIdentify)
		op.SQE.Identify().Set(nvme.CNSController, 0, 0)
		op.Data = make([]byte, 4096)
		if cqe, err := c.Admin(harness.Context(t), op); err != nil || cqe.Status().OK() {
			t.Errorf("identify before enable: %v, %v", cqe.Status(), err)
		}
		if err := c.Enable(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
