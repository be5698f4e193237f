package target

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// threshold is CDW11 of the Temperature Threshold feature.
func threshold(sensor, sel, kelvin uint32) uint32 { return kelvin | sensor<<16 | sel<<20 }

// TestTemperatureThreshold: the thresholds above and below the composite temperature can be set, by
// its name or as one of all sensors; other sensors do not exist.
func TestTemperatureThreshold(t *testing.T) {
	const fid = nvme.FeatureTemperatureThreshold
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(0)
	get := func(sel nvme.FeatureSelect, th, want uint32) {
		t.Helper()
		c := r.ok(h.admin, getFeature(fid, sel, threshold(0, th, 0)))
		if got := c.CQE.DW0(); got != want {
			t.Errorf("SEL %d, THSEL %d: %#x, want %#x", sel, th, got, want)
		}
	}
	get(nvme.FeatureCurrent, 0, 0xFFFF)
	get(nvme.FeatureCurrent, 1, 0)
	r.ok(h.admin, setFeature(fid, threshold(0, 0, 350)))
	r.ok(h.admin, setFeature(fid, threshold(0xF, 1, 280)))
	get(nvme.FeatureCurrent, 0, 350)
	get(nvme.FeatureCurrent, 1, 280)
	for _, sel := range []nvme.FeatureSelect{nvme.FeatureDefault, nvme.FeatureSaved} {
		get(sel, 0, 0xFFFF)
		get(sel, 1, 0)
	}
	for sensor := range uint32(16) {
		for sel := range uint32(4) {
			set, read := sensor == 0 || sensor == 0xF, sensor == 0
			want := map[bool]nvme.Status{true: nvme.Success, false: invalidField}
			v := threshold(sensor, sel, 300)
			r.status(h.admin, getFeature(fid, 0, v), want[read && sel < 2])
			r.status(h.admin, setFeature(fid, v), want[set && sel < 2])
		}
	}
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	get(nvme.FeatureCurrent, 0, 0xFFFF)
	get(nvme.FeatureCurrent, 1, 0)
}

// TestTemperatureEvent: a controller whose thresholds the temperature of a drive reaches warns its
// host, once, and only that host.
func TestTemperatureEvent(t *testing.T) {
	const fid = nvme.FeatureTemperatureThreshold
	d := &testDrive{id: "a", log: nvme.SMARTLog{Temperature: 300}}
	r := newHarness(t, 1, onDrives(t, d))
	h, other := r.connectHost(0), r.connectHost(0)
	at := func(kelvin uint16) {
		t.Helper()
		d.set(func(l *nvme.SMARTLog) { l.Temperature = kelvin }, nil)
		r.target.find(testSub).namespaces.Load().get(1).cfg.Load().drive.smart.asked = time.Time{}
		r.target.CheckHealth()
		r.w.Settle()
	}
	listen := func(h *host) *fabrictest.Command {
		r.ok(h.admin,
			setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventTemperature)))
		return r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	}
	quiet, event := listen(other), listen(h)
	expect := func(what string, want bool) {
		t.Helper()
		r.w.Settle()
		if event.Done != want ||
			want && nvme.AsyncEvent(event.CQE.DW0()) != nvme.AsyncTemperature {
			t.Fatalf("%s: event %v, %#x", what, event.Done, event.CQE.DW0())
		}
		hot := r.smart(h, nvme.NSIDAll).CriticalWarning&nvme.SMARTTemperature != 0
		if hot != want { // reading the log ends the masking
			t.Errorf("%s: critical warning %v", what, hot)
		}
		if want {
			event = listen(h)
		}
	}
	at(300)
	r.ok(h.admin, setFeature(fid, threshold(0, nvme.THSELOver, 310)))
	r.ok(h.admin, setFeature(fid, threshold(0, nvme.THSELUnder, 290)))
	expect("between the thresholds", false)
	at(309)
	expect("just below", false)
	at(310)
	expect("reached", true)
	at(315)
	if r.w.Settle(); event.Done {
		t.Error("it became even hotter: a second event")
	}
	at(300)
	expect("cool again", false)
	at(290)
	expect("too cold", true)
	at(300)
	r.ok(h.admin, setFeature(fid, threshold(0, nvme.THSELOver, 300)))
	expect("a threshold that is reached already", true)
	if quiet.Done || r.smart(other, 1).CriticalWarning != 0 {
		t.Error("a controller without thresholds warns")
	}
}

// TestTimestamp: it counts from a reset, and from what a host has set.
func TestTimestamp(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(0)
	set := func(n int, ms uint64) *fabrictest.Command {
		c := setFeature(nvme.FeatureTimestamp, 0)
		c.Data = binary.LittleEndian.AppendUint64(make([]byte, 0, 16), ms)[:n]
		return c
	}
	expect := func(sel nvme.FeatureSelect, want uint64) {
		t.Helper()
		c := getFeature(nvme.FeatureTimestamp, sel, 0)
		c.Data = make([]byte, 8)
		if got := binary.LittleEndian.Uint64(r.ok(h.admin, c).Data); got != want {
			t.Errorf("SEL %d: %#x, want %#x", sel, got, want)
		}
	}
	const byHost, some = 1 << 49, 1_000_000_000_000
	r.w.Advance(1500e6)
	expect(nvme.FeatureCurrent, 1500)
	r.ok(h.admin, set(8, 0xFFFF<<48|some)) // the attributes are the controller's
	expect(nvme.FeatureCurrent, some|byHost)
	r.w.Advance(2e9)
	expect(nvme.FeatureCurrent, some+2000|byHost)
	expect(nvme.FeatureDefault, 0)
	for _, n := range []int{0, 7, 9} {
		r.status(h.admin, set(n, 1), invalidLength)
	}
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	r.w.Advance(1e9)
	expect(nvme.FeatureCurrent, 1000)
}

// TestHostBehavior: what a host supports is stored and read back; nothing else of the structure is.
func TestHostBehavior(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(0)
	set := func(b []byte) *fabrictest.Command {
		c := setFeature(nvme.FeatureHostBehavior, 0)
		c.Data = b
		return c
	}
	expect := func(sel nvme.FeatureSelect, want []byte) {
		t.Helper()
		c := getFeature(nvme.FeatureHostBehavior, sel, 0)
		c.Data = bytes.Repeat([]byte{0xAA}, nvme.HostBehaviorSize)
		want = append(bytes.Clone(want), make([]byte, nvme.HostBehaviorSize-len(want))...)
		if got := r.ok(h.admin, c).Data; !bytes.Equal(got, want) {
			t.Errorf("SEL %d: % x", sel, got[:16])
		}
	}
	expect(nvme.FeatureCurrent, nil)
	r.ok(h.admin, set(bytes.Repeat([]byte{1}, nvme.HostBehaviorSize)))
	expect(nvme.FeatureCurrent, []byte{1, 1, 1, 1, 1, 1})
	expect(nvme.FeatureDefault, nil)
	for i := range nvme.HostBehaviorCDFE {
		b := make([]byte, nvme.HostBehaviorSize)
		b[i] = 2
		r.status(h.admin, set(b), invalidField)
	}
	r.status(h.admin, set(make([]byte, 511)), invalidLength)
	expect(nvme.FeatureCurrent, []byte{1, 1, 1, 1, 1, 1})
	if id := h.controller(); id.CRDT != [3]uint16{} {
		t.Errorf("CRDT %v: no status has a delay", id.CRDT)
	}
}
