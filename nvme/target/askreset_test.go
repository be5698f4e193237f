package target

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

func (r *harness) askForResets(port func(uint16) bool) (asked []*ResetRequest) {
	r.t.Helper()
	r.during(func() (err error) {
		asked, err = r.target.AskForResets(context.Background(), port)
		return err
	})
	return asked
}

func isGone(q *ResetRequest) bool {
	select {
	case <-q.Gone():
		return true
	default:
		return false
	}
}

// TestAskForResets: hosts of these ports get the event once, as soon as they have a request for it,
// with any events enabled. Discovery controllers and disabled controllers do not get it.
func TestAskForResets(t *testing.T) {
	r := newHarness(t, 2, ramSubsystem(t, 1))
	other := info(nvme.TransportTCP)
	other.PortID = 7
	h, elsewhere := r.connectHost(1), r.connectHostInfo(0, other)
	disabled := r.connectHost(0)
	r.ok(disabled.admin, propertySetCommand(nvme.PropertyCC, 0))
	discovery := r.connectHost(0, func(a *connectArgs) { a.sub = nvme.DiscoveryNQN })
	aer := func(h *host) *fabrictest.Command {
		return r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	}
	others := []*fabrictest.Command{aer(elsewhere), aer(discovery)}

	asked := r.askForResets(func(id uint16) bool { return id != 7 })
	r.w.Settle()
	testutil.MustTrue(t, len(asked) == 1 && !asked[0].Begun() && !isGone(asked[0]),
		"%d controllers were asked", len(asked))
	for i, c := range others {
		if c.Done {
			t.Errorf("event %#x of another controller, %d", c.CQE.DW0(), i)
		}
	}
	event := aer(h) // it has waited for a request
	r.w.Settle()
	if !event.Done || nvme.AsyncEvent(event.CQE.DW0()) != nvme.AsyncPersistentError {
		t.Fatalf("event %v %#x", event.Done, event.CQE.DW0())
	}
	testutil.True(t, !aer(h).Done, "the event came again")
	r.ok(h.io[0], readAt(0)) // the host decides when

	h.io[0].HangUp()
	r.w.Settle()
	testutil.True(t, asked[0].Begun(), "the end of a queue is no begin of a reset")
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
	if r.w.Settle(); h.csts().RDY() || isGone(asked[0]) {
		t.Error("the controller is not reset, or gone already")
	}
	h.admin.HangUp()
	r.w.Settle()
	testutil.True(t, isGone(asked[0]), "the controller is not gone")
}

// TestPauseAll: the devices have no more commands of hosts, and new commands wait. A host that
// resets drops its commands. The commands of other hosts go on.
func TestPauseAll(t *testing.T) {
	sub, dev := faultySubsystem(t)
	r := newHarness(t, 1, sub)
	h, stays := r.connectHost(1), r.connectHost(1)
	dev.Hold(nil)
	read := r.send(h.io[0], readAt(0))
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })
	pauseAll := func(within time.Duration) (release func(), err error) {
		r.during(func() error {
			release, err = r.target.PauseAll(within)
			return nil
		})
		return release, err
	}
	// On a busy machine the time is over before anything was waited for, with another error.
	if _, err := pauseAll(time.Millisecond); err == nil || r.target.Stats()[0].State == "paused" {
		t.Fatalf("%v, %+v", err, r.target.Stats()[0])
	}
	dev.Release()
	r.until("the command completes", func() bool { return read.Done })

	release, err := pauseAll(time.Hour)
	testutil.MustTrue(t, err == nil && r.target.Stats()[0].State == "paused", "%v", err)
	lost, waits := r.send(h.io[0], readAt(0)), r.send(stays.io[0], readAt(0))
	r.w.Settle()
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
	if r.w.Settle(); h.csts().RDY() || waits.Done {
		t.Errorf("ready %v, done %v", h.csts().RDY(), waits.Done)
	}
	r.during(func() error {
		release()
		return nil
	})
	r.until("the command goes on", func() bool { return waits.Done })
	if !waits.CQE.Status().OK() || lost.Done && lost.CQE.Status().OK() ||
		r.target.Stats()[0].State == "paused" {
		t.Errorf("%v, %v, %+v", waits.CQE.Status(), lost.CQE.Status(), r.target.Stats()[0])
	}
	// A pause that was there before stays.
	r.pause()
	release, err = pauseAll(time.Hour)
	testutil.MustTrue(t, err == nil, "%v", err)
	release()
	testutil.True(t, r.target.Stats()[0].State == "paused", "the pause has ended")
	r.resume()
}

