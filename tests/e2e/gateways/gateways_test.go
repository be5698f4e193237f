package gateways

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend/rbd"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/group"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/cephtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/e2e"
)

// gatewayKey is the environment variable with the configuration file of a gateway, which the test
// program runs then.
const gatewayKey = "NVMF_TEST_GATEWAY"

// runGateway serves a configuration until SIGTERM.
func runGateway(file string) error {
	app.DescribeEvery /= 10 // gateways list the ports of others sooner
	group.LookEvery /= 10   // there is no watch before the first version
	rbd.RetryInterval /= 10
	load := func(options ...config.Option) (*config.Config, error) {
		return config.Load(file, nil, volumes.Backends, options...)
	}
	c, err := load()
	if err != nil {
		return err
	}
	s := app.NewServer(app.Options{
		Config: c, Load: load, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		StateDir: filepath.Dir(file),
	})
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	if err := s.Start(); err != nil {
		return err
	}
	fmt.Println("started")
	<-term
	return s.Stop(context.Background())
}

// gateway is a process that serves an image with others.
type gateway struct {
	name, file string
	addr       netip.AddrPort
	cmd        *exec.Cmd // nil: it does not run
	ended      <-chan struct{}
	log        bytes.Buffer
}

// until is testutil.Until for conditions that ask gateways, which has its price.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	testutil.Until(t, what, func() bool {
		if cond() {
			return true
		}
		<-time.After(20 * time.Millisecond)
		return false
	})
}

// newGateway makes a gateway, which is alone if cntlid is 0. Gateway a takes a group at once if
// nobody has it.
func newGateway(t *testing.T, c *cephtest.Cluster, image, name string, cntlid int) *gateway {
	group := "group: {name: %s, pool: %s, conf: %s, user: gateway, keyring: %s, lease: 4s, " +
		"ana_groups: [1]" + map[bool]string{true: ", prefers: [1]"}[name == "a"] + "}"
	if cntlid == 0 {
		group, cntlid = "# %s %s %s %s", 1
	}
	g := &gateway{
		name: name, file: filepath.Join(t.TempDir(), "nvmf-target.yaml"),
		addr: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), testutil.FreePort(t)),
	}
	keyring := c.Path("client.gateway.keyring")
	testutil.Must(t, os.WriteFile(g.file, fmt.Appendf(nil, `
reactors: {count: 1}
control: {socket: %s}
listeners: [{transport: tcp, address: 127.0.0.1, port: %d}]
`+group+`
subsystems:
  - nqn: %s
    allow_any_host: true
    cntlid_min: %d
    cntlid_max: %d
    model: of %s
    namespaces:
      - nsid: 1
        backend: rbd
        image: %s
        ceph: {conf: %s, user: gateway, keyring: %s}
`, g.socket(), g.addr.Port(), name, cephtest.Pool, c.Conf(), keyring, e2e.SubNQN, cntlid,
		cntlid+1000, name, image, c.Conf(), keyring), 0o600))
	t.Cleanup(func() {
		if g.cmd != nil {
			g.signal(t, syscall.SIGKILL)
		}
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, g.log.String())
		}
	})
	return g
}

func (g *gateway) socket() string { return filepath.Join(filepath.Dir(g.file), "control.sock") }

// group returns the only group as the gateway sees it.
func (g *gateway) group(t *testing.T) observed.Group {
	t.Helper()
	c := control.NewClient(g.socket())
	defer c.Close()
	list := testutil.Value(control.GetGroups.From(testutil.Context(t), c))(t)
	testutil.MustEqual(t, len(list), 1, "groups")
	return list[0]
}

// post sends a request to a gateway.
func post[B, T any](t *testing.T, g *gateway, p control.Post[B, T], body B) error {
	c := control.NewClient(g.socket())
	defer c.Close()
	return testutil.Err(p.To(testutil.Context(t), c, body))
}

