package e2e

import (
	"errors"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
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

// accepts reports whether a completion, or an error of the queue, is permitted.
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
	// admin: on the admin queue, not on an I/O queue
	admin bool
}

// attacker is a host that sends hostile commands, with another host beside it that must be
// unaffected.
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
	h.Must(hosttest.Write(testutil.Context(h.T), a.bystanderQ, 2, 100, 1, a.data[:4096], 0))
	a.reconnect()
	return a
}

func (a *attacker) reconnect() {
	a.c = a.h.connect(a.v)
	a.q = a.h.Open(a.c, 1, 32)
	a.buf = a.h.Buffer(a.c, mdts+65536)
}

// checkBystander checks that the other host reads the data that it has written.
func (a *attacker) checkBystander(t *testing.T) {
	t.Helper()
	back := a.data[4096:]
	clear(back)
	testutil.MustEqual(t, hosttest.Read(testutil.Context(t), a.bystanderQ, 2, 100, 1, back), nil,
		"another host")
	testutil.MustEqual(t, differ(back, a.data[:4096]), "", "another host")
}

// run sends the hostile commands, each on a working connection.
func (a *attacker) run(t *testing.T, attacks []attack) {
	for _, tc := range attacks {
		if tc.rdma && !a.v.isRDMA || tc.tcp && a.v.isRDMA {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			op := new(host.Op)
			tc.op(a, op)
			var cqe nvme.CQE
			var err error
			if tc.admin {
				cqe, err = a.c.Admin(testutil.Context(t), op)
			} else {
				cqe, err = a.q.Do(testutil.Context(t), op)
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
			testutil.MustEqual(t, hosttest.Read(testutil.Context(t), a.q, 1, 0, 1,
				a.buf[:512]), nil, "the queue afterwards")
		})
	}
}
