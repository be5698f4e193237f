package target

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// steps are the commands of sequences.
var steps map[string]func(s *sequence, a *arguments) string

func init() {
	steps = map[string]func(s *sequence, a *arguments) string{
		"target": (*sequence).setUp, "restart": (*sequence).restart,
		"stores-fail": (*sequence).failStores, "stores-work": (*sequence).failStores,
		"subsystem": (*sequence).subsystem, "change-subsystem": (*sequence).subsystem,
		"remove-subsystem": (*sequence).removeSubsystem,
		"changing":         (*sequence).changes, "changed": (*sequence).changes,
		"namespace": (*sequence).namespace, "remove-namespace": (*sequence).removeNamespace,
		"device": (*sequence).device, "ios": (*sequence).ios,
		"exchange": (*sequence).exchange, "exchanged": (*sequence).exchanged,
		"port": (*sequence).port, "remove-port": (*sequence).removePort,
		"referrals": (*sequence).referrals, "networks": (*sequence).networks,
		"states": (*sequence).states, "check-health": (*sequence).checkHealth,
		"limits": (*sequence).limits, "advance": (*sequence).advance,
		"connect": (*sequence).connect, "connect-queue": (*sequence).connectQueue,
		"disconnect": (*sequence).disconnect, "reset": (*sequence).reset,
		"queues": (*sequence).queues, "event": (*sequence).event,
		"start": (*sequence).begin, "await": (*sequence).await, "batch": (*sequence).batch,
		"access":        (*sequence).access,
		"host-behavior": (*sequence).hostBehavior, "self-test-ends": (*sequence).selfTestEnds,
		"log-lines": (*sequence).logLines, "same": (*sequence).same,
		"abort": (*sequence).abort, "arrive": (*sequence).arrive, "held": (*sequence).held,
		"left": (*sequence).left, "conditions": (*sequence).conditions,
		"pause": (*sequence).pause, "resume": (*sequence).pause, "end": (*sequence).end,
		"marked-blocks": (*sequence).markedBlocks,
		"policy":        (*sequence).policy, "enforce-keys": (*sequence).enforceKeys,
		"authenticate": (*sequence).authenticate, "controllers": (*sequence).controllers,
		"authentications": (*sequence).authentications,
	}
	for name := range hostCommands {
		steps[name] = (*sequence).command
	}
}

// sequenceDevice is a device with a description that a sequence changes. It fails or holds IOs.
type sequenceDevice struct {
	*backendtest.Faulty
	drive *testDrive

	mu     sync.Mutex
	info   backend.Info
	notify func()
	got    []string // the IOs since the last time that the sequence has looked
	fail   map[backend.Op]error
	failAt int64 // negative: anywhere
}

func (d *sequenceDevice) Info() backend.Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.info
}

func (d *sequenceDevice) Notify(fn func()) { d.notify = fn }

// fault notes an IO and fails it if a sequence wants that.
func (d *sequenceDevice) fault(io *backend.IO) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := [...]string{
		backend.OpRead: "read", backend.OpWrite: "write", backend.OpFlush: "flush",
		backend.OpDiscard: "discard", backend.OpWriteZeroes: "zeroes",
	}[io.Op]
	text := fmt.Sprintf("%s %d+%d", op, io.Off, io.Len)
	if io.Flags&backend.FUA != 0 {
		text += " FUA"
	}
	d.got = append(d.got, text)
	if d.failAt >= 0 && d.failAt != io.Off {
		return nil
	}
	return d.fail[io.Op]
}

// setUp is the first command, if the target is not to be the usual one.
func (s *sequence) setUp(a *arguments) string {
	s.reactors = int(a.number("reactors", 1))
	if a.flag("reservation-store") {
		s.store = &memoryStore{}
	}
	if a.flag("protection-store") {
		s.protection = newProtectionStore()
	}
	if a.flag("mark-store") {
		s.marks = newMarkStore()
	}
	return "ok"
}

// restart ends the target and makes one with the same stores, subsystems and devices.
func (s *sequence) restart(a *arguments) string {
	s.r.close()
	clear(s.hosts)
	clear(s.events)
	s.start()
	for _, name := range slices.Sorted(mapKeys(s.subs)) {
		s.r.must(s.r.target.AddSubsystem(*s.subs[name]))
	}
	return "ok"
}

