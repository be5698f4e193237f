package target

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestOffline: commands for storage that is offline are refused, after a delay, with a status that
// makes hosts retry.
func TestOffline(t *testing.T) {
	sub, dev := faultySubsystem(t)
	r := newHarness(t, 1, sub)
	q := r.connectHost(1).io[0]
	dev.Fail(func(*backend.IO) error { return fmt.Errorf("here: %w", backend.ErrOffline) })
	for _, c := range everyCommand() {
		r.notReady(q, c)
	}
	dev.Fail(nil)
	for _, c := range everyCommand() {
		r.ok(q, c)
	}
}

// TestFullDevice: IOs that a device refuses are offered again, and the reactor does not sleep if
// the device would not wake it.
func TestFullDevice(t *testing.T) {
	sub, dev := faultySubsystem(t)
	r := newHarness(t, 1, sub)
	q := r.connectHost(1).io[0]
	r.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))) // the channel is open
	dev.Full(true)
	var all []*fabrictest.Command
	for i := range 50 {
		all = append(all, r.send(q, rw(nvme.NVMRead, 1, uint64(i), 1, make([]byte, 512))))
	}
	r.w.Step()
	if all[0].Done {
		t.Fatal("the device is full")
	}
	if r.raw[0].Arm() {
		t.Error("the reactor may sleep although nothing would wake it")
	}
	dev.Full(false)
	for _, c := range all {
		r.until("a command completes", func() bool { return c.Done })
	}
}

// TestChannelOpenFails: commands fail without DNR, and a later command opens the channel.
func TestChannelOpenFails(t *testing.T) {
	dev := &unopenable{Device: ramDevice(t, 1<<20, 512), err: errors.New("the disk is missing")}
	sub := SubsystemConfig{
		NQN: testSub, AllowAnyHost: true,
		Namespaces: []NamespaceConfig{{NSID: 1, Device: dev}},
	}
	r := newHarness(t, 1, sub)
	q := r.connectHost(1).io[0]
	read := func() *fabrictest.Command { return rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)) }
	r.notReady(q, read())
	r.notReady(q, dsm(1, true, [2]uint64{0, 1}, [2]uint64{2, 1}))
	first := r.send(q, read())
	r.until("it waits", func() bool { return !r.raw[0].delayed.list.Empty() })
	dev.set(nil)
	r.notReady(q, read()) // the channel is not opened before a second is over
	if !first.Done {
		t.Error("still waiting")
	}
	r.ok(q, read())
}

type unopenable struct {
	backend.Device
	mu  sync.Mutex
	err error
}

func (d *unopenable) set(err error) {
	d.mu.Lock()
	d.err = err
	d.mu.Unlock()
}

func (d *unopenable) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return nil, d.err
	}
	return d.Device.OpenChannel(r)
}
