package live

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/netif"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// env has two targets: one that is changed while it runs, and one that is restarted with each
// configuration. They differ in their addresses and the directory of their files.
type env struct {
	t      *testing.T
	fabric *verbstest.Fabric
	port   int
	live   *place
	fresh  *place
}

// place is the environment of a target.
type place struct {
	*env
	name, tcp, rdma, dir string
	managed              int // number of configurations made
	machine              *machine
	*harness.Harness     // set once the target runs
}

// machine stands in for the interfaces of the real machine.
type machine struct {
	mu      sync.Mutex
	state   netif.State
	changed func()
}

func (m *machine) Read(...string) (netif.State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state, nil
}

func (m *machine) Watch(changed func()) (stop func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changed = changed
	return func() {}, nil
}

func (*machine) Handshakes() ([]netif.Handshake, error) { return nil, nil }

func (*machine) Route(_, _ netip.Addr) (string, error) { return "", nil }

// has gives the machine the addresses of a model, and waits until a running target has noticed.
func (p *place) has(m *model) {
	p.t.Helper()
	p.machine.mu.Lock()
	p.machine.state.Addresses = nil
	for _, name := range m.machine {
		p.machine.state.Addresses = append(p.machine.state.Addresses, netif.Address{
			Addr: p.transport(name).(host.TCP).Addr.Addr(), Interface: "eth0", Up: true,
		})
	}
	changed := p.machine.changed
	p.machine.mu.Unlock()
	if changed == nil {
		return
	}
	changed()
	noticed := func() bool {
		return !slices.ContainsFunc([]string{"tcp 4", "tcp 5"}, func(name string) bool {
			return m.listens(name) != slices.ContainsFunc(p.Server.Addrs(),
				func(a fabric.Addr) bool { return a.AddrPort == p.transport(name).(host.TCP).Addr })
		})
	}
	testutil.Until(p.t, fmt.Sprintf("the target serves the addresses %v", m.machine), noticed)
}

func newEnv(t *testing.T) *env {
	e := &env{t: t, fabric: verbstest.New(verbstest.Options{}), port: int(testutil.FreePort(t))}
	t.Cleanup(e.fabric.Close)
	e.live = &place{env: e, name: "live", tcp: "127.0.2.", rdma: "10.0.2.", dir: t.TempDir()}
	e.fresh = &place{env: e, name: "fresh", tcp: "127.0.3.", rdma: "10.0.3.", dir: t.TempDir()}
	for _, p := range []*place{e.live, e.fresh} {
		e.fabric.AddHost(p.name, verbstest.RoCE("dev0", netip.MustParseAddr(p.rdma+"2"),
			netip.MustParseAddr(p.rdma+"3")))
		p.stamp()
	}
	e.fabric.AddHost("host", verbstest.RoCE("dev0", netip.MustParseAddr("10.0.0.1")))
	return e
}

// stamp creates the files, each with its name in the first block.
func (p *place) stamp() {
	for i := range files {
		name := fmt.Sprint("f", i)
		content := make([]byte, 256<<10)
		copy(content, name)
		p.must(os.WriteFile(filepath.Join(p.dir, name), content, 0o600))
	}
}

func (e *env) must(err error) {
	e.t.Helper()
	testutil.Must(e.t, err)
}

func (p *place) text(m *model) []byte { return []byte(m.text(p.dir, p.tcp, p.rdma, p.port)) }

func (p *place) stateFile() string { return filepath.Join(p.dir, "state") }

func (p *place) start(m *model) {
	p.t.Helper()
	p.machine = new(machine)
	p.has(m)
	p.Harness = harness.Start(p.t, harness.Options{
		Config: string(p.manage(p.text(m))), Fabric: p.fabric, Machine: p.name,
		App: app.Options{Version: "live", StateDir: p.dir, Network: p.machine},
	})
	p.Log.Limit(1 << 20)
}

// transport reaches the target at a listener of the model.
func (p *place) transport(name string) host.Transport {
	kind, last, _ := strings.Cut(name, " ")
	if kind == "rdma" {
		return host.RDMA{
			Provider: p.fabric.Provider("host"),
			Addr:     netip.AddrPortFrom(netip.MustParseAddr(p.rdma+last), uint16(p.port)),
		}
	}
	return host.TCP{Addr: netip.AddrPortFrom(netip.MustParseAddr(p.tcp+last), uint16(p.port))}
}

