package random

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/e2e"
)

// modelControllers are the controllers with their hosts and transports.
var modelControllers = []struct {
	host    int
	variant e2e.Variant
}{
	{0, e2e.Variants[0]},
	{0, e2e.Variants[3]},
	{1, e2e.Variants[1]},
	{1, e2e.Variants[4]},
	{2, e2e.Variant{Name: "tcp aligned", TCP: host.TCP{HeaderDigest: true, HPDA: 31}}},
	{3, e2e.Variants[3]},
}

const (
	modelQueues = 2
	modelHosts  = 4
	modelBatch  = 16 // commands
	// modelTransfer is the maximum transfer of a command; Compare, Verify and Copy need two steps
	// for it. Each command has memory for a little more.
	modelTransfer = 160 << 10
	modelMemory   = modelTransfer + 4096
	modelInactive = 77 // an NSID
)

// modelHost is a controller as seen by its host.
type modelHost struct {
	c       *host.Controller
	queues  [modelQueues]*host.Queue
	mem     []byte
	between bool // it may copy between namespaces
}

func modelHostNQN(h int) string { return fmt.Sprint("nqn.2026-11.io.nvmf-target:model-host-", h) }

func modelHostID(h int) [16]byte { return [16]byte{byte(h + 1), 'm'} }

// connectModel connects a controller with its queues.
func (x *modelRun) connectModel(i int) {
	x.T.Helper()
	mc, h := modelControllers[i], &x.hosts[i]
	h.c = x.Dial(mc.variant, func(o *host.Options) {
		o.HostNQN = modelHostNQN(mc.host)
		o.HostID = modelHostID(mc.host)
	})
	h.mem = x.Buffer(h.c, 2*modelBatch*modelMemory)
	x.openQueues(i)
}

// openQueues connects the queues of a controller that has just been enabled. It has no
// notifications and no settings.
func (x *modelRun) openQueues(i int) {
	x.T.Helper()
	h := &x.hosts[i]
	x.m.logs[i], x.m.ana[i] = targettest.Notifications{}, modelANALog{}
	x.m.ana[i].update(x.m.groups(i))
	x.anaLog(i, 0, 0)
	for k := range h.queues {
		h.queues[k] = testutil.Value(h.c.OpenQueue(x.ctx, uint16(k+1), 3*modelBatch))(x.T)
	}
	if h.between = x.rnd.IntN(4) > 0; !h.between {
		return
	}
	var op host.Op
	op.SQE.SetOpcode(nvme.AdminSetFeatures)
	op.SQE.Features().Set(nvme.FeatureHostBehavior, 0)
	op.Data = make([]byte, nvme.HostBehaviorSize)
	op.Data[nvme.HostBehaviorCDFE] = byte(nvme.CopyNamespaces.Bit())
	cqe := testutil.Value(h.c.Admin(x.ctx, &op))(x.T)
	if !cqe.Status().OK() {
		x.fatal(nil, "Host Behavior Support: %v", cqe.Status())
	}
}

// reconnect ends the association of a host with a controller, or resets it, while reads are
// outstanding, and connects again. Reservations stay as they are.
func (x *modelRun) reconnect(i int) {
	x.T.Helper()
	h := &x.hosts[i]
	for k, q := range h.queues {
		var op host.Op
		for j := range uint64(x.rnd.IntN(8)) {
			ns := x.m.namespaces[x.rnd.IntN(len(x.m.namespaces))]
			op.Read(ns.nsid, j, 1, h.mem[k*modelMemory:][:ns.blockSize])
			testutil.Value(q.Submit(&op))(x.T)
		}
		if x.rnd.IntN(2) == 0 {
			_, err := q.Poll(nil) // sends them
			x.Must(err)
		}
	}
	how := x.rnd.IntN(3)
	if how == 0 {
		x.Must(h.c.Reset(x.ctx))
	}
	for _, q := range h.queues {
		_ = q.Close() // it may have seen the end of the connection
	}
	if how == 0 {
		x.Must(h.c.Enable(x.ctx))
		x.openQueues(i)
		return
	}
	if how == 1 {
		x.Must(h.c.Shutdown(x.ctx))
	}
	h.c.Close()
	x.connectModel(i)
}

// memory returns n bytes for the next command that is added to c.
func (x *modelRun) memory(c *modelCommand, n int) []byte {
	return x.hosts[c.c].mem[(2*c.slot+len(c.ops))*modelMemory:][:n]
}

// send sends commands all at once and waits for their completions, without checks.
func (x *modelRun) send(batch []*modelCommand) {
	x.T.Helper()
	var admin []func()
	for i, c := range batch {
		c.got = make([]nvme.CQE, len(c.ops))
		if c.queue == 0 {
			wait := x.hosts[c.c].c.AdminAsync(x.ctx, &c.ops[0])
			admin = append(admin, func() { c.got[0] = testutil.Value(wait())(x.T) })
			continue
		}
		for half := range c.ops {
			c.ops[half].Token = uint64(2*i + half)
			if _, err := x.hosts[c.c].queues[c.queue-1].Submit(&c.ops[half]); err != nil {
				x.fatal(c, "%v", err)
			}
		}
	}
	for x.collect(batch) {
	}
	for _, wait := range admin {
		wait()
	}
}

// collect takes completions of I/O commands, and returns false when all have completed.
func (x *modelRun) collect(batch []*modelCommand) bool {
	x.T.Helper()
	var idle *host.Queue
	for i := range x.hosts {
		for _, q := range x.hosts[i].queues {
			if q.Outstanding() == 0 {
				continue
			}
			n := testutil.Value(q.Poll(x.done[:]))(x.T)
			for _, d := range x.done[:n] {
				c, half := batch[d.Token/2], d.Token%2
				c.got[half] = d.CQE
				c.ended[half] = true
				c.reversed = c.reversed || half == 1 && !c.ended[0]
			}
			if q.Outstanding() > 0 {
				idle = q
			}
		}
	}
	if idle == nil {
		return false
	}
	if x.ctx.Err() != nil {
		x.fatal(nil, "commands do not complete")
	}
	x.Must(idle.Wait(waitModel))
	return true
}
