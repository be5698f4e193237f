package live

import (
	"bytes"
	"context"
	"errors"
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
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/netif"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
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
		if err != nil || len(done) != len(planned) {
			t.Fatalf("configuration %d: %d changes, %d planned, %v\n%s", i, len(done),
				len(planned), err, e.live.text(next))
		}
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

// keysNQN is a host with keys that are repeatedly replaced.
const keysNQN = "nqn.2026-11.io.nvmf-target:host-keys"

// keysText returns the host after a number of changes. Every second change replaces its key and
// keeps the old one, and the next change drops the old one.
func keysText(changes int) string {
	now, old := keysAfter(changes)
	text := "  - {nqn: " + keysNQN + ", " + keyText(now)
	if old > 0 {
		text += `, dhchap_old_key: "` + hostKeys[old] + `"`
	}
	return text + "}\n"
}

// keysAfter are indices of hostKeys; old is 0 if there is none.
func keysAfter(changes int) (now, old int) {
	now = 1 + (changes+1)/2%2
	if changes%2 == 1 {
		old = 3 - now
	}
	return now, old
}

// rotated is a connection of the host that outlives all changes of its keys.
type rotated struct {
	p *place
	c *host.Controller
	// key is the key with which it was made, refused the number of refusals of other keys.
	key, refused int
}

func (p *place) connectWith(ctx context.Context, key int) (*host.Controller, error) {
	k := testutil.Value(auth.ParseKey(hostKeys[key]))(p.t)
	return host.Connect(ctx, p.transport("tcp 1"), host.Options{
		HostNQN: keysNQN, HostID: [16]byte{2}, SubNQN: anchorNQN, Timeout: testutil.Patience,
		Key: k,
	})
}

func startRotated(p *place) *rotated {
	c := testutil.Value(p.connectWith(testutil.Context(p.t), 1))(p.t)
	p.t.Cleanup(c.Close)
	return &rotated{p: p, c: c, key: 1}
}

// check connects with each key: only keys of the model are valid. The connection stays, and
// authenticates once more while its key is valid.
func (r *rotated) check(m *model) {
	r.p.t.Helper()
	ctx := testutil.Context(r.p.t)
	now, old := keysAfter(m.keyChanges)
	for key := 1; key < len(hostKeys); key++ {
		counts := key == now || key == old
		c, err := r.p.connectWith(ctx, key)
		if err == nil {
			c.Close()
		} else if _, is := errors.AsType[auth.Refused](err); is {
			r.refused++
		}
		testutil.MustTrue(r.p.t, (err == nil) == counts, "key %d after %d changes: %v\n%s", key,
			m.keyChanges, err, r.p.Log)
		if key == r.key && counts {
			r.p.must(r.c.Authenticate(ctx))
		}
	}
	testutil.Value(hosttest.ActiveNamespaces(ctx, r.c))(r.p.t)
}

// manage moves random namespaces of a configuration file to the managed directory. The place of
// their description makes no difference to the target.
func (p *place) manage(text []byte) []byte {
	p.t.Helper()
	p.managed++
	dir := filepath.Join(p.dir, "managed")
	p.must(os.RemoveAll(dir))
	p.must(os.Mkdir(dir, 0o700))
	p.must(os.WriteFile(filepath.Join(dir, ".nvmf-target"), nil, 0o600)) // marks it as ours
	var file map[string]any
	p.must(yaml.Unmarshal(text, &file))
	file["managed"] = dir
	for _, s := range file["subsystems"].([]any) {
		sub := s.(map[string]any)
		var rest []any
		for _, n := range sub["namespaces"].([]any) {
			nsid := n.(map[string]any)["nsid"].(int)
			if (nsid+p.managed)%3 != 0 {
				rest = append(rest, n)
				continue
			}
			m := config.Managed{Subsystem: sub["nqn"].(string), NSID: uint32(nsid)}
			content := testutil.Value(yaml.Marshal(map[string]any{"subsystems": []any{
				map[string]any{"nqn": m.Subsystem, "namespaces": []any{n}},
			}}))(p.t)
			p.must(os.MkdirAll(m.Dir(dir), 0o700))
			p.must(os.WriteFile(m.File(dir), content, 0o600))
		}
		if delete(sub, "namespaces"); rest != nil {
			sub["namespaces"] = rest
		}
	}
	out := testutil.Value(yaml.Marshal(file))(p.t)
	return out
}

// worker is a host that writes and reads a namespace that no change touches.
type worker struct {
	p        *place
	q        *host.Queue
	end      atomic.Bool
	ended    chan error
	failed   bool
	commands atomic.Int64
}

func startWorker(p *place) *worker {
	c := p.Connect(p.transport("tcp 1"), host.Options{
		HostNQN: hostNQN(0), HostID: [16]byte{1}, SubNQN: anchorNQN, Timeout: testutil.Patience,
	})
	w := &worker{p: p, q: p.Open(c, 1, 32), ended: make(chan error, 1)}
	out, in := p.Buffer(c, 4096), p.Buffer(c, 4096)
	go func() { w.ended <- w.run(out, in) }()
	return w
}

// run writes and reads until the end or the first error.
func (w *worker) run(out, in []byte) error {
	for i := 0; !w.end.Load(); i++ {
		ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
		for j := range out {
			out[j] = byte(i + j*i)
		}
		block := uint64(i % 128 * 8)
		err := hosttest.Write(ctx, w.q, 1, block, 8, out, 0)
		if err == nil {
			err = hosttest.Read(ctx, w.q, 1, block, 8, in)
		}
		cancel()
		if err == nil && !bytes.Equal(in, out) {
			err = fmt.Errorf("block %d: other bytes were read than written", block)
		}
		if err != nil {
			return err
		}
		w.commands.Add(2)
	}
	return nil
}

// check fails the test if the worker has seen an error.
func (w *worker) check() {
	w.p.t.Helper()
	select {
	case err := <-w.ended:
		w.failed = true
		w.p.t.Fatalf("the host beside the changes: %v", err)
	default:
	}
}

func (w *worker) stop() {
	w.end.Store(true)
	if !w.failed {
		testutil.Equal(w.p.t, <-w.ended, nil, "the host beside the changes")
	}
}