// failStores lets the stores fail, or work again.
func (s *sequence) failStores(a *arguments) string {
	s.protection.err = map[string]error{"stores-fail": errors.New("test")}[a.Cmd]
	return "ok"
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// result returns the output of a change of the configuration.
func result(err error) string {
	if err != nil {
		return "refused"
	}
	return "ok"
}

// subsystem adds or changes a subsystem. A new one begins with namespaces 1 to namespaces.
func (s *sequence) subsystem(a *arguments) string {
	name := ""
	if len(a.CmdArgs) > 0 && len(a.CmdArgs[0].Vals) == 0 {
		name = a.word(0)
	}
	cfg := subsystems.Config{
		NQN: subNamed(name), Serial: a.text("serial", ""), Model: a.text("model", ""),
		AllowAnyHost: true, Listeners: a.list("listeners"),
		CNTLIDMin: uint16(a.number("first-cntlid", 0)),
		CNTLIDMax: uint16(a.number("last-cntlid", 0)), MaxIOQueues: int(a.number("queues", 0)),
		MaxQueueSize: int(a.number("entries", 0)), MaxTransfer: int(a.number("transfer", 0)),
		RefuseDuplicateHosts: a.flag("refuse-duplicates"),
		Security:             subsystems.Security(a.number("security", 0)),
	}
	for _, h := range a.list("hosts") {
		cfg.AllowAnyHost = false
		if h != "nobody" {
			cfg.Hosts = append(cfg.Hosts, hostNamed(h))
		}
	}
	if a.flag("bad-host") {
		cfg.Hosts = []string{"a\nb"}
	}
	if a.Cmd == "change-subsystem" {
		gone, err := s.r.target.UpdateSubsystem(cfg)
		if err == nil {
			s.r.must(untilGone(s.r.w, gone))
		}
		s.r.settle()
		return result(err)
	}
	for nsid := range uint32(a.number("namespaces", 0)) {
		cfg.Namespaces = append(cfg.Namespaces, s.newNamespace(a, cfg.NQN, nsid+1))
	}
	err := s.r.target.AddSubsystem(cfg)
	if err == nil {
		s.subs[cfg.NQN] = &cfg
	}
	s.r.settle()
	return result(err)
}

func (s *sequence) removeSubsystem(a *arguments) string {
	name := ""
	if len(a.CmdArgs) > 0 {
		name = a.word(0)
	}
	delete(s.subs, subNamed(name))
	gone, err := s.r.target.RemoveSubsystem(subNamed(name), true)
	if err == nil {
		s.r.must(untilGone(s.r.w, gone))
	}
	return result(err)
}

// changes begins or ends a change of the configuration.
func (s *sequence) changes(a *arguments) string {
	if a.Cmd == "changing" {
		s.changed = s.r.target.Changing()
	} else {
		s.changed()
	}
	return "ok"
}

// newNamespace is a namespace on a new device of a MiB.
func (s *sequence) newNamespace(a *arguments, nqn string, nsid uint32) namespaces.Config {
	size, block := int64(a.number("size", 1<<20)), int(a.number("block", 512))
	d := &sequenceDevice{Faulty: backendtest.NewFaulty(ramDeviceOpen(s.t, size, block))}
	d.info = d.Faulty.Info()
	d.Fail(d.fault)
	d.describe(a)
	s.devices[fmt.Sprint(nqn, nsid)] = d
	cfg := namespaces.Config{
		NSID: nsid, Device: d, Timeout: time.Duration(a.number("timeout", 0)) * time.Second,
		Limits: qos.Limits{
			IOPS: int64(a.number("iops", 0)), Bandwidth: int64(a.number("bandwidth", 0)),
		},
	}
	if a.flag("cancels") {
		d.HonorCancel()
	}
	if a.flag("drive") {
		d.drive = &testDrive{id: "a"}
		d.drive.log.AvailableSpare = 100
		cfg.Drive = d.drive
	}
	if n := a.number("full", 0); n > 0 { // a drive with a different value in each field
		d.drive = &testDrive{
			id: fmt.Sprint(n), counts: !a.flag("counts-nothing"), log: full(uint8(n)),
		}
		cfg.Drive = d.drive
	}
	return cfg
}

func (s *sequence) closeDevices() {
	for _, d := range s.devices {
		testutil.Check(s.t, d.Close())
	}
}

// describe changes the description of a device.
func (d *sequenceDevice) describe(a *arguments) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := &d.info
	i.Size = int64(a.number("size", uint64(i.Size)))
	i.BlockSize = int(a.number("block", uint64(i.BlockSize)))
	i.PhysicalBlockSize = int(a.number("physical-block", uint64(i.PhysicalBlockSize)))
	i.Identity = a.text("identity", i.Identity)
	i.OptimalIO = int(a.number("optimal-io", uint64(i.OptimalIO)))
	for name, field := range map[string]*bool{
		"offline": &i.Offline, "degraded": &i.Degraded, "rotational": &i.Rotational,
		"discard": &i.Discard, "volatile-cache": &i.VolatileCache, "volatile": &i.Volatile,
		"elsewhere": &i.Elsewhere, "standby": &i.Standby,
	} {
		*field = a.text(name, strconv.FormatBool(*field)) == "true"
	}
}