func (g *gateway) start(t *testing.T) {
	t.Helper()
	g.cmd = exec.Command(os.Args[0])
	g.cmd.Env = append(os.Environ(), gatewayKey+"="+g.file)
	g.cmd.Stderr = &g.log
	out, in := io.Pipe()
	g.cmd.Stdout = in
	ended, err := testutil.StartChild(g.cmd)
	testutil.Must(t, err)
	g.ended = ended
	go func() {
		<-ended
		_ = in.Close()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	_ = out.Close() // nobody reads the rest
	testutil.MustTrue(t, err == nil && strings.Contains(line, "started"), "%q: %v", line, err)
}

// signal sends a signal. The process has ended after one that ends it.
func (g *gateway) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	testutil.Must(t, g.cmd.Process.Signal(s))
	if s == syscall.SIGKILL || s == syscall.SIGTERM {
		<-g.ended
		g.cmd = nil
	}
}

// path is a way of the host to a gateway.
type path struct {
	addr netip.AddrPort
	hang time.Duration // when the host gives a command up
	ctrl *host.Controller
	q    *host.Queue
	used atomic.Int64 // commands that have succeeded
	last nvme.Status  // of the last command, if the gateway has answered
}

// do carries out a command, or reports failure and drops the connection unless the gateway has
// answered.
func (p *path) do(id byte, op *host.Op) bool {
	p.last = nvme.Success
	ctx, cancel := context.WithTimeout(context.Background(), p.hang)
	defer cancel()
	if p.ctrl == nil {
		ctrl, err := host.Connect(ctx, host.TCP{Addr: p.addr}, host.Options{
			HostNQN: fmt.Sprint(e2e.HostNQN, id), HostID: [16]byte{1, id}, SubNQN: e2e.SubNQN,
			Timeout: p.hang,
		})
		if err != nil {
			return false
		}
		p.ctrl = ctrl
		if p.q, err = ctrl.OpenQueue(ctx, 1, 128); err != nil {
			p.drop()
			return false
		}
	}
	cqe, err := p.q.Do(ctx, op)
	if err != nil {
		p.drop()
		return false
	}
	if p.last = cqe.Status(); !p.last.OK() {
		return false
	}
	p.used.Add(1)
	return true
}

func (p *path) drop() {
	if p.q != nil {
		_ = p.q.Close()
	}
	if p.ctrl != nil {
		p.ctrl.Close()
	}
	p.ctrl, p.q = nil, nil
}

const (
	hostBlocks = 64   // of a host
	hostBlock  = 4096 // bytes

	// More than the sockets between a gateway and an OSD hold.
	lateWrites, lateSize = 120, 128 << 10
)

// ways are the paths of a host. The first one is in use.
type ways []*path

// newWays returns the paths to gateways. A host uses another one after two seconds.
func newWays(to ...*gateway) (w ways) {
	for _, g := range to {
		w = append(w, &path{addr: g.addr, hang: 2 * time.Second})
	}
	return w
}

// do carries out a command on a path that takes it. It returns the status if that is one of the
// refusals, and another error if no path has taken it for a long time.
func (w ways) do(id byte, op *host.Op, refusals ...nvme.Status) error {
	for late := time.After(testutil.Patience); !w[0].do(id, op); {
		if slices.Contains(refusals, w[0].last.Code()) {
			return w[0].last
		}
		select {
		case <-late:
			return fmt.Errorf("no gateway carries out a command within %v", testutil.Patience)
		case <-time.After(20 * time.Millisecond):
		}
		copy(w, append(w[1:len(w):len(w)], w[0]))
	}
	return nil
}

func (w ways) drop() {
	for _, p := range w {
		p.drop()
	}
}

// write makes a host write versions of its blocks and compare blocks with the last version, until
// stop is closed.
func write(id byte, paths ways, stop chan struct{}) error {
	versions := make([]uint64, hostBlocks)
	defer paths.drop()
	data := make([]byte, hostBlock)
	compare := func(i int) error {
		var op host.Op
		op.Read(1, (uint64(id)*hostBlocks+uint64(i))*hostBlock/512, hostBlock/512, data)
		if err := paths.do(id, &op); err != nil {
			return err
		}
		if got := binary.LittleEndian.Uint64(data[hostBlock-8:]); got != versions[i] {
			return fmt.Errorf("host %d: block %d has version %d, and %d was acknowledged", id, i,
				got, versions[i])
		}
		return nil
	}
	for v := uint64(1); ; v++ {
		select {
		case <-stop:
			for i := range versions {
				if err := compare(i); err != nil {
					return err
				}
			}
			return nil
		default:
		}
		i := rand.IntN(hostBlocks)
		var op host.Op
		copy(data, bytes.Repeat(binary.LittleEndian.AppendUint64(nil, v), hostBlock/8))
		op.Write(1, (uint64(id)*hostBlocks+uint64(i))*hostBlock/512, hostBlock/512, data, 0)
		err := paths.do(id, &op)
		versions[i] = v
		if err == nil {
			err = compare(rand.IntN(hostBlocks))
		}
		if err != nil {
			return err
		}
	}
}

