package app

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
)

// listenStack is an RDMA stack with a Listen that can fail. It records the types of service.
type listenStack struct {
	verbs.Provider

	mu       sync.Mutex
	tos      []uint8
	failures int // of the next calls
	onListen func()
}

type listenCM struct {
	verbs.CM
	stack *listenStack
}

var errListen = errors.New("no listener today")

func (s *listenStack) NewCM() (verbs.CM, error) {
	cm, err := s.Provider.NewCM()
	return listenCM{cm, s}, err
}

func (cm listenCM) Listen(a netip.AddrPort, backlog int, tos uint8) (verbs.ID, error) {
	s := cm.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.onListen != nil {
		s.onListen()
	}
	if s.failures > 0 {
		s.failures--
		return nil, errListen
	}
	id, err := cm.CM.Listen(a, backlog, tos)
	if err == nil {
		s.tos = append(s.tos, tos)
	}
	return id, err
}

func (s *listenStack) wantTOS(t *testing.T, want ...uint8) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	testutil.EqualSlices(t, s.tos, want, "types of service")
}

func (s *listenStack) fail(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = n
}

func onRDMA(keys string) string {
	return fmt.Sprintf("{transport: rdma, address: 127.0.0.1, %s}", keys)
}

// TestTypeOfService: a listener has its type of service from the beginning, and after a change. If
// it cannot be opened again it is as before, or waits.
func TestTypeOfService(t *testing.T) {
	network := rdmaNetwork(t, "127.0.0.1")
	stack := &listenStack{Provider: network.Provider("target")}
	up := make(chan fabric.Addr, 1)
	s := started(t, Options{
		Config: parse(t, onRDMA("tos: 104")), Verbs: stack, Retry: time.Millisecond,
		ListenerUp: func(a fabric.Addr) { up <- a },
	})
	stack.wantTOS(t, 104)
	testutil.Value(s.Apply(parse(t, onRDMA("tos: 32"))))(t)
	stack.wantTOS(t, 104, 32)

	works := func() {
		t.Helper()
		writeAndRead(t, host.RDMA{
			Provider: network.Provider("host"), Addr: netip.MustParseAddrPort("127.0.0.1:4420"),
		})
	}
	stack.fail(1)
	_, err := s.Apply(parse(t, onRDMA("tos: 64")))
	testutil.MustTrue(t, errors.Is(err, errListen), "applied: %v", err)
	stack.wantTOS(t, 104, 32, 32)
	works()

	stack.fail(2)
	_, err = s.Apply(parse(t, onRDMA("tos: 64")))
	testutil.MustTrue(t, errors.Is(err, errListen), "applied: %v", err)
	s.listeners.States()
	waitUp(t, up)
	stack.wantTOS(t, 104, 32, 32, 32)
	works()
	testutil.Value(s.Apply(parse(t, onRDMA("tos: 64"))))(t)
	stack.wantTOS(t, 104, 32, 32, 32, 64)
	works()
}

// TestRestoredListener: a removed listener that cannot be opened again when the removal is undone
// waits, with any on_unavailable, and is there for the next change.
func TestRestoredListener(t *testing.T) {
	network := rdmaNetwork(t, "127.0.0.1")
	stack := &listenStack{Provider: network.Provider("target")}
	up := make(chan fabric.Addr, 1)
	required := anyPort + ", " + onRDMA("on_unavailable: fail")
	s := started(t, Options{
		Config: parse(t, required), Verbs: stack, Retry: time.Millisecond,
		ListenerUp: func(a fabric.Addr) { up <- a },
	})
	taken := listen(t, "127.0.0.1:0").AddrPort().Port()
	stack.fail(1)
	_, err := s.Apply(parse(t, fmt.Sprintf("%s, {transport: tcp, address: 127.0.0.1, port: %d, "+
		"on_unavailable: fail}", anyPort, taken)))
	testutil.MustTrue(t, errors.Is(err, errListen) && errors.Is(err, unix.EADDRINUSE),
		"applied: %v", err)
	waitUp(t, up)
	changes, err := s.Apply(parse(t, anyPort))
	testutil.True(t, err == nil && len(changes) == 1, "%v, %v", changes, err)
}

// TestWaitingListenerChanges: a listener can be changed while attempts to open it go on.
func TestWaitingListenerChanges(t *testing.T) {
	network := rdmaNetwork(t, "")
	up := make(chan fabric.Addr, 1)
	stack := &listenStack{Provider: network.Provider("target")}
	s := started(t, Options{
		Config: parse(t, onRDMA("tos: 32")), Verbs: stack,
		Retry: time.Millisecond, ListenerUp: func(a fabric.Addr) { up <- a },
	})
	for i := range 20 {
		testutil.Value(s.Apply(parse(t, onRDMA(fmt.Sprintf("tos: %d", 4*i+4)))))(t)
	}
	stack.wantTOS(t)
	network.AddHost("target", verbstest.RoCE("rxe0", netip.MustParseAddr("127.0.0.1")))
	waitUp(t, up)
	stack.mu.Lock()
	defer stack.mu.Unlock()
	testutil.Equal(t, stack.tos[len(stack.tos)-1], 80, "type of service")
}