// namespace adds a namespace, or changes one.
func (s *sequence) namespace(a *arguments) string {
	nqn, nsid := subNamed(a.text("subsystem", "")), uint32(a.number("nsid", 0))
	_, err := s.r.target.namespace(nqn, nsid)
	known := err == nil
	cfg := namespaces.Config{NSID: nsid}
	if known && s.subs[nqn] != nil {
		for _, old := range s.subs[nqn].Namespaces {
			if old.NSID == nsid {
				cfg = old
			}
		}
	} else if old := s.devices[fmt.Sprint(nqn, nsid)]; old != nil && a.flag("back") {
		cfg.Device = old
	} else if !a.flag("unknown") {
		cfg = s.newNamespace(a, nqn, nsid)
	}
	cfg.ANAGroup = uint32(a.number("group", 0))
	cfg.Timeout = time.Duration(a.number("timeout", uint64(cfg.Timeout/time.Second))) * time.Second
	cfg.ReadOnly, cfg.Hosts = a.flag("read-only"), nil
	for _, h := range a.list("hosts") {
		cfg.Hosts = append(cfg.Hosts, hostNamed(h))
	}
	if v := a.text("uuid", ""); v != "" {
		cfg.UUID = uuid.MustParse(v)
	}
	hex.Decode(cfg.NGUID[:], []byte(a.text("nguid", "")))
	hex.Decode(cfg.EUI64[:], []byte(a.text("eui64", "")))
	if !known && !a.flag("unknown") {
		err = s.r.target.AddNamespace(nqn, cfg)
		if sub := s.subs[nqn]; err == nil {
			sub.Namespaces = append(sub.Namespaces, cfg)
		}
	} else {
		cfg.Device = nil
		done := make(chan error, 1)
		s.r.during(func() error {
			done <- s.r.target.UpdateNamespace(nqn, cfg, nil)
			return nil
		})
		err = <-done
	}
	s.r.settle()
	return result(err)
}

func (s *sequence) removeNamespace(a *arguments) string {
	nqn, nsid := subNamed(a.text("subsystem", "")), uint32(a.number("nsid", 0))
	gone, err := s.r.target.RemoveNamespace(nqn, nsid)
	if err == nil {
		if !a.flag("at-once") { // while the device has IOs
			s.r.must(untilGone(s.r.w, gone))
		}
		sub := s.subs[nqn]
		sub.Namespaces = slices.DeleteFunc(sub.Namespaces,
			func(c namespaces.Config) bool { return c.NSID == nsid })
	}
	s.r.settle()
	return result(err)
}

func (s *sequence) deviceOf(a *arguments) *sequenceDevice {
	d := s.devices[fmt.Sprint(subNamed(a.text("subsystem", "")), a.number("nsid", 1))]
	if d == nil {
		a.Fatalf(a.t, "there is no such device")
	}
	return d
}