// fillBlock writes a value to the first block, and readBlock returns it.
func (p *path) fillBlock(v byte) bool {
	var op host.Op
	op.Write(1, 0, hostBlock/512, bytes.Repeat([]byte{v}, hostBlock), 0)
	return p.do(0, &op)
}

func (p *path) readBlock(t *testing.T) byte {
	t.Helper()
	var op host.Op
	data := make([]byte, hostBlock)
	op.Read(1, 0, hostBlock/512, data)
	testutil.MustTrue(t, p.do(0, &op), "a read has failed")
	return data[hostBlock-1]
}

// TestKilledAlone: before its first write, a target without a group fences the connection of the
// process that was killed. So the cluster refuses a late write, and a left exclusive lock of the
// image does not delay the first write.
func TestKilledAlone(t *testing.T) {
	t.Parallel() // it mostly waits
	c := cephtest.New(t)
	first := newGateway(t, c, c.Image(t, "32M", "layering,exclusive-lock"), "a", 0)
	entries := func() int { return strings.Count(c.Ceph(t, "osd", "blocklist", "ls"), "\n") }
	restarted := func(g *gateway) *path {
		g.start(t)
		p := &path{addr: g.addr, hang: testutil.Patience}
		t.Cleanup(p.drop)
		return p
	}
	late := restarted(first)
	testutil.MustTrue(t, late.fillBlock(1), "a write has failed")
	first.signal(t, syscall.SIGTERM)
	late.drop()
	testutil.Equal(t, entries(), 0, "fences after a stop")

	late = restarted(first)
	testutil.MustTrue(t, late.fillBlock(1), "a write has failed")
	first.signal(t, syscall.SIGKILL)
	late.drop()
	late = restarted(first)
	testutil.Equal(t, entries(), 1, "fences after a kill")
	testutil.MustTrue(t, late.fillBlock(2), "the first write has not been carried out at once")
	first.signal(t, syscall.SIGTERM)
	late.drop()

	// The first gateway stands for the data that the kernel still has after its process was killed.
	// The second one has a copy of its state directory. librbd itself fences only lock owners.
	image := c.Image(t, "32M", "layering")
	first, second := newGateway(t, c, image, "b", 0), newGateway(t, c, image, "c", 0)
	late = restarted(first)
	testutil.MustTrue(t, late.fillBlock(2), "a write has failed")
	testutil.Pause(t, first.cmd.Process)
	var op host.Op
	op.Write(1, 0, hostBlock/512, bytes.Repeat([]byte{3}, hostBlock), 0)
	testutil.Must(t, testutil.Err(late.q.Submit(&op)))
	state := testutil.Value(os.ReadFile(filepath.Join(filepath.Dir(first.file), "state")))(t)
	testutil.Must(t, os.WriteFile(filepath.Join(filepath.Dir(second.file), "state"), state, 0o600))
	newer := restarted(second)
	testutil.MustTrue(t, newer.fillBlock(4), "a newer write has failed")
	first.signal(t, syscall.SIGCONT)
	done := make([]host.Completion, 1)
	until(t, "the late write has an answer", func() bool {
		n, err := late.q.Poll(done)
		if err == nil && n == 0 {
			err = late.q.Wait(20 * time.Millisecond)
		}
		return err != nil || n == 1
	})
	testutil.Equal(t, newer.readBlock(t), 4, "the block after a late write")
}

