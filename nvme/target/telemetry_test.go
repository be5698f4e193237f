package target

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/turns"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// telemetryCommand reads n bytes of log 07h from off on.
func telemetryCommand(lid nvme.LID, create bool, n int, off uint64) *fabrictest.Command {
	c := logCommand(lid, n, off)
	lsp := map[bool]uint8{true: nvme.TelemetryCreate}[create]
	c.SQE.GetLog().Set(lid, uint64(n), off, lsp, true)
	return c
}

// telemetry captures and reads log 07h as nvme-cli does: the header, and then the rest in pieces.
func (h *host) telemetry() (*nvme.TelemetryHeader, *admin.Capture) {
	h.r.t.Helper()
	lid := nvme.LogTelemetryHost
	raw := h.r.ok(h.admin, telemetryCommand(lid, true, nvme.TelemetryBlock, 0)).Data
	header, err := nvme.Parse[nvme.TelemetryHeader](raw)
	h.r.must(err)
	var data []byte
	size := targettest.TelemetrySize(raw)
	for off := nvme.TelemetryBlock; off < size; off += nvme.TelemetryBlock {
		data = append(data, h.r.ok(h.admin,
			telemetryCommand(lid, false, nvme.TelemetryBlock, uint64(off))).Data...)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	v := new(admin.Capture)
	h.r.must(d.Decode(v))
	if rest := bytes.Trim(data[d.InputOffset():], "\n"); len(rest) > 0 {
		h.r.t.Errorf("% x follows", rest)
	}
	return header, v
}

// TestTelemetry: log 07h describes the association. A capture stays until the next one, also
// through a reset.
func TestTelemetry(t *testing.T) {
	sub, dev := faultySubsystem(t)
	sub.Limits = qos.Limits{IOPS: 1000}
	r, h := joined(t, 2, 2, sub)
	id := h.controller()
	testutil.True(t, id.LPA&nvme.LPATelemetry != 0, "LPA %#x", id.LPA)
	raw := r.ok(h.admin, telemetryCommand(nvme.LogTelemetryHost, false, 1024, 0)).Data
	empty, err := nvme.Parse[nvme.TelemetryHeader](raw)
	testutil.True(t, err == nil &&
		*empty == (nvme.TelemetryHeader{LID: nvme.LogTelemetryHost, THS: 1}) &&
		bytes.Equal(raw[512:], make([]byte, 512)), "without a capture: %v %+v", err, empty)
	dev.Fail(func(io *backend.IO) error {
		return map[bool]error{true: backend.ErrIO}[io.Op == backend.OpWrite]
	})
	r.do(h.io[1], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 8, make([]byte, 4096)))
	a := h.args
	a.qid, a.cntlid, a.sqsize = 1, h.cntlid, 31 // is there already
	r.status(r.dial(0), a.command(), nvme.CommandSequenceError)
	header, v := h.telemetry()
	testutil.True(t, header.LID == 7 && header.THS == 1 && header.THDGN == 1 &&
		header.Last[0] != 0 && header.Last[1] == header.Last[0] && header.Last[2] == header.Last[0],
		"header %+v", header)
	testutil.True(t, v.Version == testFW && v.Host == testHost && v.Subsystem == testSub &&
		v.CNTLID == h.cntlid && v.Ready && strings.HasPrefix(v.ID, "010203") && !v.Truncated, "%+v",
		v)
	testutil.True(t, len(v.Connections) == 3 && v.Connections[1].ReadBytes == 4096 &&
		v.Connections[0].QID == 0 && v.Connections[2].Remote == testPeer, "connections %+v",
		v.Connections)
	if n := v.Namespaces; len(n) != 1 || n[0].ReadBytes != 4096 || n[0].SizeBytes != 1<<20 ||
		n[0].Errors["io"] != 1 || len(n[0].Errors) != 1 || n[0].State != "ready" {
		t.Errorf("namespaces %+v", n)
	}
	l := v.Limits
	testutil.True(t, len(l) == 1 && l[0].Of == "subsystem" && l[0].IOPS == 1000, "limits %+v", l)
	e := v.Events
	testutil.True(t, len(e) != 0 && e[0].Message == "controller created" && e[0].Level == "INFO" &&
		e[0].Attributes["transport"] == "tcp", "events %+v", e)
	if f := v.Refusals; len(f) != 1 || f[0].Count != 1 || f[0].Attributes["qid"] != "1" {
		t.Errorf("refusals %+v", f)
	}
	again := func() []byte {
		return r.ok(h.admin, telemetryCommand(nvme.LogTelemetryHost, false, 4096, 0)).Data
	}
	before := again()
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
	r.w.Settle()
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	testutil.True(t, bytes.Equal(again(), before), "the capture has changed")
	r.target.find(testSub).lookup(h.cntlid).Telemetry.Query.Age = 0
	if header, v := h.telemetry(); header.THDGN != 2 || len(v.Connections) != 1 {
		t.Errorf("the next capture: generation %d, %d connections", header.THDGN,
			len(v.Connections))
	}
}