// TestBothFamilies: a listener at [::] serves hosts with IPv4 addresses. Their addresses have the
// form of IPv4, and match networks of IPv4.
func TestBothFamilies(t *testing.T) {
	l := newLive(t, "{transport: tcp, address: '::', port: 0}", sub(anyHosts, inRAM)+
		"hosts:\n"+
		"- {nqn: "+hostA+", networks: [127.0.0.0/8, '::1/128']}\n"+
		"- {nqn: "+hostB+", networks: [192.0.2.0/24]}\n")
	at := l.s.Addrs()[0].AddrPort
	connect := func(ip, nqn string) error {
		o := hostOptions(testNQN)
		o.HostNQN = nqn
		to := host.TCP{Addr: netip.AddrPortFrom(netip.MustParseAddr(ip), at.Port())}
		c, err := host.Connect(t.Context(), to, o)
		if err == nil {
			t.Cleanup(c.Close)
		}
		return err
	}
	for _, ip := range []string{"127.0.0.1", "::1"} {
		testutil.MustEqual(t, connect(ip, hostA), nil, "%v", ip)
		testutil.True(t, connect(ip, hostB) != nil, "admitted outside of its networks, from %v", ip)
	}
	list := testutil.Value(l.s.connections(t.Context()))(t)
	var local, remote []string
	for _, c := range list {
		local = append(local, c.Local.Addr().String())
		remote = append(remote, c.Remote.Addr().String())
	}
	slices.Sort(local)
	slices.Sort(remote)
	local, remote = slices.Compact(local), slices.Compact(remote) // refused ones may still be there
	const want = "[127.0.0.1 ::1]"
	testutil.True(t, fmt.Sprint(local) == want && fmt.Sprint(remote) == want,
		"connections from %v to %v", remote, local)
	for _, r := range l.s.recorder.Refusals() {
		testutil.True(t, !strings.Contains(fmt.Sprint(r), "::ffff:"), "%+v", r)
	}
	n := len(l.s.recorder.Refusals())
	testutil.True(t, n >= 2, "%d refusals", n)
	name := fmt.Sprintf("[::]:%d", at.Port())
	if list, err := l.s.engine.Drain(control.ListenerID{Listener: name}, true); len(list) != 1 ||
		err != nil {
		t.Error(list, err)
	}
}

// TestTransportKeys: limits and digests of new connections change. Existing connections stay, and
// after a failed change everything is as before.
func TestTransportKeys(t *testing.T) {
	s := started(t, Options{Config: parse(t, anyPort)})
	ctx := testutil.Context(t)
	connect := func(digest bool) (*host.Controller, error) {
		c, err := host.Connect(ctx, host.TCP{
			Addr: s.Addrs()[0].AddrPort, HeaderDigest: digest,
		}, hostOptions(testNQN))
		if err == nil {
			t.Cleanup(c.Close)
		}
		return c, err
	}
	want := func(mqes uint16, digest bool) {
		t.Helper()
		c := testutil.Value(connect(digest))(t)
		testutil.Equal(t, c.CAP().MQES(), mqes, "MQES")
	}
	want(127, true)
	const changed = "tcp: {queue_depth: 64, header_digest: false, max_connections: 5}"
	if changes, err := s.Apply(parse(t, anyPort, changed)); err != nil || len(changes) != 1 ||
		changes[0].Restart() {
		t.Fatalf("%v, %v", changes, err)
	}
	want(63, false)
	testutil.True(t, testutil.Err(connect(true)) != nil, "a header digest")
	list, err := s.connections(ctx)
	if err != nil || !slices.ContainsFunc(list, func(c observed.Connection) bool {
		return c.HeaderDigest && c.Host != ""
	}) {
		t.Errorf("the first connection has lost its digest: %+v, %v", list, err)
	}

	taken := listen(t, "127.0.0.1:0").AddrPort()
	if _, err := s.Apply(parse(t, anyPort, "tcp: {queue_depth: 256, max_connections: 100}",
		fmt.Sprintf("metrics: {listen: %q}", taken))); err == nil {
		t.Fatal("metrics are served at an address that is in use")
	}
	want(63, false)
	testutil.True(t, testutil.Err(connect(false)) != nil,
		"a fourth connection, which would leave one for all others")
}