// TestGateways: hosts write to an image through two gateways, one of which is killed, stopped and
// continued, and ended. No acknowledged write is lost or replaced by an older one.
func TestGateways(t *testing.T) {
	t.Parallel() // it mostly waits
	c := cephtest.New(t)
	image := c.Image(t, "32M", "layering")
	a, b := newGateway(t, c, image, "a", 1), newGateway(t, c, image, "b", 2000)
	a.start(t)
	b.start(t)
	for g, other := range map[*gateway]*gateway{a: b, b: a} {
		until(t, g.name+" sees that the gateways differ", func() bool {
			list := g.group(t).Differences
			if len(list) != 1 {
				return false
			}
			here, there, _ := strings.Cut(list[0], " here, and ")
			return strings.Contains(here, "model of "+g.name+",") &&
				strings.Contains(there, "model of "+other.name+",")
		})
	}
	const hosts = 3
	stop, results := make(chan struct{}), make(chan error, hosts)
	var paths [hosts]ways
	for id := range paths {
		paths[id] = newWays(a, b)
		go func() { results <- write(byte(id), slices.Clone(paths[id]), stop) }()
	}
	// through waits until all hosts use one of these gateways.
	through := func(when string, to ...*gateway) {
		t.Helper()
		used := func(id int) (n int64) {
			for i, g := range []*gateway{a, b} {
				if slices.Contains(to, g) {
					n += paths[id][i].used.Load()
				}
			}
			return n
		}
		var before [hosts]int64
		for id := range before {
			before[id] = used(id)
		}
		until(t, when+": all hosts use "+to[0].name, func() bool {
			for id := range before {
				if used(id) < before[id]+20 {
					return false
				}
			}
			return true
		})
	}
	op := func(i int, data []byte) *host.Op {
		op := new(host.Op)
		op.Write(1, uint64(16<<20+i*lateSize)/512, lateSize/512, data, 0)
		return op
	}
	fill := func(v byte) []byte { return bytes.Repeat([]byte{v}, lateSize) }
	late := newWays(a, b)
	defer late.drop()
	// find returns the gateway that takes writes, and the other one. On a busy machine the group
	// moves when its gateway cannot renew the lease in time.
	find := func() (holder, other *gateway) {
		testutil.Must(t, late.do(hosts, op(0, fill(1))))
		if late[0].addr == a.addr {
			return a, b
		}
		return b, a
	}
	through("at first", a, b)

	holder, other := find()
	holder.signal(t, syscall.SIGKILL)
	through("after SIGKILL", other)
	holder.start(t)

	// A host has sent writes, which are on their way to the storage when the gateway is stopped, in
	// its memory. It gives them up, and writes newer data through the other one.
	holder, other = find()
	q, newer := late[0].q, newWays(other, holder)
	defer newer.drop()
	c.Pause(t, "osd")
	for i := range lateWrites {
		testutil.Must(t, testutil.Err(q.Submit(op(i, fill(2)))))
	}
	done := make([]host.Completion, lateWrites)
	for range 50 { // the gateway takes the data
		testutil.Must(t, q.Wait(20*time.Millisecond))
		testutil.Must(t, testutil.Err(q.Poll(done)))
	}
	testutil.Pause(t, holder.cmd.Process)
	c.Continue(t, "osd")
	through("after SIGSTOP", other)
	for i := range lateWrites {
		testutil.Must(t, newer.do(hosts, op(i, fill(3))))
	}
	holder.signal(t, syscall.SIGCONT)
	through("after SIGCONT", other, holder)
	until(t, "the late writes have answers", func() bool {
		n, err := q.Poll(done)
		if err == nil && n == 0 {
			err = q.Wait(20 * time.Millisecond)
		}
		return err != nil || q.Outstanding() == 0
	})
	for i := range lateWrites {
		var op host.Op
		got := make([]byte, lateSize)
		op.Read(1, uint64(16<<20+i*lateSize)/512, lateSize/512, got)
		testutil.Must(t, newer.do(hosts, &op))
		testutil.True(t, bytes.Equal(got, fill(3)), "late write %d has replaced a newer one", i)
	}

	other.signal(t, syscall.SIGTERM)
	through("after SIGTERM", holder)
	other.start(t)
	there := func() bool {
		return slices.ContainsFunc(holder.group(t).Gateways, func(g observed.Gateway) bool {
			return g.Name == other.name
		})
	}
	until(t, "the record has both gateways", there)
	other.signal(t, syscall.SIGKILL)
	until(t, "the killed gateway is forgotten", func() bool {
		// An error if it has taken the group on a busy machine.
		_ = post(t, holder, control.PostForget, control.GatewayID{Gateway: other.name})
		return !there()
	})
	close(stop)
	for range hosts {
		testutil.Check(t, testutil.Receive(t, "the last comparison", results))
	}
}

