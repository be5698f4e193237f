package app

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestListenerMoves: a port that a listener loses and another one gets in the same change stays
// open, with its connections, also when the change fails.
func TestListenerMoves(t *testing.T) {
	port := testutil.FreePort(t)
	network, one, eth0 := at("127.0.9.0/24", port), at("127.0.9.2", port), at("eth0", port)
	l, _ := healing(t, one, "eth0 127.0.9.2")
	c := testutil.Value(l.connect(testNQN, hostA, 0))(t)
	subsystems := sub(anyHosts, inRAM)
	taken := listen(t, "127.0.0.1:0").AddrPort().Port()
	fails := fmt.Sprintf(", {transport: tcp, address: 127.0.0.1, port: %d, on_unavailable: fail}",
		taken)
	for _, next := range []string{network, eth0, one, eth0, network, one} {
		if _, ps := l.s.Plan(l.parse(next, subsystems)); len(ps) > 0 {
			t.Errorf("%s: %v", next, ps)
		}
		l.refuse(next+fails, subsystems)
		l.apply(next, subsystems)
		if len(l.s.Addrs()) != 1 || c.Err() != nil {
			t.Fatalf("%s: ports %s, connection %v", next, ports(l.s), c.Err())
		}
	}
}

// losing is a transport whose next listeners are lost before Listen returns.
type losing struct {
	fabric.Transport
	lost func(portID uint16)
	n    int
}

func (t *losing) Listen(at fabric.Addr, id uint16, accept func(fabric.Conn)) (fabric.Listener,
	error,
) {
	l, err := t.Transport.Listen(at, id, accept)
	if t.n--; t.n >= 0 {
		t.lost(id)
	}
	return l, err
}

// TestLostAtOnce: a listener whose device goes while it is being opened is opened again.
func TestLostAtOnce(t *testing.T) {
	l := newLive(t, listenAny, sub(anyHosts, inRAM))
	tcp := &losing{l.s.transports[nvme.TransportTCP], l.s.listeners.lost, 1}
	l.s.listeners.changing.Lock()
	l.s.transports[nvme.TransportTCP] = tcp
	l.s.listeners.changing.Unlock()
	l.apply(listenAny+", "+listenAny, sub(anyHosts, inRAM))
	testutil.Until(t, "the listener accepts", func() bool {
		l.s.listeners.changing.Lock()
		defer l.s.listeners.changing.Unlock()
		return tcp.n < 0
	})
}

// TestUnreadableAddresses: if the addresses cannot be read, ports stay, and one line says so.
func TestUnreadableAddresses(t *testing.T) {
	var out testutil.Log
	n := &fakeNetwork{err: errors.New("not permitted")}
	l := &live{t: t, dir: t.TempDir()}
	l.s = started(t, Options{
		Config: l.parse(listenAny, sub(anyHosts, inRAM)), Network: n, Retry: time.Millisecond,
		Log: out.Logger(),
	})
	l.wantStates("up")
	for range 10 {
		l.s.listeners.look()
	}
	l.wantStates("up")
	testutil.Equal(t, strings.Count(out.String(), "not permitted"), 1, "lines")
}
