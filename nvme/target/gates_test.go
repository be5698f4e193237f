package target

import (
	"fmt"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// The tables of commands have a column for each gate. Here are the same columns from the
// specification and the ADRs, in other words, and every opcode is sent in every state.

// column holds the properties of a command by the specification.
type column struct {
	// group is r or w for the read or write group, or - for a command with a row of its own, in the
	// figures of Base section 8.1.22.1 and NVM section 5.7.
	group byte
	// changes: not among the commands that are allowed for a write protected namespace (Base
	// section 8.1.16, NVM section 5.6); for Dataset Management, with AD.
	changes bool
	// limited: it reads or changes blocks (ADR 0026).
	limited bool
	// again: f is refused first, l later, s starts the time of the host and is served, - counts as
	// idle (ADR 0032).
	again byte
}

// ioColumns are the I/O commands that a controller may have (NVM section 3, Base section 7). All of
// them are for a namespace, and not available where ANA makes that inaccessible (NVM section 5.1).
var ioColumns = map[nvme.Opcode]column{
	0x00: {'w', false, false, 'l'}, // Flush
	0x01: {'w', true, true, 'f'},   // Write
	0x02: {'r', false, true, 'f'},  // Read
	0x04: {'w', true, true, 'l'},   // Write Uncorrectable
	0x05: {'r', false, true, 'l'},  // Compare
	0x08: {'w', true, true, 'l'},   // Write Zeroes
	0x09: {'w', true, true, 'l'},   // Dataset Management
	0x0C: {'r', false, true, 'l'},  // Verify
	0x0D: {'-', false, false, 'l'}, // Reservation Register
	0x0E: {'-', false, false, 'l'}, // Reservation Report
	0x11: {'-', false, false, 'l'}, // Reservation Acquire
	0x15: {'-', false, false, 'l'}, // Reservation Release
	0x19: {'w', true, true, 'l'},   // Copy, as the namespace that it writes to
}

// adminAgain are the admin commands (Base section 5) that move data or change something.
var adminAgain = map[nvme.Opcode]bool{
	0x02: true,  // Get Log Page
	0x06: true,  // Identify
	0x08: false, // Abort
	0x09: true,  // Set Features
	0x0A: true,  // Get Features
	0x0C: false, // Asynchronous Event Request
	0x14: true,  // Device Self-test
	0x18: false, // Keep Alive
}

func passes(groups string) map[byte]bool {
	m := map[byte]bool{}
	for _, g := range []byte(groups) {
		m[g] = true
	}
	return m
}

// TestGateColumns: each row of a table agrees with the specification.
func TestGateColumns(t *testing.T) {
	for i := range 256 {
		op := nvme.Opcode(i)
		want, io := ioColumns[op]
		o := &ioOps[i]
		got := column{
			"-rw"[o.group], o.changes != changeNone, o.limit != limitNone, "-slf"[o.again],
		}
		switch {
		case io != (o.execute != nil):
			t.Errorf("I/O command %#x: a row %v, a column %v", i, o.execute != nil, io)
		case io && got != want:
			t.Errorf("%s: %+v, want %+v", o.name, got, want)
		case io && o.ana != anaNSID:
			t.Errorf("%s: ANA states do not count", o.name)
		case !io && o.gates != gates{}:
			t.Errorf("I/O command %#x is none", i)
		}
		starts, admin := adminAgain[op]
		o = &adminOps[i]
		again := map[bool]againGate{true: againStarts}[starts]
		testutil.True(t, admin == (o.execute != nil) && o.gates == gates{ana: o.ana, again: again},
			"admin command %#x: %+v, want a row %v that starts the time %v", i, o.gates, admin,
			starts)
		o = &fabricsOps[i]
		testutil.True(t, o.gates == (gates{}), "%s: %+v", o.name, o.gates)
	}
}

// gateHarness has a target with everything that commands depend on, and one namespace.
func gateHarness(t *testing.T, change ...func(*subsystems.Config)) *harness {
	sub := ramSubsystem(t, 1)
	for _, f := range change {
		f(&sub)
	}
	r := newHarness(t, 1)
	kept := newMarkStore()
	kept.wake = r.w.Reactors[0].Wake
	r.target.shared.Reservations = new(memoryStore)
	r.target.shared.Protection, r.target.shared.Uncorrectable = newProtectionStore(), kept
	r.must(r.target.AddSubsystem(sub))
	return r
}

// gateSample is a command for namespace 1 that succeeds if no gate is shut, or fails with st: the
// host has no key.
func gateSample(op nvme.Opcode) (c *fabrictest.Command, st nvme.Status) {
	switch op {
	case nvme.IOReservationAcquire:
		return acquire(1, nvme.WriteExclusive), reservationConflict // Base section 7.5
	case nvme.IOReservationRelease:
		return release(1, nvme.WriteExclusive), reservationConflict // Base section 7.7
	}
	return ioSample(&ioOps[op], op).command(), nvme.Success
}

// gateState is a state in which every opcode is sent.
type gateState struct {
	name string
	// enter returns the queue that the commands are sent on.
	enter func(t *testing.T) (*harness, *fabrictest.Queue)
	// refused says how a command fails; 0: as in no state.
	refused func(op nvme.Opcode, c column) nvme.Status
	waits   bool // it is limited, and waits
}

// gateStates are the states, by name.
func gateStates() (list []gateState) {
	plain := func(prepare func(r *harness, h *host), change ...func(*subsystems.Config),
	) func(*testing.T) (*harness, *fabrictest.Queue) {
		return func(t *testing.T) (*harness, *fabrictest.Queue) {
			r := gateHarness(t, change...)
			h := r.connectHost(1)
			prepare(r, h)
			return r, h.io[0]
		}
	}
	add := func(s gateState) { list = append(list, s) }
	add(gateState{
		name: "none", enter: plain(func(*harness, *host) {}),
		refused: func(nvme.Opcode, column) nvme.Status { return 0 },
	})
	protected := func(_ nvme.Opcode, c column) nvme.Status {
		if c.changes {
			return writeProtected
		}
		return 0
	}
	add(gateState{
		name: "read only", refused: protected, enter: plain(func(*harness, *host) {},
			func(c *subsystems.Config) { c.Namespaces[0].ReadOnly = true }),
	})
	add(gateState{
		name: "write protected", refused: protected, enter: plain(func(r *harness, h *host) {
			r.ok(h.admin, protectCommand(1, nvme.WriteProtect))
		}),
	})
	for state, st := range anaStatuses {
		add(gateState{
			name: "ANA " + state.String(), enter: plain(func(r *harness, _ *host) {
				r.must(r.target.SetANAStates(1, states{1: state}))
			}),
			refused: func(nvme.Opcode, column) nvme.Status { return st },
		})
	}
	add(gateState{
		name: "hidden", refused: func(nvme.Opcode, column) nvme.Status { return inactive },
		enter: plain(func(*harness, *host) {},
			func(c *subsystems.Config) { c.Namespaces[0].Hosts = []string{"nqn.2026-11.test:a"} }),
	})
	add(gateState{
		name: "limited", waits: true, refused: func(nvme.Opcode, column) nvme.Status { return 0 },
		enter: plain(func(r *harness, h *host) { r.ok(h.io[0], readBlocks(8)()) },
			func(c *subsystems.Config) { c.Namespaces[0].Limits = qos.Limits{IOPS: 1} }),
	})
	add(gateState{
		name: "unproven",
		enter: func(t *testing.T) (*harness, *fabrictest.Queue) {
			x := authenticated(t)
			a := (&host{args: adminArgs(testSub), cntlid: x.cntlid()}).ioArgs(3)
			q, _ := x.connectUnproven(0, a)
			return x.harness, q
		},
		refused: func(nvme.Opcode, column) nvme.Status { return authenticationRequired },
	})
	for later, refused := range map[bool]string{false: "f", true: "fl"} {
		add(gateState{
			name: fmt.Sprintf("due, later %v", later),
			enter: func(t *testing.T) (*harness, *fabrictest.Queue) {
				x := authenticated(t)
				x.w.Advance(everyHour)
				if later {
					x.ok(x.admin, identifyCommand(nvme.CNSController, 0))
					x.w.Advance(10 * time.Second)
				}
				return x.harness, x.io[0]
			},
			refused: func(_ nvme.Opcode, c column) nvme.Status {
				if passes(refused)[c.again] {
					return nvme.AuthenticationRequired
				}
				return 0
			},
		})
	}
	return list
}

// authenticated has a host that has authenticated, and has to do so again each hour.
func authenticated(t *testing.T) *reauthHarness {
	r := gateHarness(t)
	p := &auth.Policy{
		Keys: []*auth.Key{authKey(t, hostSecret)}, ControllerKey: authKey(t, controllerSecret),
		Groups: []auth.Group{auth.GroupNull}, Reauthenticate: everyHour,
	}
	r.target.SetHostPolicy(testHost, p)
	x := &reauthHarness{harness: r, p: p}
	x.connect(1)
	return x
}

func (x *reauthHarness) cntlid() uint16 { return x.target.Controllers()[0].CNTLID }

// TestGates: every I/O opcode in every state. The sequence reservation_types has the states of
// reservations.
func TestGates(t *testing.T) {
	for _, s := range gateStates() {
		t.Run(s.name, func(t *testing.T) {
			r, q := s.enter(t)
			for i := range 256 {
				op := nvme.Opcode(i)
				if _, known := ioColumns[op]; known || op == nvme.FabricsOpcode {
					continue
				}
				want := invalidOpcode
				if s.name == "unproven" {
					want = authenticationRequired
				}
				r.status(q, command(op, 1, nil), want)
			}
			for op, c := range ioColumns {
				t.Run(ioOps[op].name, func(t *testing.T) {
					r, q := s.enter(t) // changes of one command do not affect the others
					sent, want := gateSample(op)
					if st := s.refused(op, c); st != 0 {
						want = st
					}
					if !s.waits || !c.limited {
						r.status(q, sent, want)
						return
					}
					r.send(q, sent)
					r.w.Settle()
					testutil.True(t, !sent.Done, "it passes the limit: %v", sent.CQE.Status())
				})
			}
		})
	}
}

// TestGatesOfAdminCommands: every admin command completes in the same way with any I/O gates shut.
// ANA states also gate features, see TestANASamples.
func TestGatesOfAdminCommands(t *testing.T) {
	run := func(t *testing.T, shut func(r *harness, h *host)) (got []nvme.Status) {
		r := gateHarness(t)
		h := r.connectHost(1)
		shut(r, h)
		for _, s := range samples(r.target.find(testSub).lookup(h.cntlid)) {
			if !s.io {
				c := s.command()
				c.SQE.SetNSID(1)
				got = append(got, r.do(h.admin, c).CQE.Status())
			}
		}
		return got
	}
	want := run(t, func(*harness, *host) {})
	for name, shut := range map[string]func(r *harness, h *host){
		"reserved": func(r *harness, _ *host) {
			holder := r.numbered(1, 1)
			r.ok(holder.io[0], register(2))
			r.ok(holder.io[0], acquire(2, nvme.ExclusiveAccess))
		},
		"write protected": func(r *harness, h *host) {
			r.ok(h.admin, protectCommand(1, nvme.WriteProtect))
		},
		"limited": func(r *harness, h *host) {
			r.target.SetHostLimits(testHost, qos.Limits{IOPS: 1})
			r.ok(h.io[0], readBlocks(8)())
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i, st := range run(t, shut) {
				testutil.Equal(t, st, want[i], "sample %d", i)
			}
		})
	}
}