// TestGroupConfiguration: a version that is applied at one gateway is served by both, also by one
// that starts later, and can be rolled back. One that was made from an older version, or is not
// valid, is refused, and one that gateways cannot apply changes nothing there.
func TestGroupConfiguration(t *testing.T) {
	t.Parallel() // it mostly waits
	c := cephtest.New(t)
	image := c.Image(t, "32M", "layering")
	sharing := func(name string) *gateway {
		g := newGateway(t, c, image, name, 1)
		text := string(testutil.Value(os.ReadFile(g.file))(t))
		text, _, _ = strings.Cut(text, "subsystems:")
		text = strings.Replace(text, "ana_groups:", "shares_configuration: true, "+
			"key: 0123456789abcdef, ana_groups:", 1)
		testutil.Must(t, os.WriteFile(g.file, []byte(text+"managed: "+
			filepath.Join(filepath.Dir(g.file), "managed")+"\n"), 0o600))
		return g
	}
	a, b := sharing("a"), sharing("b")
	ask := func(g *gateway, change control.GroupChange) error {
		return post(t, g, control.PostGroupChange, change)
	}
	text := func(model string) string {
		return fmt.Sprintf(`{"hosts": [{"nqn": "nqn.2026-11.x:h", "dhchap_key":
			"DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"}],
			"subsystems": [{"nqn": %q, "allow_any_host": true, "model": %q,
			"namespaces": [{"nsid": 1, "backend": "rbd", "image": %q}]}]}`, e2e.SubNQN, model,
			image)
	}
	serves := func(model string, version uint64, all ...*gateway) {
		t.Helper()
		for _, g := range all {
			until(t, g.name+" serves "+model, func() bool {
				client := control.NewClient(g.socket())
				defer client.Close()
				list := testutil.Value(control.GetSubsystems.From(testutil.Context(t), client))(t)
				return len(list) == 1 && list[0].Model == model &&
					g.group(t).Configuration == version
			})
		}
	}
	a.start(t)
	until(t, "a has its controller IDs", func() bool {
		return ask(a, control.GroupChange{Configuration: text("one"), DryRun: true}) == nil
	})
	testutil.Must(t, ask(a, control.GroupChange{Configuration: text("one")}))
	serves("one", 1, a)
	paths := newWays(a, b)
	defer paths.drop()
	var op host.Op
	op.Write(1, 0, 1, make([]byte, 512), 0)
	testutil.Must(t, paths.do(1, &op))
	b.start(t)
	serves("one", 1, b)
	testutil.Must(t, ask(b, control.GroupChange{Configuration: text("two"), Base: 1}))
	serves("two", 2, a, b)
	testutil.Fails(t, ask(a, control.GroupChange{Configuration: text("three"), Base: 1}),
		`version 2 was stored by gateway "b" since version 1`, "a change of an older version")
	testutil.Fails(t, ask(a, control.GroupChange{
		Configuration: text(strings.Repeat("x", 41)),
	}), "model", "a version that is not valid")
	testutil.Fails(t, ask(a, control.GroupChange{
		Configuration: strings.Replace(text("three"), image, image+"absent", 1),
	}), "it was stored for all gateways", "an image that is missing")
	for _, g := range []*gateway{a, b} {
		until(t, g.name+" has a problem", func() bool {
			return strings.Contains(fmt.Sprint(g.group(t).Differences), "version 3 of the "+
				"configuration of the group cannot be applied")
		})
	}
	serves("two", 2, a, b)
	testutil.Must(t, ask(a, control.GroupChange{Rollback: 1}))
	serves("one", 4, a, b)
	client := control.NewClient(a.socket())
	defer client.Close()
	stored := testutil.Value(control.GetGroupVersions.From(testutil.Context(t), client))(t)
	for i := range stored {
		testutil.True(t, !strings.Contains(stored[i].Configuration, "DHHC"), "%+v", stored[i])
	}

	b.signal(t, syscall.SIGTERM)
	b.start(t)
	serves("one", 4, a, b)
	discovers(t, a, b)
	moveByHand(t, a, b)
	for _, g := range []*gateway{a, b} {
		until(t, g.name+" sees no difference", func() bool {
			return len(g.group(t).Differences) == 0
		})
	}
}