// TestPauseAllIsBounded: the goroutines that pause all namespaces, and their posts to a reactor, do
// not grow with the number of namespaces.
func TestPauseAllIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHarness(t, 1, ramSubsystem(t, 2*pausedAtOnce))
		h := r.connectHost(1)
		for nsid := range uint32(2 * pausedAtOnce) { // opens channels, which a pause closes
			r.ok(h.io[0], rw(nvme.NVMRead, nsid+1, 0, 1, make([]byte, 512)))
		}
		most, ended := 0, make(chan error, 1)
		go func() {
			pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels("test", t.Name())))
			release, err := r.target.PauseAll(time.Hour)
			if err == nil {
				release()
			}
			ended <- err
		}()
		for len(ended) == 0 {
			synctest.Wait()
			most = max(most, labelled(t, t.Name()))
			r.w.Settle()
		}
		testutil.Equal(t, <-ended, nil, "")
		testutil.Equal(t, most, 1+pausedAtOnce, "goroutines")
	})
}

// labelled returns the number of goroutines with this label, which goroutines inherit.
func labelled(t *testing.T, label string) (count int) {
	t.Helper()
	var profile strings.Builder
	testutil.Must(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
	n := 0
	for line := range strings.Lines(profile.String()) {
		_, _ = fmt.Sscanf(line, "%d @", &n)
		if strings.HasPrefix(line, "# labels:") && strings.Contains(line, strconv.Quote(label)) {
			count += n
		}
	}
	return count
}

func (r *harness) pause() {
	r.t.Helper()
	r.during(func() error { return r.target.PauseNamespace(testSub, 1) })
	testutil.True(r.t, r.target.Stats()[0].State == "paused", "the namespace is not paused")
}

func (r *harness) resume() {
	r.t.Helper()
	r.during(func() error { return r.target.ResumeNamespace(testSub, 1) })
	testutil.True(r.t, r.target.Stats()[0].State != "paused", "the namespace is paused")
}

// TestPause: commands wait on all reactors while the namespace is paused and its device has no
// channel, also when it is changed meanwhile, and then go on.
func TestPause(t *testing.T) {
	dev := &instance{Device: ramDevice(t, 1<<20, 512)}
	next := &instance{Device: dev.Device}
	r, h := joined(t, 2, 2, subsystemOf(testSub, dev))
	r.ok(h.io[0], readAt(0))
	send := func() (commands []*fabrictest.Command) {
		for _, q := range h.io {
			commands = append(commands, r.send(q, rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512))))
		}
		return commands
	}
	wait := func(commands []*fabrictest.Command, want nvme.Status) {
		t.Helper()
		r.until("commands go on", func() bool { return commands[0].Done && commands[1].Done })
		for _, c := range commands {
			testutil.Equal(t, c.CQE.Status()&^nvme.More, want, "")
		}
	}
	r.pause()
	commands := send()
	r.pause() // again
	r.target.common.CloseDeadline = time.Millisecond
	testutil.Equal(t, r.target.find(testSub).Namespaces.Load().Get(1).Pause(), nil,
		"a reactor is told anew")
	r.target.common.CloseDeadline = closeDeadline
	if r.w.Settle(); commands[0].Done || commands[1].Done || dev.channels.Load() != 0 {
		t.Errorf("done %v %v, %d channels", commands[0].Done, commands[1].Done, dev.channels.Load())
	}
	r.during(func() error {
		return r.target.UpdateNamespace(testSub, namespaces.Config{NSID: 1, ReadOnly: true}, nil)
	})
	r.resume()
	wait(commands, writeProtected)
	r.during(func() error {
		return r.target.UpdateNamespace(testSub, namespaces.Config{NSID: 1}, nil)
	})
	r.pause()
	commands = send()
	r.during(func() error {
		return r.target.UpdateNamespace(testSub, namespaces.Config{NSID: 1},
			func(backend.Device) (backend.Device, error) { return next, nil })
	})
	if r.w.Settle(); commands[0].Done || commands[1].Done || next.channels.Load() != 0 {
		t.Error("the exchange of the device has ended the pause")
	}
	r.resume()
	wait(commands, nvme.Success)
	r.resume() // again
	testutil.True(t, next.channels.Load() == 2, "the new device has %d channels",
		next.channels.Load())
}