// TestTelemetryOfOthers: the telemetry of a host has nothing about other hosts, even if the host
// has tried to use their controllers.
func TestTelemetryOfOthers(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	secret := info(nvme.TransportTCP)
	secret.Remote = netip.MustParseAddrPort("198.51.100.77:1234")
	r.target.SetHostLimits(otherHost, qos.Limits{IOPS: 77777})
	other := r.connectHostInfo(1, secret, asOther, func(a *connectArgs) { a.hostID = [16]byte{7} })
	r.ok(other.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.do(other.admin, identifyCommand(0x99, 0))
	h := r.connectHost(1)
	// the same name from elsewhere, with another identifier: a line has both addresses
	twin := r.connectHostInfo(0, secret, func(a *connectArgs) { a.hostID = [16]byte{8} })
	third := r.connectHost(0, func(a *connectArgs) { a.hostID = [16]byte{9} })
	// to steal a queue of the others: the refusal has the address that it must come from
	for _, o := range []*host{other, twin} {
		a := o.ioArgs(5)
		r.do(r.dial(0), a.command())
		a.host = testHost
		r.do(r.dial(0), a.command())
	}
	for _, h := range []*host{h, third} {
		_, v := h.telemetry()
		b, err := json.Marshal(v)
		r.must(err)
		for _, s := range []string{otherHost, "198.51.100.77", "77777", "070000"} {
			testutil.True(t, !bytes.Contains(b, []byte(s)), "%q is in %s", s, b)
		}
		testutil.True(t, len(v.Refusals) != 0 && len(v.Events) != 0, "%d refusals, %d events",
			len(v.Refusals), len(v.Events))
	}
}

// TestTelemetryOfRefusals: a subsystem that a listener does not serve leaves no other trace there
// than one that does not exist.
func TestTelemetryOfRefusals(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1),
		subsystems.Config{
			NQN: testSub + "hidden", AllowAnyHost: true, Listeners: []string{"other"},
		})
	h := r.connectHost(0)
	for _, name := range []string{"hidden", "absent"} {
		r.status(r.dial(0), adminArgs(testSub+name).command(), refusedStatus)
	}
	_, v := h.telemetry()
	testutil.MustTrue(t, len(v.Refusals) == 2, "refusals %+v", v.Refusals)
	absent, hidden := v.Refusals[0].Attributes, v.Refusals[1].Attributes
	testutil.MustTrue(t, hidden["subsystem"] == testSub+"hidden", "attributes %v", hidden)
	hidden["subsystem"] = absent["subsystem"]
	testutil.True(t, maps.Equal(absent, hidden) && v.Refusals[0].Message == v.Refusals[1].Message,
		"%v, and where there is none %v", hidden, absent)
}

// TestTelemetryIsBounded: however much there is, a capture is small, and says that it is not all.
func TestTelemetryIsBounded(t *testing.T) {
	sub := ramSubsystem(t, 300)
	for i := range sub.Namespaces {
		sub.Namespaces[i].Limits.IOPS = 1000
	}
	_, h := joined(t, 1, 0, sub)
	header, v := h.telemetry()
	n := int(header.Last[2]) * nvme.TelemetryBlock
	testutil.True(t, n <= admin.TelemetrySize && n >= admin.TelemetrySize/4, "%d bytes", n)
	testutil.True(t, v.Truncated && len(v.Namespaces) == admin.TelemetryList/2,
		"truncated %v, %d namespaces", v.Truncated, len(v.Namespaces))
}