// moveByHand: a group goes to the other gateway by drain and by fence. Each is refused at the wrong
// gateway.
func moveByHand(t *testing.T, gateways ...*gateway) {
	t.Helper()
	serving := func(g *gateway) func() bool {
		return func() bool { return g.group(t).State == "serving" }
	}
	from, to := gateways[0], gateways[1]
	until(t, "a gateway serves", func() bool {
		if serving(to)() {
			from, to = to, from
		}
		return serving(from)()
	})
	drain := func(g *gateway, d control.GroupDrain) error {
		return post(t, g, control.PostGroupDrain, d)
	}
	fence := func(g *gateway, name string) error {
		return post(t, g, control.PostFence, control.GatewayID{Gateway: name})
	}
	testutil.Fails(t, drain(from, control.GroupDrain{Gateway: to.name}), "cannot drain", "")
	testutil.Fails(t, drain(from, control.GroupDrain{Group: 7}), "shared group 7", "")
	testutil.Fails(t, fence(to, to.name), "is this one", "")
	testutil.Fails(t, fence(to, "nobody"), "holds no group", "")
	until(t, from.name+" is drained", func() bool { // and knows the other one
		return drain(from, control.GroupDrain{Gateway: from.name}) == nil
	})
	until(t, "the group is at "+to.name, serving(to))
	testutil.True(t, from.group(t).Drained, "the other one does not take it")
	until(t, "the last gateway cannot be drained", func() bool {
		err := drain(to, control.GroupDrain{Group: 1})
		if err == nil { // it does not know yet that the other one is drained
			testutil.Must(t, drain(to, control.GroupDrain{Group: 1, Undo: true}))
		}
		return strings.Contains(fmt.Sprint(err), "no other gateway can take")
	})
	until(t, "a drained gateway does not take it", func() bool {
		return strings.Contains(fmt.Sprint(fence(from, to.name)), "was given away here")
	})
	testutil.Must(t, drain(from, control.GroupDrain{Group: 1, Undo: true}))
	until(t, to.name+" is fenced", func() bool {
		// On a busy machine the group may move by itself.
		_ = fence(from, to.name)
		return serving(from)()
	})
}

// discovers: each gateway lists the ports of both while both are there, with generations that do
// not go back from one to the other.
func discovers(t *testing.T, a, b *gateway) {
	t.Helper()
	log := func(g *gateway) (generation uint64, ports string) {
		c := testutil.Value(host.Connect(testutil.Context(t), host.TCP{Addr: g.addr}, host.Options{
			HostNQN: e2e.HostNQN, HostID: [16]byte{9}, SubNQN: nvme.DiscoveryNQN,
			Timeout: testutil.Patience,
		}))(t)
		defer c.Close()
		head, list, err := hosttest.Discover(testutil.Context(t), c)
		testutil.Must(t, err)
		var found []string
		for _, e := range list {
			if e.SUBTYPE == nvme.SubsystemNVM {
				found = append(found, strings.TrimRight(string(e.TRSVCID[:]), " \x00"))
			}
		}
		slices.Sort(found)
		return head.GENCTR, fmt.Sprint(found)
	}
	both := []string{fmt.Sprint(a.addr.Port()), fmt.Sprint(b.addr.Port())}
	slices.Sort(both)
	until(t, "both list both, with one generation", func() bool {
		at, ports := log(a)
		at2, ports2 := log(b)
		return ports == fmt.Sprint(both) && ports2 == ports && at == at2
	})
	b.signal(t, syscall.SIGTERM)
	until(t, "a lists only itself", func() bool {
		_, ports := log(a)
		// On a busy machine b may have had no time to withdraw.
		_ = post(t, a, control.PostForget, control.GatewayID{Gateway: b.name})
		return ports == fmt.Sprint(both[:1]) || ports == fmt.Sprint(both[1:])
	})
	before, _ := log(a)
	testutil.Must(t, os.Remove(filepath.Join(filepath.Dir(b.file), "state")))
	b.start(t)
	until(t, "b goes on from the generation of a", func() bool {
		at, ports := log(b)
		return at > before && ports == fmt.Sprint(both)
	})
}