// TestPauseHungDevice: a namespace is not paused if its device does not finish its IOs.
func TestPauseHungDevice(t *testing.T) {
	r, h, dev := onFaulty(t, 1, 1)
	dev.Hold(nil)
	read := r.send(h.io[0], readAt(0))
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })
	r.target.common.DrainDeadline = time.Millisecond
	result := make(chan error, 1)
	go func() {
		result <- r.target.PauseNamespace(testSub, 1)
		r.w.Reactors[0].Wake()
	}()
	r.until("it gives up", func() bool { return len(result) > 0 })
	if err := <-result; !errors.Is(err, namespaces.ErrBusy) ||
		r.target.Stats()[0].State == "paused" {
		t.Errorf("%v, %+v", err, r.target.Stats()[0])
	}
	dev.Release()
	r.until("the command completes", func() bool { return read.Done })
	r.ok(h.io[0], readAt(0))
}

// TestRemovePaused: commands that wait do not keep a paused namespace from being removed.
func TestRemovePaused(t *testing.T) {
	r, h := joined(t, 1, 1, ramSubsystem(t, 1))
	r.pause()
	read := r.send(h.io[0], readAt(0))
	r.w.Settle()
	r.removeNamespace(1)
	testutil.True(t, read.Done && read.CQE.Status().OK(), "%v %v", read.Done, read.CQE.Status())
	testutil.True(t, r.target.PauseNamespace(testSub, 1) != nil,
		"a namespace was paused that does not exist")
}

// TestInCapsuleDataIsCopied: a device gets a copy of data in the receive slots of a queue if its
// commands may be given up.
func TestInCapsuleDataIsCopied(t *testing.T) {
	dev := faultyDevice(t, 1<<20, 512)
	b := newBare(t, namespaces.Config{NSID: 1, Device: dev, Timeout: time.Second}, 32)
	arena := b.w.Reactors[0].Memory()
	b.h.memory = arena
	slot := bytes.Repeat([]byte{1}, 4096)
	send := func() {
		r := b.reqs[0]
		r.Reset()
		r.SQE = nvme.SQE{}
		r.SQE.SetOpcode(nvme.NVMWrite)
		r.SQE.SetFlags(psdtSGL << 6)
		r.SQE.SetNSID(1)
		r.SQE.RW().Set(0, 8, 0)
		r.HostLength, r.InCapsule = 4096, true
		b.h.Prepare([]*fabric.Request{r})
		r.Segs = append(r.Segs, mem.Segment{B: slot[:1000], Region: -1},
			mem.Segment{B: slot[1000:], Region: -1})
		b.h.Execute([]*fabric.Request{r})
	}
	free, done := arena.Available(), b.q.done
	send()
	testutil.MustTrue(t, b.q.done == done+1 && b.q.bad == 0 && arena.Available() == free,
		"%d done, %d failed, %d bytes taken", b.q.done-done, b.q.bad, free-arena.Available())
	dev.Hold(nil)
	send()
	b.w.Advance(3 * time.Second)
	testutil.MustTrue(t, b.q.done == done+2 && b.q.bad == 1, "%d done, %d failed", b.q.done-done,
		b.q.bad)
	clear(slot) // the next capsule
	dev.Release()
	b.w.Settle()
	testutil.True(t, arena.Available() == free, "%d bytes have not come back",
		free-arena.Available())
	c := backendtest.NewClient(t, dev, 4096)
	defer c.Close()
	got := c.Memory(0, 4096)
	c.MustDo(c.Read(0, got))
	testutil.True(t, bytes.Equal(got, bytes.Repeat([]byte{1}, 4096)),
		"the device wrote the data of a later capsule")
}

// TestCancelWithoutHandOver: a command that cannot be given up, because there is no memory for a
// copy of its in-capsule data, is canceled at least.
func TestCancelWithoutHandOver(t *testing.T) {
	b, dev, prepare := capsuleWrite(t)
	dev.HonorCancel()
	dev.Hold(nil)
	var all mem.Allocation
	b.h.memory.Alloc(&all, nil, b.h.memory.Max(nil))
	defer all.Free()
	r, done := prepare(), b.q.done
	b.h.Execute([]*fabric.Request{r})
	b.w.Advance(2 * time.Second)
	if b.q.done != done+1 || dev.Held() != 0 || r.CQE.Status() != nvme.AbortRequested {
		t.Errorf("%d done, the device has %d, %v", b.q.done-done, dev.Held(), r.CQE.Status())
	}
	dev.Release()
}