// count returns the number of configurations that TestChain applies: NVMF_LIVE_CONFIGS, or 20.
func count(t *testing.T) int {
	s := os.Getenv("NVMF_LIVE_CONFIGS")
	if s == "" {
		return 20
	}
	n := testutil.Value(strconv.Atoi(s))(t)
	return n
}

// TestChain applies random configurations one after another. It compares the view of hosts with
// their view of a target started with the same configuration. Meanwhile a host works on a namespace
// that no change touches, and another host stays connected while its keys are replaced.
// NVMF_LIVE_SEED repeats a run.
func TestChain(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("NVMF_LIVE_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		testutil.MustTrue(t, err == nil, "%v", err)
	}
	t.Logf("NVMF_LIVE_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	e := newEnv(t)
	file, runs := newModel(), newModel()
	e.live.start(file)
	w := startWorker(e.live)
	defer w.stop()
	keys := startRotated(e.live)
	changes := 0
	for i := range count(t) {
		if rng.IntN(3) == 0 {
			file.machine = [][]string{nil, {"tcp 4"}, {"tcp 5"}, {"tcp 4", "tcp 5"}}[rng.IntN(4)]
			runs.machine = file.machine
			e.live.has(runs)
		}
		next := file.clone()
		next.change(rng)
		switch rng.IntN(10) {
		case 0:
			e.live.refuses(next, e.live.badStorage(next, rng))
			continue
		case 1, 2: // the last change fails, and all others are undone
			e.live.refuses(next, e.live.badListener(next))
			e.compare(i, runs)
			w.check()
			keys.check(runs)
			continue
		}
		c := harness.Parse(t, string(e.live.manage(e.live.text(next))))
		planned, _ := e.live.Server.Plan(c)
		done, err := e.live.Server.Apply(c)
		testutil.MustTrue(t, err == nil && len(done) == len(planned),
			"configuration %d: %d changes, %d planned, %v\n%s", i, len(done), len(planned), err,
			e.live.text(next))
		changes += len(done)
		file, runs = next, next.after(runs)
		e.compare(i, runs)
		w.check()
		keys.check(runs)
	}
	t.Logf("%d changes, %d commands beside them; %d of keys, %d refused", changes,
		w.commands.Load(), runs.keyChanges, keys.refused)
}

// badStorage is the configuration of m with unusable storage.
func (p *place) badStorage(m *model, rng *rand.Rand) string {
	path := pick(rng, "/dev/null", "/proc/self/mem", p.dir, filepath.Join(p.dir, "f0", "below"))
	return strings.Replace(string(p.text(m)), anchorNQN+"\n", anchorNQN+"2\n"+
		"    allow_any_host: true\n    namespaces: [{nsid: 1, backend: file, path: "+path+
		", size: 1MiB}]\n  - nqn: "+anchorNQN+"\n", 1)
}

// badListener is the configuration of m with a listener at a port in use.
func (p *place) badListener(m *model) string {
	taken := testutil.Value(net.Listen("tcp", p.tcp+"9:0"))(p.t)
	p.t.Cleanup(func() { _ = taken.Close() })
	_, port, _ := strings.Cut(taken.Addr().String(), ":")
	return strings.Replace(string(p.text(m)), "listeners:\n", "listeners:\n  - {transport: tcp, "+
		"address: "+p.tcp+"9, port: "+port+", on_unavailable: fail}\n", 1)
}

// refuses applies bad, a version of m that cannot be applied, and checks that nothing has changed.
func (p *place) refuses(m *model, bad string) {
	p.t.Helper()
	plan := func() string {
		changes, _ := p.Server.Plan(harness.Parse(p.t, string(p.text(m))))
		return fmt.Sprint(changes)
	}
	before := plan()
	done, err := p.Server.Apply(harness.Parse(p.t, bad))
	testutil.MustTrue(p.t, err != nil, "%v applied:\n%s", done, bad)
	testutil.MustTrue(p.t, !strings.Contains(err.Error(), "undone"), "%v:\n%s", err, bad)
	if after := plan(); after != before {
		p.t.Fatalf("%v after a configuration that failed, %v before", after, before)
	}
}
