package target

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// FuzzCommand sends arbitrary commands on the admin and I/O queue of a connected host. Each gets
// one CQE, the contract is kept (the harness checks it), and the target keeps running.
func FuzzCommand(f *testing.F) {
	for _, c := range []*fabrictest.Command{
		rw(nvme.NVMRead, 1, 0, 8, nil), rw(nvme.NVMWrite, 1, 1<<55, 8, nil),
		rw(nvme.NVMWriteZeroes, 1, 0, 65536, nil), rw(nvme.NVMCompare, 1, 0, 8, nil),
		rw(nvme.NVMVerify, 1, 0, 8, nil), copyTo(8, nvme.CopyRanges, source{blocks: 8}),
		fused(nvme.NVMCompare, 1, 0, make([]byte, 4096)), fused(nvme.NVMWrite, 2, 0, nil),
		dsm(1, true, [2]uint64{0, 1}), command(nvme.NVMFlush, nvme.NSIDAll, nil),
		identifyCommand(nvme.CNSController, 0),
		logCommand(nvme.LogDiscovery, 4096, 0), logCommand(nvme.LogError, 64, 1<<63),
		getFeature(nvme.FeatureHostIdentifier, 0, 1),
		setFeature(nvme.FeatureKeepAliveTimer, 1), propertyGetCommand(nvme.PropertyCAP),
		propertySetCommand(nvme.PropertyCC, 0),
		adminArgs(testSub).command(), command(nvme.AdminAbort, 0, nil),
		command(nvme.AdminAsyncEventReq, 0, nil),
		selfTestCommand(nvme.SelfTestExtended, nvme.NSIDAll),
		telemetryCommand(nvme.LogTelemetryHost, true, 4096, 0), commandSetsOf(1),
	} {
		f.Add(c.SQE[:], uint32(4096), false, []byte{1, 2, 3})
		f.Add(c.SQE[:], uint32(0), true, []byte{})
	}
	f.Fuzz(func(t *testing.T, sqe []byte, length uint32, capsule bool, data []byte) {
		r, h := joined(t, 2, 1, ramSubsystem(t, 2))
		d := r.connectHost(0, func(a *connectArgs) { a.sub = nvme.DiscoveryNQN })
		fresh := r.dial(0)
		for _, q := range []*fabrictest.Queue{fresh, h.io[0], d.admin, h.admin} {
			c := &fabrictest.Command{
				Data:      make([]byte, length%(1<<20+4096)),
				InCapsule: capsule,
			}
			copy(c.SQE[:], sqe)
			copy(c.Data, data)
			r.send(q, c)
			r.w.Settle()
			switch {
			case c.Done || q.Closed():
			// waits for an event
			case c.SQE.Opcode() == nvme.AdminAsyncEventReq && (q == h.admin || q == d.admin):
			default:
				if c.SQE.FUSE() == 1 { // waits for the second one
					r.w.Advance(time.Duration(pairWait) + time.Second)
				}
				r.until("the command completes", func() bool { return c.Done || q.Closed() })
			}
			r.w.Advance(10 * time.Millisecond) // for a self-test
		}
	})
}

// TestRandomCommands does the same as the fuzzer with many commands on one target, biased towards
// known ones.
func TestRandomCommands(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	r := newHarness(t, 2, ramSubsystem(t, 2))
	var h *host
	for i := range 5000 {
		if h == nil || h.admin.Closed() || h.io[0].Closed() || !h.csts().RDY() {
			if h != nil {
				h.hangUp()
			}
			h = r.connectHost(1)
		}
		q := h.io[0]
		if i%2 == 0 {
			q = h.admin
		}
		c := &fabrictest.Command{Data: make([]byte,
			[]int{0, 4, 512, 1024, 4096, 16384}[rnd.IntN(6)]), InCapsule: rnd.IntN(8) == 0}
		for j := range c.SQE {
			if rnd.IntN(4) == 0 {
				c.SQE[j] = byte(rnd.Uint32())
			}
		}
		op := []nvme.Opcode{
			0, 1, 2, 5, 6, 8, 9, 10, 20, 24, 25, nvme.FabricsOpcode,
		}[rnd.IntN(12)]
		c.SQE.SetOpcode(op)
		c.SQE.SetFlags(psdtSGL << 6)
		c.SQE.SetNSID(uint32(rnd.IntN(4)))
		if op == nvme.FabricsOpcode {
			c.SQE[4] = byte(rnd.IntN(10))
		}
		r.do(q, c)
		if i%16 == 0 {
			r.w.Advance(5 * time.Millisecond)
		}
	}
}

// commandSetsOf is Identify with CNS 1Ch.
func commandSetsOf(cntlid uint16) *fabrictest.Command {
	c := identifyCommand(nvme.CNSCommandSets, 0)
	c.SQE.Identify().Set(nvme.CNSCommandSets, cntlid, 0)
	return c
}
