package target

import (
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// odd is a device with an invalid description.
type odd struct {
	backend.Device
	info backend.Info
}

func (d odd) Info() backend.Info { return d.info }

// TestSubsystemConfig: an error names its place, and nothing is added.
func TestSubsystemConfig(t *testing.T) {
	dev := ramDevice(t, 1<<20, 512)
	serial := strings.Repeat("s", 21)
	ns := func(list ...namespaces.Config) []namespaces.Config { return list }
	for want, change := range map[string]func(*subsystems.Config){
		"invalid NQN":             func(c *subsystems.Config) { c.NQN = "nqn.disk\x00" },
		"is built in":             func(c *subsystems.Config) { c.NQN = nvme.DiscoveryNQN },
		"exists already":          func(c *subsystems.Config) { c.NQN = testSub + ".taken" },
		"serial":                  func(c *subsystems.Config) { c.Serial = serial },
		"printable":               func(c *subsystems.Config) { c.Serial = "a\x1fb" },
		"model":                   func(c *subsystems.Config) { c.Model = strings.Repeat("m", 41) },
		"CNTLID range 7 to 6":     func(c *subsystems.Config) { c.CNTLIDMin, c.CNTLIDMax = 7, 6 },
		"CNTLID range 1 to 65520": func(c *subsystems.Config) { c.CNTLIDMax = 65520 },
		"I/O queues":              func(c *subsystems.Config) { c.MaxIOQueues = 65535 },
		"queue size 31":           func(c *subsystems.Config) { c.MaxQueueSize = 31 },
		"largest transfer 98304":  func(c *subsystems.Config) { c.MaxTransfer = 96 << 10 },
		"largest transfer 838860": func(c *subsystems.Config) { c.MaxTransfer = 8 << 20 },
		"largest transfer 32768":  func(c *subsystems.Config) { c.MaxTransfer = 32 << 10 },
		"host: invalid NQN":       func(c *subsystems.Config) { c.Hosts = []string{""} },
		"nsid must be 1 to": func(
			c *subsystems.Config,
		) {
			c.Namespaces = ns(namespaces.Config{NSID: namespaces.MaxNSID + 1, Device: dev})
		},
		"namespace 0: nsid": func(
			c *subsystems.Config,
		) {
			c.Namespaces = ns(namespaces.Config{Device: dev})
		},
		"no device": func(c *subsystems.Config) { c.Namespaces = ns(namespaces.Config{NSID: 1}) },
		"namespace 2 is given twice": func(c *subsystems.Config) {
			c.Namespaces = ns(namespaces.Config{NSID: 2, Device: dev},
				namespaces.Config{NSID: 2, Device: dev})
		},
		"block size 520: must be": func(c *subsystems.Config) {
			c.Namespaces = ns(namespaces.Config{
				NSID:   1,
				Device: odd{dev, backend.Info{Size: 1 << 20, BlockSize: 520}},
			})
		},
		"size 511 is below one block of": func(c *subsystems.Config) {
			c.Namespaces = ns(namespaces.Config{
				NSID:   1,
				Device: odd{dev, backend.Info{Size: 511, BlockSize: 512}},
			})
		},
	} {
		t.Run(want, func(t *testing.T) {
			target := New(Options{})
			testutil.Must(t, target.AddSubsystem(subsystems.Config{NQN: testSub + ".taken"}))
			c := subsystems.Config{NQN: testSub}
			change(&c)
			err := target.AddSubsystem(c)
			testutil.Fails(t, err, want, "")
			testutil.Equal(t, len(*target.table.Load()), 1, "subsystems")
			for _, used := range target.slots {
				testutil.True(t, used == nil, "a namespace slot leaked")
			}
		})
	}
}

// TestNamespaceCalls: additions and removals that are refused.
func TestNamespaceCalls(t *testing.T) {
	dev := ramDevice(t, 1<<20, 512)
	r := newHarness(t, 1, ramSubsystem(t, 1))
	for want, err := range map[string]error{
		"does not exist": r.target.AddNamespace(testSub+"2",
			namespaces.Config{NSID: 2, Device: dev}),
		"exists already": r.target.AddNamespace(testSub, namespaces.Config{NSID: 1, Device: dev}),
		"no device":      r.target.AddNamespace(testSub, namespaces.Config{NSID: 2}),
		"port 1 exists": firstError(r.target.AddPort(discovery.Port{ID: 1}),
			r.target.AddPort(discovery.Port{ID: 1})),
		"has no namespace": second(r.target.RemoveNamespace(testSub, 2)),
	} {
		testutil.Fails(t, err, want, "")
	}
}

func second[T any](_ T, err error) error { return err }

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestClosedTarget: a closed target accepts nothing.
func TestClosedTarget(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h, idle := r.connectHost(1), r.dial(0)
	r.during(r.target.Close)
	r.w.Settle()
	testutil.True(t, h.admin.Closed() && h.io[0].Closed() && idle.Closed(), "queues are still open")
	if _, err := fabrictest.Dial(r.w.Reactors[0], r.raw[0], info(nvme.TransportTCP)); err == nil {
		t.Error("a queue was opened")
	}
	testutil.True(t, r.target.AddSubsystem(subsystems.Config{NQN: testSub}) != nil,
		"a subsystem was added")
	testutil.True(t, testutil.Err(r.target.NewHandler(HandlerConfig{Loop: r.w.Reactors[0]})) != nil,
		"a handler was made")
	testutil.True(t, testutil.Err(r.target.NewHandler(HandlerConfig{})) != nil,
		"a handler without a loop was made")
}

// TestCloseWithoutReactors: a target closes at once if its reactors never ran.
func TestCloseWithoutReactors(t *testing.T) {
	w := testutil.Value(fabrictest.NewWorld(1))(t)
	target := New(Options{})
	testutil.Must(t, target.AddSubsystem(ramSubsystem(t, 3)))
	testutil.Value(target.NewHandler(HandlerConfig{Loop: w.Reactors[0]}))(t)
	testutil.Check(t, target.Close())
	testutil.Check(t, w.Close())
}

// TestSubsystemName: a name of another form is served.
func TestSubsystemName(t *testing.T) {
	const name = "blktests-subsystem-1"
	sub := ramSubsystem(t, 1)
	sub.NQN = name
	r := newHarness(t, 1, sub, ramSubsystem(t, 0))
	h := r.connectHost(1, on(name))
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	got, _ := nvme.ParseNQN(&h.controller().SUBNQN)
	testutil.True(t, got == name, "SUBNQN %q", got)
}