// TestTelemetryAge: captures that follow closely are made of one.
func TestTelemetryAge(t *testing.T) {
	r, h := joined(t, 1, 0, ramSubsystem(t, 1))
	_, first := h.telemetry()
	q := &r.target.find(testSub).lookup(h.cntlid).Telemetry.Query
	q.Age = time.Hour // in case this takes long
	header, second := h.telemetry()
	testutil.True(t, second.Time.Equal(first.Time) && header.THDGN == 2,
		"captured at %v and %v, generation %d", first.Time, second.Time, header.THDGN)
	q.Age = 0
	_, third := h.telemetry()
	testutil.True(t, !third.Time.Equal(first.Time), "the capture is old")
}

// TestCapturesInTurn: hosts take turns, however many controllers one of them has. A command that
// waits for too long fails.
func TestCapturesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHarness(t, 1, ramSubsystem(t, 1))
		other := info(nvme.TransportTCP)
		other.Remote = testLocal
		create := func(h *host) *fabrictest.Command {
			return r.send(h.admin,
				telemetryCommand(nvme.LogTelemetryHost, true, nvme.TelemetryBlock, 0))
		}
		a := make([]*host, 20)
		for i := range a {
			a[i] = r.connectHost(0)
		}
		b := r.connectHostInfo(0, other)
		release := r.occupy(true)
		left := len(a)
		for _, h := range a {
			create(h).Then = func() { left-- }
		}
		c := create(b)
		r.w.Settle()
		synctest.Wait() // they are in the queue, to ask the reactors
		release()
		synctest.Wait()
		release = r.occupy(true)
		r.w.Settle()
		synctest.Wait() // they are in the queue again
		stop := make(chan struct{})
		for range turns.MaxWorkers() { // afterwards the host keeps the workers busy
			w := r.target.find(testSub).lookup(b.cntlid).admin.hostWork(func() { <-stop })
			w.Request(&admin.Waiter{Answered: func() {}})
		}
		release()
		r.until("the other host is captured", func() bool { return c.Done })
		testutil.True(t, c.CQE.Status().OK() && left > 0, "%d are left, %v", left, c.CQE.Status())
		close(stop)
		r.until("all are captured", func() bool { return left == 0 })

		time.Sleep(admin.TelemetryAge)
		defer r.occupy(true)()
		c = create(b)
		time.Sleep(admin.AnswerWait)
		r.until("the command ends", func() bool { return c.Done })
		testutil.Equal(t, c.CQE.Status()&^nvme.More, nvme.InternalError, "")
	})
}

// TestCaptureHoldsNoWorker: captures that wait for a reactor do not keep the work of others
// waiting, and a reactor that does not answer has only one of each controller to answer.
func TestCaptureHoldsNoWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHarness(t, 1, ramSubsystem(t, 1))
		var list []*controller
		var asked atomic.Int64
		for range turns.MaxWorkers() {
			c := r.target.find(testSub).lookup(r.connectHost(0).cntlid)
			list = append(list, c)
			ask := c.Hooks.Queues
			c.Hooks.Queues = func(most int) (<-chan []observed.Connection, int) {
				asked.Add(1)
				return ask(most)
			}
		}
		ended := make(chan error, len(list))
		for try := range 3 {
			for _, c := range list {
				go func() {
					_, err := c.Telemetry.Query.Ask()
					ended <- err
				}()
			}
			synctest.Wait()
			worked := false
			job := &turns.Job{Run: func() { worked = true }, Done: func() {}}
			r.target.shared.Workers.Submit(job)
			synctest.Wait()
			testutil.True(t, worked, "captures that wait for a reactor keep others waiting")
			testutil.Equal(t, int(asked.Load()), len(list), "questions to the reactor")
			want := controllers.ErrNoAnswer
			if try == 2 {
				want = nil
			}
			for range list {
				for want == nil && len(ended) == 0 {
					synctest.Wait()
					r.w.Settle()
				}
				testutil.Equal(t, <-ended, want, "")
			}
		}
	})
}
