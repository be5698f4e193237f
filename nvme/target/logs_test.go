package target

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/turns"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// TestLogsInDwords: every log page can be read in pieces, down to NUMD 0, one dword. The pieces are
// equal to the page read at once (M07).
func TestLogsInDwords(t *testing.T) {
	r, h := joined(t, 1, 0, ramSubsystem(t, 1))
	c := r.target.find(testSub).lookup(h.cntlid)
	for i := range 256 {
		lid := nvme.LID(i)
		p := c.LogPage(lid)
		if p == nil || p.Size == 0 || lid == nvme.LogSMART { // which counts such commands
			continue
		}
		size := int(p.Size)
		r.run(fmt.Sprintf("log %02Xh", uint8(lid)), func(t *testing.T) {
			whole := r.ok(h.admin, logCommand(lid, size, 0)).Data
			for _, n := range []int{4, 1000} {
				var got []byte
				for off := 0; off < size; off += n {
					got = append(got,
						r.ok(h.admin, logCommand(lid, min(n, size-off), uint64(off))).Data...)
				}
				testutil.True(t, bytes.Equal(got, whole),
					"pieces of %d bytes differ from the whole", n)
			}
			r.status(h.admin, logCommand(lid, 4, uint64(size)), invalidField)
		})
	}
}

// TestEffectsLogAgrees: log 05h lists exactly the opcodes that are served (I06).
func TestEffectsLogAgrees(t *testing.T) {
	r, h := joined(t, 1, 1, ramSubsystem(t, 1))
	l, err := nvme.Parse[nvme.EffectsLog](r.ok(h.admin, logCommand(nvme.LogEffects, 4096, 0)).Data)
	testutil.Must(t, err)
	for op := range 256 {
		if nvme.Opcode(op) == nvme.FabricsOpcode {
			continue
		}
		c := r.do(h.io[0], command(nvme.Opcode(op), 0, nil))
		known := c.CQE.Status().Code() != nvme.InvalidOpcode
		if listed := l.IO[op]&nvme.EffectSupported != 0; known != listed {
			t.Errorf("I/O opcode %#x: listed %v, known %v", op, listed, known)
		}
		testutil.True(t, (l.Admin[op] != 0) == (adminOps[op].execute != nil),
			"admin opcode %#x: %#x", op, l.Admin[op])
	}
	testutil.True(t, l.IO[nvme.NVMWrite]&nvme.EffectContentChange != 0,
		"Write does not change content")
}

// TestLogUnderAttack: refused Connect commands leave a few lines, which are escaped, for any number
// of them. The rest is counted. The lines that operators must see, and the lines about hosts,
// appear in full (X08).
func TestLogUnderAttack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seconds = 2
		each := testutil.Rounds(500, 10_000)
		r, h, dev := onHanging(t, 1, 1)
		r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
		a := adminArgs("evil\n\x1b[31m%s" + strings.Repeat("x", 200))
		attack := func() {
			for range each {
				q := r.dial(0)
				r.status(q, a.command(), nvme.ConnectInvalidParameters)
				q.HangUp()
				r.queues = r.queues[:len(r.queues)-1]
			}
		}
		for range seconds {
			attack()
			operate(r, h, dev)
			time.Sleep(time.Second)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		log := r.log.String()
		for text, want := range map[string]int{
			"does not answer": seconds, "answers again": seconds, "I/O failed": 1,
			"controller created": seconds + 1, "controller removed": seconds,
			"keep alive timer expired":                2 * seconds, // and as the reason
			"log lines were dropped":                  1,
			`message="connect refused"`:               1,
			fmt.Sprintf("lines=%d ", seconds*each-10): 1, `evil\n\x1b[31m%s`: 20,
		} {
			n := strings.Count(log, text)
			testutil.True(t, n == want, "the log says %d times %q, want %d", n, text, want)
		}
		testutil.True(t, !strings.Contains(log, "\x1b"), "what a peer sends is not escaped")
		n := strings.Count(log, "level=WARN") + strings.Count(log, "level=INFO")
		testutil.True(t, n <= 50, "%d lines", n)
	})
}