// device changes the device of a namespace, and prints whether it is watched.
func (s *sequence) device(a *arguments) string {
	d := s.deviceOf(a)
	d.delay(a)
	if w := a.text("fail", ""); w != "" {
		d.mu.Lock()
		name := a.text("with", "io")
		err, known := map[string]error{
			"io": backend.ErrIO, "degraded": backend.ErrDegraded, "no-space": backend.ErrNoSpace,
			"read-only": backend.ErrReadOnly, "out-of-range": backend.ErrOutOfRange,
			"unsupported": backend.ErrUnsupported, "aborted": backend.ErrAborted,
			"offline": backend.ErrOffline,
		}[name]
		if !known {
			err = errors.New(name)
		}
		err = fmt.Errorf("here: %w", err)
		if place := a.number("at", 0); place != 0 {
			err = fmt.Errorf("wrapped: %w", &backend.Fault{Off: int64(place), Err: err})
		}
		d.fail, d.failAt = map[backend.Op]error{}, -1
		if a.text("offset", "") != "" {
			d.failAt = int64(a.number("offset", 0))
		}
		for name, op := range deviceOps {
			if name == w || w == "everything" {
				d.fail[op] = err
			}
		}
		d.mu.Unlock()
	}
	if d.drive != nil {
		d.drive.set(func(l *nvme.SMARTLog) {
			l.Temperature = uint16(a.number("kelvin", uint64(l.Temperature)))
			l.AvailableSpare = uint8(a.number("spare", uint64(l.AvailableSpare)))
			l.CriticalWarning = uint8(a.number("warning", uint64(l.CriticalWarning)))
		}, map[bool]error{true: errors.New("no answer")}[a.flag("silent")])
	}
	before := d.Info()
	d.describe(a)
	if d.Info() != before || a.flag("again") {
		if d.notify == nil {
			return "nobody is told"
		}
		d.notify()
	}
	s.r.settle()
	return "ok"
}

// exchange begins to exchange the device of namespace 1. Its commands wait from then on.
func (s *sequence) exchange(a *arguments) string {
	s.swap = s.r.startExchange(namespaces.Config{
		ReadOnly: a.flag("read-only"), Limits: qos.Limits{IOPS: int64(a.number("iops", 0))},
		Timeout: time.Duration(a.number("timeout", 0)) * time.Second,
	})
	if s.deviceOf(a).Held() == 0 {
		return s.givenUp(a)
	}
	s.r.until("commands wait", func() bool {
		return !slices.ContainsFunc(s.r.raw, func(h *Handler) bool {
			return len(h.channels) > 0 && h.channels[0] != nil && !quiesced(h.channels[0])
		})
	})
	return "the device has IOs"
}

// givenUp waits until nothing uses the device of namespace 1.
func (s *sequence) givenUp(a *arguments) string {
	s.r.until("the device is given up", func() bool { return len(s.swap.old) > 0 })
	switch old := <-s.swap.old; old {
	case nil:
		return "there is no device"
	case s.deviceOf(a):
		return "the device is given up"
	default:
		return "another device is given up"
	}
}

// exchanged ends an exchange, with the device that the namespace has now, a new one, or nothing.
func (s *sequence) exchanged(a *arguments) string {
	var dev backend.Device
	switch with := a.word(0); with {
	case "not-yet":
		return s.givenUp(a)
	case "same":
		dev = s.deviceOf(a)
	case "new":
		s.devices[fmt.Sprint("old", len(s.devices))] = s.deviceOf(a)
		dev = s.newNamespace(a, testSub, 1).Device
	}
	err := map[bool]error{true: errors.New("an error")}[a.flag("fails")]
	err = s.swap.end(dev, err)
	if s.r.settle(); err != nil {
		return err.Error()
	}
	return "ok"
}

// ios shows the IOs that a device has got since the last time.
func (s *sequence) ios(a *arguments) string {
	d := s.deviceOf(a)
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.got
	if d.got = nil; len(l) == 0 {
		return "none"
	}
	return strings.Join(l, "\n")
}

