package target

import (
	"errors"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

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
		"a reactor is told again")
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
