package app_test

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
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// listenStack is an RDMA stack with a Listen that can fail. It records the types of service.
type listenStack struct {
	verbs.Provider
	network *verbstest.Fabric
	up      chan fabric.Addr // gets the listeners that were not available at the start

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

// newStack makes the stack of a target in a network with a host. The target has a device if it has
// an address. The network ends after the server has stopped, which needs it.
func newStack(t *testing.T, target string) *listenStack {
	network := verbstest.New(verbstest.Options{Async: true})
	t.Cleanup(network.Close)
	network.AddHost("host", verbstest.RoCE("rxe0", netip.MustParseAddr("10.0.0.2")))
	network.AddHost("target")
	s := &listenStack{
		Provider: network.Provider("target"), network: network, up: make(chan fabric.Addr, 1),
	}
	if target != "" {
		s.plug(target)
	}
	return s
}

// plug gives the target a device.
func (s *listenStack) plug(addr string) {
	s.network.AddHost("target", verbstest.RoCE("rxe0", netip.MustParseAddr(addr)))
}

// start starts a server on the stack.
func (s *listenStack) start(t *testing.T, listeners string) *harness.Harness {
	t.Helper()
	return started(t, app.Options{
		Config: parse(t, listeners), Verbs: s, Retry: time.Millisecond,
		ListenerUp: func(a fabric.Addr) { s.up <- a },
	})
}

func (s *listenStack) host(at string) host.RDMA {
	return host.RDMA{Provider: s.network.Provider("host"), Addr: netip.MustParseAddrPort(at)}
}

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

func TestRDMAWaitsForItsDevice(t *testing.T) {
	stack := newStack(t, "")
	s := stack.start(t, "{transport: rdma, address: 10.0.0.1}")
	up, waiting := s.Listeners().Addrs()
	testutil.MustTrue(t, len(up) == 0 && len(waiting) == 1, "up %v, waiting %v", up, waiting)
	stack.plug("10.0.0.1")
	waitUp(t, stack.up)
	writeAndRead(t, stack.host("10.0.0.1:4420"))
}

// TestTypeOfService: a listener has its type of service from the beginning, and after a change. If
// it cannot be opened again it is as before, or waits.
func TestTypeOfService(t *testing.T) {
	stack := newStack(t, "127.0.0.1")
	s := stack.start(t, onRDMA("tos: 104"))
	stack.wantTOS(t, 104)
	testutil.Value(s.Apply(parse(t, onRDMA("tos: 32"))))(t)
	stack.wantTOS(t, 104, 32)

	works := func() {
		t.Helper()
		writeAndRead(t, stack.host("127.0.0.1:4420"))
	}
	stack.fail(1)
	_, err := s.Apply(parse(t, onRDMA("tos: 64")))
	testutil.MustTrue(t, errors.Is(err, errListen), "applied: %v", err)
	stack.wantTOS(t, 104, 32, 32)
	works()

	stack.fail(2)
	_, err = s.Apply(parse(t, onRDMA("tos: 64")))
	testutil.MustTrue(t, errors.Is(err, errListen), "applied: %v", err)
	s.Listeners().States()
	waitUp(t, stack.up)
	stack.wantTOS(t, 104, 32, 32, 32)
	works()
	testutil.Value(s.Apply(parse(t, onRDMA("tos: 64"))))(t)
	stack.wantTOS(t, 104, 32, 32, 32, 64)
	works()
}

// TestRestoredListener: a removed listener that cannot be opened again when the removal is undone
// waits, with any on_unavailable, and is there for the next change.
func TestRestoredListener(t *testing.T) {
	stack := newStack(t, "127.0.0.1")
	s := stack.start(t, anyPort+", "+onRDMA("on_unavailable: fail"))
	taken := listen(t, "127.0.0.1:0").AddrPort().Port()
	stack.fail(1)
	_, err := s.Apply(parse(t, fmt.Sprintf("%s, {transport: tcp, address: 127.0.0.1, port: %d, "+
		"on_unavailable: fail}", anyPort, taken)))
	testutil.MustTrue(t, errors.Is(err, errListen) && errors.Is(err, unix.EADDRINUSE),
		"applied: %v", err)
	waitUp(t, stack.up)
	changes, err := s.Apply(parse(t, anyPort))
	testutil.True(t, err == nil && len(changes) == 1, "%v, %v", changes, err)
}

// TestWaitingListenerChanges: a listener can be changed while attempts to open it go on.
func TestWaitingListenerChanges(t *testing.T) {
	stack := newStack(t, "")
	s := stack.start(t, onRDMA("tos: 32"))
	for i := range 20 {
		testutil.Value(s.Apply(parse(t, onRDMA(fmt.Sprintf("tos: %d", 4*i+4)))))(t)
	}
	stack.wantTOS(t)
	stack.plug("127.0.0.1")
	waitUp(t, stack.up)
	stack.mu.Lock()
	defer stack.mu.Unlock()
	testutil.Equal(t, stack.tos[len(stack.tos)-1], 80, "type of service")
}

// TestDepthOfController: the queues of a controller may be as deep as it has announced, even if new
// controllers announce less.
func TestDepthOfController(t *testing.T) {
	stack, both := newStack(t, "127.0.0.1"), anyPort+", "+onRDMA("port: 4420")
	s := stack.start(t, both)
	ctx := testutil.Context(t)
	transports := []host.Transport{s.TCP(), stack.host("127.0.0.1:4420")}
	var before []*host.Controller
	for _, tr := range transports {
		before = append(before, s.Connect(tr, hostOptions(testNQN)))
	}
	testutil.Value(s.Apply(parse(t, both, "tcp: {queue_depth: 32}", "rdma: {queue_depth: 32}")))(t)
	for i, tr := range transports {
		depth := int(before[i].CAP().MQES()) + 1
		q, err := before[i].OpenQueue(ctx, 1, depth)
		testutil.MustTrue(t, err == nil && depth > 32, "%d entries: %v", depth, err)
		q.Close()
		testutil.True(t, testutil.Err(s.Connect(tr, hostOptions(testNQN)).OpenQueue(ctx, 1,
			depth)) != nil, "a controller has deeper queues than it says")
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
		_, err := l.Apply(l.parse(text, subsystems))
		testutil.True(t, err == nil || !strings.Contains(err.Error(), "undone"), "%v", err)
	})
	loop(3*rounds, func() {
		which := control.ListenerID{All: rand.IntN(4) == 0}
		if !which.All {
			which.Listener = strconv.Itoa(1 + rand.IntN(9))
		}
		_, _ = l.Engine().Drain(which, rand.IntN(2) == 0)
	})
	loop(10*rounds, l.Look)
	for range rounds {
		n.Set(append(pick(machine), "lo 127.0.8.1")...)
		was := n.Reads()
		testutil.Until(t, "the addresses are looked at, or not yet", func() bool {
			return n.Reads() > was || rand.IntN(8) == 0
		})
	}
	wg.Wait()

	testutil.Value(l.Engine().Drain(control.ListenerID{All: true}, false))(t)
	n.Set("lo 127.0.8.1", "eth0 127.0.9.1", "eth0 127.0.9.2", "eth1 127.0.9.3")
	text := strings.Join([]string{base, choice[0], choice[5]}, ", ")
	l.apply(text, subsystems)
	addr := func(i int) string { return fmt.Sprintf("127.0.9.%d:%d up", i, port) }
	testutil.Until(t, "there are four ports", func() bool {
		got := ports(l.Harness)
		return strings.Count(got, "\n") == 3 && strings.Contains(got, "127.0.8.1") &&
			strings.Contains(got, addr(1)) && strings.Contains(got, addr(2)) &&
			strings.Contains(got, addr(3))
	})
	l.agrees()
}

// agrees checks that ports, discovery log and state file have the same.
func (l *live) agrees() {
	l.t.Helper()
	states, inLog := l.Listeners().States(), l.Target.Ports()
	for _, p := range states {
		name := p.Transport + " " + p.Address
		ids, err := l.State().Ports([]string{name})
		shown := slices.ContainsFunc(inLog, func(o discovery.Port) bool {
			return o.ID == p.PortID && o.Addr.String() == name
		})
		testutil.True(l.t, err == nil && p.State == "up" && shown && ids[name] == p.PortID,
			"port %+v, discovery log %v, stored IDs %v, %v", p, inLog, ids, err)
	}
	if n := l.Listeners().CountDrained(); len(inLog) != len(states) || n != 0 {
		l.t.Errorf("discovery log %v, %d ports are drained", inLog, n)
	}
}
