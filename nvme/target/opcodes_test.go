package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestOpcodes: every opcode, and every type of Fabrics command, on each kind of queue and in each
// state of the controller.
func TestOpcodes(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	for _, nqn := range []string{testSub, nvme.DiscoveryNQN} {
		for state, cc := range controllerStates {
			h := r.connectHost(0, on(nqn))
			r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
			if cc != 0 {
				r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(cc)))
			}
			r.run(state+" "+nqn[len(nqn)-4:], func(t *testing.T) {
				c := r.target.find(nqn).lookup(h.cntlid)
				opcodes(r, h.admin, &adminOps, c, state == "enabled")
				fabricsTypes(r, h.admin, cc, map[nvme.FabricsType]nvme.Status{
					nvme.FabricsConnect:     sequenceError,                    // Base section 6.3
					nvme.FabricsPropertySet: nvme.Success,                     // of CC
					nvme.FabricsPropertyGet: nvme.Success,                     // of CC
					nvme.FabricsDisconnect:  nvme.InvalidQueueType | nvme.DNR, // Base section 6.4
				}, invalidOpcode)
			})
			h.hangUp()
		}
	}
	r.run("unconnected", func(*testing.T) {
		q := r.dial(0)
		for i := range 256 {
			if op := nvme.Opcode(i); op != nvme.FabricsOpcode {
				r.status(q, command(op, 1, nil), sequenceError)
			}
		}
		fabricsTypes(r, q, 0, map[nvme.FabricsType]nvme.Status{
			nvme.FabricsConnect: invalidLength, // without data
		}, sequenceError)
	})
	r.run("I/O", func(*testing.T) {
		h := r.connectHost(1)
		opcodes(r, h.io[0], &ioOps, r.target.find(testSub).lookup(h.cntlid), true)
		fabricsTypes(r, h.io[0], 0, map[nvme.FabricsType]nvme.Status{
			nvme.FabricsConnect:    sequenceError,
			nvme.FabricsDisconnect: nvme.Success,
		}, invalidOpcode)
	})
}

// opcodes sends each opcode but that of Fabrics commands, and nothing with it.
func opcodes(r *harness, q *fabrictest.Queue, table *[256]op, c *controller, ready bool) {
	r.t.Helper()
	for i := range 256 {
		op := nvme.Opcode(i)
		cmd := command(op, 1, nil)
		if op == nvme.FabricsOpcode {
			continue
		}
		r.send(q, cmd)
		r.w.Settle()
		st := cmd.CQE.Status() &^ nvme.More
		switch {
		case !table[i].offered(&c.Controller):
			testutil.Equal(r.t, st, invalidOpcode, "opcode %02Xh", i)
		case !ready: // only Fabrics commands
			if st != sequenceError {
				r.t.Errorf("%s: %v", table[i].name, st)
			}
		case cmd.Done && (st == invalidOpcode || st == sequenceError): // an event may wait
			r.t.Errorf("%s: %v", table[i].name, st)
		}
	}
}

// fabricsTypes sends each type of Fabrics command, Disconnect last. For the properties it is an
// access to CC, which is cc.
func fabricsTypes(r *harness, q *fabrictest.Queue, cc nvme.CC,
	want map[nvme.FabricsType]nvme.Status, other nvme.Status,
) {
	r.t.Helper()
	for i := range 256 {
		typ := nvme.FabricsDisconnect + 1 + nvme.FabricsType(i)
		st, known := want[typ]
		if !known {
			st = other
		}
		c := propertySetCommand(nvme.PropertyCC, uint64(cc))
		c.SQE[4] = byte(typ)
		r.status(q, c, st)
	}
}