// port adds a port, or changes the listener of one.
func (s *sequence) port(a *arguments) string {
	id := uint16(a.number("id", 1))
	tr := map[string]nvme.TransportType{
		"tcp": nvme.TransportTCP, "rdma": nvme.TransportRDMA,
	}[a.text("transport", "tcp")]
	p := port(id, tr, a.address("address", "192.0.2.1:4420").String())
	p.Listener = a.text("listener", "")
	p.TLS = map[string]fabric.TLSPolicy{
		"allowed": fabric.TLSAllowed, "required": fabric.TLSRequired,
	}[a.text("tls", "")]
	if a.flag("change") {
		s.r.target.SetPortListener(id, p.Listener, p.TLS)
		s.r.settle()
		return "ok"
	}
	err := s.r.target.AddPort(p)
	s.r.settle()
	return result(err)
}

func (s *sequence) removePort(a *arguments) string {
	err := s.r.target.RemovePort(uint16(a.number("id", 1)))
	s.r.settle()
	return result(err)
}

// referrals sets the discovery service: its name, and the services that it refers to, one a line.
func (s *sequence) referrals(a *arguments) string {
	cfg := subsystems.Discovery{
		NQN: a.text("nqn", ""), Security: subsystems.Security(a.number("security", 0)),
	}
	for line := range strings.Lines(a.Input) {
		w := strings.Fields(line)
		tr := map[string]nvme.TransportType{
			"tcp": nvme.TransportTCP, "rdma": nvme.TransportRDMA,
		}[w[0]]
		ref := discovery.Referral{Addr: port(0, tr, w[1]).Addr, NQN: nvme.DiscoveryNQN}
		for _, h := range w[2:] {
			ref.Hosts = append(ref.Hosts, hostNamed(h))
		}
		cfg.Referrals = append(cfg.Referrals, ref)
	}
	err := s.r.target.SetDiscovery(cfg)
	s.r.settle()
	return result(err)
}

// networks binds a host to networks.
func (s *sequence) networks(a *arguments) string {
	var list []netip.Prefix
	for _, n := range a.list("of") {
		list = append(list, netip.MustParsePrefix(n))
	}
	s.r.target.SetHostNetworks(hostNamed(a.word(0)), list)
	s.r.settle()
	return "ok"
}

// states sets the ANA states of a port, with arguments such as 7=inaccessible.
func (s *sequence) states(a *arguments) string {
	list := states{}
	for _, arg := range a.CmdArgs {
		group, err := a.parse(arg.Key)
		for _, state := range nvme.ANAStates {
			if err == nil && len(arg.Vals) == 1 && state.String() == arg.Vals[0] {
				list[uint32(group)] = state
				a.used[arg.Key] = true
			}
		}
		if err == nil && len(arg.Vals) == 1 && arg.Vals[0] == "reserved" {
			list[uint32(group)] = 5
			a.used[arg.Key] = true
		}
	}
	err := s.r.target.SetANAStates(uint16(a.number("port", 1)), list)
	if !a.flag("at-once") { // with the next command
		s.r.settle()
	}
	return result(err)
}

// parse is the number that an argument begins with.
func (a *arguments) parse(key string) (uint64, error) { return strconv.ParseUint(key, 10, 32) }

// checkHealth asks all drives, even if they have answered before.
func (s *sequence) checkHealth(*arguments) string {
	for _, sub := range *s.r.target.table.Load() {
		for _, ns := range sub.Namespaces.Load().List {
			if d := ns.Attributes().Drive; d != nil {
				d.Age = 0
			}
		}
	}
	s.r.target.CheckHealth()
	s.r.settle()
	return "ok"
}

// limits limits a host.
func (s *sequence) limits(a *arguments) string {
	l := qos.Limits{Bandwidth: int64(a.number("bandwidth", 0))}
	s.r.target.SetHostLimits(hostNamed(a.word(0)), l)
	s.r.settle()
	return "ok"
}

// advance lets time pass.
func (s *sequence) advance(a *arguments) string {
	s.r.w.Advance(time.Duration(a.number("ms", 0))*time.Millisecond +
		time.Duration(a.number("seconds", 0))*time.Second)
	return "ok"
}

// logLines counts the lines of the log that have a text.
func (s *sequence) logLines(a *arguments) string {
	text := strings.TrimSpace(a.Input)
	return strconv.Itoa(strings.Count(s.r.log.String(), text))
}
