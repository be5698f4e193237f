package e2e

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// connectAttack is an altered Connect command of the attacker, on a connection of its own.
type connectAttack struct {
	name   string
	qid    uint16
	cntlid uint16
	alter  func(op *host.Op)
	want   outcome
	ipo    int // -1: anything
	inData bool
}

// run sends the command. id is the attacker's controller.
func (c connectAttack) run(t *testing.T, a *attacker, id uint16) {
	cm := c.cntlid
	if c.qid != 0 && cm > nvme.CNTLIDMax {
		cm = id
	}
	q, err := host.DialQueue(harness.Context(t), a.h.transport(a.v), c.qid, 32, cm)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	o := a.v.hostOptions()
	op := host.ConnectCommand(c.qid, 32, &o, c.cntlid)
	c.alter(op)
	c.want.retry = false
	cqe, err := q.Do(harness.Context(t), op)
	want := c.want
	if err == nil && cqe.Status()&nvme.DNR == 0 {
		want.retry = true // both are right; the lab tests what must not be retried
	}
	if !want.accepts(&cqe, err) {
		t.Errorf("got %v, error %v; want %v", cqe.Status(), err, c.want.codes)
	}
	ip := nvme.InvalidParameter(cqe.DW0())
	if code := cqe.Status().Code(); c.ipo >= 0 &&
		(code == nvme.ConnectInvalidParameters || code == nvme.ConnectInvalidHost) &&
		(int(ip.IPO()) != c.ipo || ip.InData() != c.inData) {
		t.Errorf("names offset %d, in data %t; want %d, %t", ip.IPO(), ip.InData(), c.ipo, c.inData)
	}
	a.checkBystander(t)
	if err := a.q.Flush(harness.Context(t), 1); err != nil {
		t.Fatalf("the existing queue: %v", err)
	}
}

