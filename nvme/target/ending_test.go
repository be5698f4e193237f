package target

import (
	"errors"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/loop"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// ends are the ways in which a controller stops serving while its I/O queues still exist.
var ends = map[string]func(r *rig, h *host){
	"reset": func(r *rig, h *host) { r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0)) },
	"shutdown": func(r *rig, h *host) {
		r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux|nvme.CCShutdownNormal)))
	},
	"admin queue gone":  func(_ *rig, h *host) { h.admin.HangUp() },
	"failed":            func(r *rig, h *host) { r.target.find(testSub).lookup(h.cntlid).fail(errors.New("test")) },
	"keep alive":        func(r *rig, h *host) { r.target.find(testSub).lookup(h.cntlid).expire() },
	"subsystem removed": func(r *rig, _ *host) { r.during(func() error { return r.target.RemoveSubsystem(testSub) }) },
	"target closed":     func(r *rig, _ *host) { r.during(r.target.Close) },
}

// expire makes the keep alive timer find that nothing came for longer than it may be.
func (c *controller) expire() {
	c.alive.period, c.alive.lastLook, c.alive.seen = 1e9, c.h.loop.Now(), c.traffic()
	c.alive.lastSeen = c.h.loop.Now() - 1000e9
	c.checkKeepAlive()
}

// dying is a host with an I/O queue whose one command the device keeps, so that its controller cannot go at once.
func dying(t *testing.T) (r *rig, h *host, release func()) {
	t.Helper()
	sub, dev := faultySubsystem(t)
	r = newRig(t, 2, sub)
	h = r.connectHost(1)
	dev.Hold(nil)
	r.send(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })
	return r, h, dev.Release
}

// TestConnectToDyingController: an I/O queue is not bound to a controller that is about to go (F17). The host may try again: DNR is not
// set.
func TestConnectToDyingController(t *testing.T) {
	for name, end := range ends {
		if name == "subsystem removed" || name == "target closed" {
			continue // these wait for the device
		}
		t.Run(name, func(t *testing.T) {
			r, h, release := dying(t)
			end(r, h)
			c := r.do(r.dial(1), h.ioArgs(2).command())
			if st := c.CQE.Status(); st != nvme.ConnectInvalidParameters {
				t.Errorf("I/O Connect: %v, want %v", st, nvme.ConnectInvalidParameters)
			}
			release()
			r.w.Settle()
			if name != "reset" && name != "shutdown" {
				r.status(r.dial(1), h.ioArgs(1).command(), nvme.ConnectInvalidParameters) // and when it is gone
			}
			fresh := r.connectHost(1)
			r.ok(fresh.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
		})
	}
}

// TestIOToDyingController: a command that comes on a queue of a controller that has failed (CSTS.CFS, Q04), is reset or shut down, or
// whose subsystem was removed (Q05) does not reach the device, and is refused so that the host tries again, there or on another path.
func TestIOToDyingController(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			sub, dev := faultySubsystem(t)
			r := newRig(t, 2, sub)
			h := r.connectHost(1)
			r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
			dev.Hold(nil)
			defer dev.Release()
			end(r, h)
			late := []*loop.Command{
				rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)), rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)), command(nvme.NVMFlush, 1, nil),
			}
			for _, c := range late {
				closed := h.io[0].Closed()
				r.send(h.io[0], c)
				if st := c.CQE.Status() &^ statusMore; !closed && (!c.Done || st != nvme.CommandSequenceError) {
					t.Errorf("opcode %#x: done %v, %v, want %v", c.SQE.Opcode(), c.Done, st, nvme.CommandSequenceError)
				}
			}
			r.w.Settle()
			if n := dev.Held(); n != 0 {
				t.Errorf("%d commands reached the device", n)
			}
			if !h.io[0].Closed() {
				t.Error("the I/O queue lives on")
			}
		})
	}
}

// TestEventRequestsAtTheEnd: the Asynchronous Event Requests that a host has outstanding come back however the controller ends, and hold
// nothing up.
func TestEventRequestsAtTheEnd(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2, ramSubsystem(t, 1))
			h := r.connectHost(1)
			var requests []*loop.Command
			for range asyncLimit {
				requests = append(requests, r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil)))
			}
			end(r, h)
			r.w.Settle()
			if name == "shutdown" { // the association goes on, and ends with the reset that may follow
				r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
				r.w.Settle()
			}
			if n := h.admin.Outstanding(); n != 0 {
				t.Errorf("%d requests did not come back", n)
			}
			for i, c := range requests {
				if c.Done && c.CQE.Status() != nvme.AbortRequested {
					t.Errorf("request %d: %v, want %v", i, c.CQE.Status(), nvme.AbortRequested)
				}
			}
		})
	}
}

// TestPortRemovedWhileConnecting: a listener that goes while a host connects takes nothing along: what came in through it is served,
// the discovery log names it no more (Q11, C10).
func TestPortRemovedWhileConnecting(t *testing.T) {
	r := newRig(t, 2, ramSubsystem(t, 1))
	r.must(r.target.AddPort(port(1, nvme.TransportTCP, "192.0.2.1:4420")))
	early := r.connectHost(0)
	admin, io := r.dial(0), r.dial(1) // accepted, and not connected yet
	r.must(r.target.RemovePort(1))
	if err := r.target.RemovePort(1); err == nil {
		t.Error("the port was removed twice")
	}
	r.ok(io, early.ioArgs(1).command())
	r.ok(io, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.ok(admin, adminArgs(testSub).command())
	r.ok(admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	if _, list := discoveryHost(r, "192.0.2.1:4420").discoveryLog(); len(list) != 0 {
		t.Errorf("%d entries of a listener that is gone", len(list))
	}
}

// TestDiscoveryLogChangesWhileRead: a host that reads the log in pieces sees by GENCTR that it has changed in between, and an offset
// that was good is refused when the log has become shorter (Q09).
func TestDiscoveryLogChangesWhileRead(t *testing.T) {
	r := newRig(t, 1, ramSubsystem(t, 1))
	r.must(r.target.AddPort(port(1, nvme.TransportTCP, "192.0.2.1:4420")))
	h := discoveryHost(r, "192.0.2.1:4420")
	const entry = nvme.DiscoveryEntrySize
	changes := map[string]func(){
		"a listener more":      func() { r.must(r.target.AddPort(port(2, nvme.TransportTCP, "192.0.2.1:4421"))) },
		"a subsystem less":     func() { r.during(func() error { return r.target.RemoveSubsystem(testSub) }) },
		"no listener any more": func() { r.must(errors.Join(r.target.RemovePort(1), r.target.RemovePort(2))) },
	}
	for i, name := range []string{"a listener more", "a subsystem less", "no listener any more"} {
		before, list := h.discoveryLog()
		changes[name]()
		after, now := h.discoveryLog()
		if before.GENCTR == after.GENCTR {
			t.Errorf("%s: GENCTR stays %d", name, after.GENCTR)
		}
		if want := []int{4, 2, 0}[i]; len(now) != want || int(after.NUMREC) != want {
			t.Errorf("%s: %d entries, NUMREC %d, want %d", name, len(now), after.NUMREC, want)
		}
		if last := uint64(len(list)) * entry; len(now) < len(list) { // where the last entry was
			r.status(h.admin, logCommand(nvme.LogDiscovery, entry, last), invalidField)
		}
	}
}