// operate makes lines that operators must see: the device hangs and fails, and a host connects and
// is lost.
func operate(r *harness, h *host, dev *backendtest.Faulty) {
	r.t.Helper()
	dev.Fail(func(*backend.IO) error { return backend.ErrIO })
	r.do(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	dev.Fail(nil)
	other := r.connectHost(0)
	r.target.find(testSub).lookup(other.cntlid).expire()
	r.w.Settle()
	dev.Hold(nil)
	read := r.send(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.w.Advance(3 * time.Second)
	dev.Release()
	r.until("the device answers again",
		func() bool { return read.Done && r.target.Stats()[0].Ready })
}

func getFeatureInto(fid nvme.FID, v uint32, data []byte) *fabrictest.Command {
	c := getFeature(fid, nvme.FeatureCurrent, v)
	c.Data = data
	return c
}

func withNSID(c *fabrictest.Command, nsid uint32) *fabrictest.Command {
	c.SQE.SetNSID(nsid)
	return c
}

// TestForeignController: a peer with another name or another address gets the same answers for the
// identifier of a foreign controller as for an unused one, with any arguments.
func TestForeignController(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	victims := []*host{
		r.connectHost(1), r.connectHost(0, func(a *connectArgs) { a.sub = nvme.DiscoveryNQN }),
	}
	try := func(h *host, cntlid uint16, i int, change ...func(*connectArgs)) string {
		qi := info([]nvme.TransportType{nvme.TransportTCP, nvme.TransportRDMA}[i%2])
		qi.PortID += uint16(i / 2 % 2)
		a := h.ioArgs([]uint16{1, 2, 0xFFFE}[i/4%3])
		a.cntlid, a.sqsize = cntlid, []uint16{0, 31, 0xFFFF}[i/12%3]
		a.hostID[0] += byte(i / 36 % 2)
		if len(change) == 0 {
			qi.Remote = netip.MustParseAddrPort("192.0.2.8:50000")
		}
		for _, f := range change {
			f(&a)
		}
		q := r.dialInfo(0, qi)
		c := r.do(q, a.command())
		q.HangUp()
		return fmt.Sprintf("%v, %#x", c.CQE.Status(), c.CQE.Result())
	}
	for _, h := range victims {
		for i := range 2 * 2 * 3 * 3 * 2 {
			there, free := try(h, h.cntlid, i), try(h, h.cntlid+7, i)
			testutil.True(t, there == free, "%d from another address: %s, and %s for none", i,
				there, free)
			there, free = try(h, h.cntlid, i, asOther), try(h, h.cntlid+7, i, asOther)
			testutil.True(t, there == free, "%d with another name: %s, and %s for none", i, there,
				free)
		}
	}
}

// described is a device of 1 MiB with blocks of 512 bytes whose description change edits.
func described(t *testing.T, change func(*backend.Info)) *recorder {
	return &recorder{Device: ramDevice(t, 1<<20, 512), info: change}
}

// subsystemOf has a namespace on each device, from NSID 1 on.
func subsystemOf(nqn string, devs ...backend.Device) subsystems.Config {
	c := subsystems.Config{NQN: nqn, AllowAnyHost: true}
	for i, d := range devs {
		c.Namespaces = append(c.Namespaces, namespaces.Config{NSID: uint32(i + 1), Device: d})
	}
	return c
}

// on selects the subsystem that a host connects to.
func on(nqn string) func(*connectArgs) { return func(a *connectArgs) { a.sub = nqn } }

func (h *host) controller() *nvme.IdentifyController {
	h.r.t.Helper()
	id, err := nvme.Parse[nvme.IdentifyController](h.r.ok(h.admin,
		identifyCommand(nvme.CNSController, 0)).Data)
	h.r.must(err)
	return id
}

func (h *host) namespace(nsid uint32) *nvme.IdentifyNamespace {
	h.r.t.Helper()
	id, err := nvme.Parse[nvme.IdentifyNamespace](h.r.ok(h.admin,
		identifyCommand(nvme.CNSNamespace, nsid)).Data)
	h.r.must(err)
	return id
}

// occupy keeps the workers of a target busy until release is called. If they are free, they are
// busy when it returns, otherwise after the work that they do now.
func (r *harness) occupy(free bool) (release func()) {
	stop, begun := make(chan struct{}), make(chan struct{}, turns.MaxWorkers())
	for i := range turns.MaxWorkers() {
		r.target.shared.Workers.Submit(&turns.Job{
			Owner: subnet.Owner{NQN: fmt.Sprint(i)}, Done: func() {},
			Run: func() {
				begun <- struct{}{}
				<-stop
			},
		})
		if free {
			<-begun
		}
	}
	return func() { close(stop) }
}

// TestElsewhereInTurns: a host that asks for all namespaces, controllers or subsystems again and
// again does not keep others waiting, whatever it asks for. Commands of queues that have ended, and
// commands that were sent too late, are not carried out.
func TestElsewhereInTurns(t *testing.T) {
	list := func() *fabrictest.Command { return identifyCommand(nvme.CNSActiveNamespaces, 0) }
	for name, make := range map[string]func() *fabrictest.Command{
		"list": list,
		"health": func() *fabrictest.Command {
			return logCommand(nvme.LogSMART, nvme.SMARTLogSize, 0)
		},
		"feature": func() *fabrictest.Command {
			return withNSID(setFeature(nvme.FeatureErrorRecovery, 1), nvme.NSIDAll)
		},
		"ANA log": func() *fabrictest.Command { return logCommand(nvme.LogANA, 4096, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newHarness(t, 1, ramSubsystem(t, 1))
			other := info(nvme.TransportTCP)
			other.Remote = testLocal
			a, b, ended := r.connectHost(0), r.connectHostInfo(0, other), r.connectHost(0)
			release := r.occupy(true)
			for range 20 {
				r.send(a.admin, make())
				r.send(ended.admin, make())
			}
			ended.hangUp()
			r.w.Settle()
			testutil.Equal(t, ended.admin.Outstanding(), 0, "commands of a queue that has ended")
			ran, last := 20, list()
			last.Then = func() { ran -= a.admin.Outstanding() }
			r.send(b.admin, last)
			release()
			r.until("all are served", func() bool {
				return last.Done && a.admin.Outstanding() == 0
			})
			testutil.True(t, ran <= 2*turns.MaxWorkers(), "%d commands were served before", ran)
		})
	}
}

// TestChangesInTurn: the reservations of all namespaces are changed in the turn of the host.
func TestChangesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHarness(t, 1)
		r.target.shared.Reservations = &memoryStore{}
		r.must(r.target.AddSubsystem(ramSubsystem(t, 3)))
		h := r.connectHost(0)
		first := r.occupy(true)
		c := withNSID(setFeature(nvme.FeatureReservationPersist, 1), nvme.NSIDAll)
		r.send(h.admin, c)
		second := r.occupy(false) // after the namespaces were looked at
		first()
		for range 5 {
			synctest.Wait()
			r.w.Settle()
		}
		testutil.True(t, !c.Done, "the changes do not wait for their turn")
		second()
		r.until("the command completes", func() bool { return c.Done })
		testutil.True(t, c.CQE.Status().OK(), "%v", c.CQE.Status())
	})
}

// TestEnableTooLate: a Property Set that enables the controller and fails, because the machine is
// too busy, changes nothing. The host may repeat it.
func TestEnableTooLate(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(0)
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
	release := r.occupy(true)
	enable := func() *fabrictest.Command {
		return propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux))
	}
	c := r.send(h.admin, enable())
	r.w.Settle()
	r.w.Advance(admin.AnswerWait)
	r.w.Settle()
	testutil.MustTrue(t, c.Done, "the command waits on")
	testutil.Equal(t, c.CQE.Status()&^nvme.More, nvme.InternalError, "enabled too late")
	testutil.True(t, h.property(nvme.PropertyCC) == 0 && h.csts() == 0, "CC %#x, CSTS %#x",
		h.property(nvme.PropertyCC), h.csts())
	release()
	r.ok(h.admin, enable())
	testutil.True(t, h.property(nvme.PropertyCC) == uint64(nvme.CCLinux) && h.csts().RDY(),
		"CSTS %#x", h.csts())
	h.connectIO(0)
}