// TestHostileConnect sends Connect commands that must be refused, each on a connection of its own.
func TestHostileConnect(t *testing.T) {
	eachTransport(t, func(o *options) { o.hosts = []string{hostNQN, hostNQN2} },
		func(t *testing.T, h *env, v variant) {
			a := newAttacker(h, v)
			id := a.c.CNTLID()
			const subNQNAt, hostNQNAt, cntlidAt, hostIDAt = 256, 512, 16, 0
			bad := refused(nvme.ConnectInvalidParameters)
			for _, c := range []connectAttack{
				{
					"F02 record format", 0, 0xFFFF, func(op *host.Op) { op.SQE[40] = 1 },
					refused(nvme.ConnectIncompatibleFormat), -1, false,
				},
				{
					"F03 short data", 0, 0xFFFF, func(op *host.Op) { op.Data = op.Data[:512] },
					refused(nvme.DataSGLLengthInvalid), -1, false,
				},
				{
					"F03 no data", 0, 0xFFFF, func(op *host.Op) { op.Data = nil },
					refused(nvme.DataSGLLengthInvalid), -1, false,
				},
				{
					"F03 long data", 0, 0xFFFF,
					func(op *host.Op) { op.Data = append(op.Data, make([]byte, 512)...) },
					refused(nvme.DataSGLLengthInvalid), -1, false,
				},
				{
					"F04 unknown subsystem", 0, 0xFFFF,
					func(op *host.Op) { op.Data[subNQNAt+10] ^= 1 },
					bad, subNQNAt, true,
				},
				{
					"F04 wrong case", 0, 0xFFFF, func(op *host.Op) { op.Data[subNQNAt+1] = 'Q' },
					bad,
					subNQNAt, true,
				},
				{
					"F04 empty subsystem", 0, 0xFFFF,
					func(op *host.Op) { clear(op.Data[subNQNAt:hostNQNAt]) }, bad, subNQNAt, true,
				},
				{
					"F04 subsystem without NUL", 0, 0xFFFF,
					func(op *host.Op) { fillBytes(op.Data[subNQNAt:hostNQNAt], 0xFF) }, bad,
					subNQNAt,
					true,
				},
				{
					"F05 host not allowed", 0, 0xFFFF,
					func(op *host.Op) { op.Data[hostNQNAt+50]-- },
					refused(nvme.ConnectInvalidHost), hostNQNAt, true,
				},
				{
					"F06 empty host", 0, 0xFFFF,
					func(op *host.Op) { clear(op.Data[hostNQNAt:768]) },
					refused(nvme.ConnectInvalidHost), hostNQNAt, true,
				},
				{
					"F06 host without NUL", 0, 0xFFFF,
					func(op *host.Op) { fillBytes(op.Data[hostNQNAt:768], '%') }, bad, hostNQNAt,
					true,
				},
				{
					"F06 host with escapes", 0, 0xFFFF,
					func(op *host.Op) { copy(op.Data[hostNQNAt:], "\x1b[2J\n%s\xff\x00") },
					refused(nvme.ConnectInvalidParameters, nvme.ConnectInvalidHost), hostNQNAt,
					true,
				},
				{"F07 static controller", 0, 5, func(*host.Op) {}, bad, cntlidAt, true},
				{"F07 any static controller", 0, 0xFFFE, func(*host.Op) {}, bad, cntlidAt, true},
				{
					"F08 SQSIZE 0", 0, 0xFFFF, func(op *host.Op) { op.SQE[44], op.SQE[45] = 0, 0 },
					bad,
					44, false,
				},
				{
					"F09 SQSIZE FFFFh", 0, 0xFFFF,
					func(op *host.Op) { op.SQE[44], op.SQE[45] = 0xFF, 0xFF }, bad, 44, false,
				},
				{
					"F09 I/O SQSIZE FFFFh", 2, id,
					func(op *host.Op) { op.SQE[44], op.SQE[45] = 0xFF, 0xFF }, bad, 44, false,
				},
				{"F10 unknown controller", 2, id + 100, func(*host.Op) {}, bad, cntlidAt, true},
				{"F10 any controller", 2, 0xFFFF, func(*host.Op) {}, bad, cntlidAt, true},
				{
					"F11 another host's controller", 2, id,
					func(op *host.Op) { copy(op.Data[hostNQNAt:], hostNQN2) },
					refused(nvme.ConnectInvalidParameters, nvme.ConnectInvalidHost), -1, true,
				},
				{
					"F11 another host identifier", 2, id, func(op *host.Op) { op.Data[hostIDAt]++ },
					refused(nvme.ConnectInvalidParameters, nvme.ConnectInvalidHost), -1, true,
				},
				{
					"F12 queue exists", 1, id, func(*host.Op) {},
					refused(nvme.CommandSequenceError, nvme.InvalidQueueIdentifier,
						nvme.ConnectInvalidParameters), -1, false,
				},
				{
					"F13 QID beyond those granted", 1000, id, func(*host.Op) {},
					refused(nvme.ConnectInvalidParameters, nvme.InvalidQueueIdentifier), -1, false,
				},
				{
					"F15 I/O queue of the discovery subsystem", 2, id,
					func(op *host.Op) { copy(op.Data[subNQNAt:], nvme.DiscoveryNQN+"\x00") }, bad,
					-1,
					true,
				},
				{
					"F21 host identifier 0 on an I/O queue is ignored", 2, id,
					func(op *host.Op) { clear(op.Data[:16]) }, refused(nvme.Success), -1, false,
				},
				{
					"F21 host identifier 0", 0, 0xFFFF, func(op *host.Op) { clear(op.Data[:16]) },
					refused(nvme.ConnectInvalidParameters, nvme.HostIDInconsistent, nvme.Success),
					-1,
					true,
				},
			} {
				t.Run(c.name, func(t *testing.T) { c.run(t, a, id) })
			}
		})
}

func fillBytes(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}