// TestDepthOfController: the queues of a controller may be as deep as it has announced, even if new
// controllers announce less.
func TestDepthOfController(t *testing.T) {
	network := rdmaNetwork(t, "127.0.0.1")
	both := anyPort + ", " + onRDMA("port: 4420")
	s := started(t, Options{Config: parse(t, both), Verbs: network.Provider("target")})
	ctx := testutil.Context(t)
	transports := []host.Transport{host.TCP{Addr: s.Addrs()[0].AddrPort}, host.RDMA{
		Provider: network.Provider("host"), Addr: netip.MustParseAddrPort("127.0.0.1:4420"),
	}}
	connect := func(tr host.Transport) *host.Controller {
		c := testutil.Value(host.Connect(ctx, tr, hostOptions(testNQN)))(t)
		t.Cleanup(c.Close)
		return c
	}
	var before []*host.Controller
	for _, tr := range transports {
		before = append(before, connect(tr))
	}
	testutil.Value(s.Apply(parse(t, both, "tcp: {queue_depth: 32}", "rdma: {queue_depth: 32}")))(t)
	for i, tr := range transports {
		depth := int(before[i].CAP().MQES()) + 1
		q, err := before[i].OpenQueue(ctx, 1, depth)
		testutil.MustTrue(t, err == nil && depth > 32, "%d entries: %v", depth, err)
		q.Close()
		testutil.True(t, testutil.Err(connect(tr).OpenQueue(ctx, 1, depth)) != nil,
			"a controller has deeper queues than it says")
	}
}

// TestListenersAtRandom: addresses, reloads that succeed and fail, and drains change concurrently.
// In the end the ports are in the intended state, and everything that shows them agrees.
func TestListenersAtRandom(t *testing.T) {
	t.Parallel()
	port := testutil.FreePort(t)
	taken := listen(t, "127.0.0.1:0").AddrPort().Port()
	base := at("127.0.8.1", port)
	choice := []string{
		at("127.0.9.0/24", port), at("127.0.9.2", port), at("eth0", port), at("eth1", port),
		at("127.0.9.0/30", port),
		at("127.0.9.1", port),
	}
	machine := []string{
		"eth0 127.0.9.1", "eth0 127.0.9.2", "eth1 127.0.9.3", "eth1 127.0.9.2",
		"eth1 127.0.9.4 down", "eth2 127.0.9.5",
	}
	pick := func(list []string) (out []string) {
		for _, s := range list {
			if rand.IntN(2) == 0 {
				out = append(out, s)
			}
		}
		return out
	}
	l, n := healing(t, base, "lo 127.0.8.1")
	subsystems := sub(anyHosts, inRAM)
	var wg sync.WaitGroup
	rounds := testutil.Rounds(100, 2000)
	loop := func(times int, fn func()) {
		wg.Go(func() {
			for range times {
				fn()
			}
		})
	}
	loop(rounds, func() {
		text := strings.Join(append(pick(choice), base), ", ")
		if rand.IntN(2) == 0 {
			text += fmt.Sprintf(", {transport: tcp, address: 127.0.0.1, port: %d, "+
				"on_unavailable: fail}", taken)
		}
		_, err := l.s.Apply(l.parse(text, subsystems))
		testutil.True(t, err == nil || !strings.Contains(err.Error(), "undone"), "%v", err)
	})
	loop(3*rounds, func() {
		which := control.ListenerID{All: rand.IntN(4) == 0}
		if !which.All {
			which.Listener = strconv.Itoa(1 + rand.IntN(9))
		}
		_, _ = l.s.engine.Drain(which, rand.IntN(2) == 0)
	})
	loop(10*rounds, func() { l.s.listeners.States(); l.s.status() })
	for range rounds {
		n.Set(append(pick(machine), "lo 127.0.8.1")...)
		was := n.Reads()
		testutil.Until(t, "the addresses are looked at, or not yet", func() bool {
			return n.Reads() > was || rand.IntN(8) == 0
		})
	}
	wg.Wait()

	testutil.Value(l.s.engine.Drain(control.ListenerID{All: true}, false))(t)
	n.Set("lo 127.0.8.1", "eth0 127.0.9.1", "eth0 127.0.9.2", "eth1 127.0.9.3")
	text := strings.Join([]string{base, choice[0], choice[5]}, ", ")
	l.apply(text, subsystems)
	addr := func(i int) string { return fmt.Sprintf("127.0.9.%d:%d up", i, port) }
	testutil.Until(t, "there are four ports", func() bool {
		got := ports(l.s)
		return strings.Count(got, "\n") == 3 && strings.Contains(got, "127.0.8.1") &&
			strings.Contains(got, addr(1)) && strings.Contains(got, addr(2)) &&
			strings.Contains(got, addr(3))
	})
	l.agrees()
}

// agrees checks that ports, discovery log and state file have the same.
func (l *live) agrees() {
	l.t.Helper()
	states, inLog := l.s.listeners.States(), l.s.target.Ports()
	for _, p := range states {
		name := p.Transport + " " + p.Address
		ids, err := l.s.state.Ports([]string{name})
		shown := slices.ContainsFunc(inLog, func(o discovery.Port) bool {
			return o.ID == p.PortID && o.Addr.String() == name
		})
		testutil.True(l.t, err == nil && p.State == "up" && shown && ids[name] == p.PortID,
			"port %+v, discovery log %v, stored IDs %v, %v", p, inLog, ids, err)
	}
	if n := l.s.listeners.CountDrained(); len(inLog) != len(states) || n != 0 {
		l.t.Errorf("discovery log %v, %d ports are drained", inLog, n)
	}
}
