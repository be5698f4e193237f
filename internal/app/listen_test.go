package app

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme/host"
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
