package app_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/netiftest"
	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// ana returns the state of the only group of a subsystem as seen by a host.
func (l *live) ana(c *host.Controller) string {
	l.t.Helper()
	b := testutil.Value(hosttest.GetLog(testutil.Context(l.t), c, nvme.LogANA, nvme.NSIDAll, 0,
		1024, 0, false))(l.t)
	_, groups, err := targettest.ParseANALog(b)
	testutil.MustTrue(l.t, err == nil && len(groups) == 1, "%+v %v", groups, err)
	return fmt.Sprintf("%d %v", groups[0].AGID, groups[0].ANAS)
}

// TestANAWhileApplying: a change of the configuration that takes long delays no failover.
func TestANAWhileApplying(t *testing.T) {
	l := newLive(t, listenAny, sub(anyHosts, inRAM))
	defer l.Engine().Hold()()
	done := make(chan error, 1)
	go func() {
		_, err := l.Listeners().SetANA(control.ANASet{Group: 1, State: "inaccessible"})
		done <- err
	}()
	testutil.Check(t, testutil.Receive(t, "a state is set during the change", done))
}

// TestANATransition: a transition ends after the time that hosts know.
func TestANATransition(t *testing.T) {
	for limit, ends := range map[time.Duration]bool{time.Hour: false, time.Millisecond: true} {
		l := newLive(t, listenAny, sub(anyHosts, inRAM), app.Options{ANATransition: limit})
		c := testutil.Value(l.connect(testNQN, hostA, 0))(t)
		set := func(state string) {
			t.Helper()
			testutil.Value(l.Listeners().SetANA(control.ANASet{Group: 1, State: state}))(t)
		}
		set("change")
		if !ends {
			testutil.Equal(t, l.ana(c), "1 change", "the state")
		} else {
			testutil.Until(t, "the transition ends",
				func() bool { return l.ana(c) == "1 inaccessible" })
		}
		set("configured")
		testutil.Equal(t, l.ana(c), "1 optimized", "the state")
	}
}

// TestMDNS: open ports are announced while that is configured, with the name of the service, and
// withdrawn when it is not.
func TestMDNS(t *testing.T) {
	ifi, err := net.InterfaceByName("lo")
	if err != nil {
		t.Skipf("needs an interface lo that takes multicast: %v", err)
	}
	conn, err := net.ListenMulticastUDP("udp4", ifi,
		&net.UDPAddr{IP: net.IPv4(224, 0, 0, 251), Port: 5353})
	if err != nil {
		t.Skipf("needs an interface lo that takes multicast: %v", err)
	}
	defer func() { _ = conn.Close() }()
	n := &netiftest.Network{}
	n.Set("lo 127.0.0.1", "other0 192.0.2.1")
	const on = listenAny + "]\ndiscovery: {mdns: true, mdns_interfaces: [lo], nqn: " +
		"nqn.2026-11.io.nvmf-target:mdnstest}\nmetrics: {}\nshutdown_timeout: 5s\nhosts: ["
	l := newLive(t, on, sub(anyHosts, inRAM), app.Options{Network: n, Retry: time.Hour})
	port := l.Addrs()[0].Port()
	until := func(gone bool) {
		t.Helper()
		b := make([]byte, 9000)
		_ = conn.SetReadDeadline(time.Now().Add(testTimeout))
		for {
			n, err := conn.Read(b)
			testutil.MustTrue(t, err == nil, "gone %v: %v", gone, err)
			var m dnsmessage.Message
			if m.Unpack(b[:n]) != nil {
				continue
			}
			served, named := false, false
			for _, a := range m.Answers {
				srv, ok := a.Body.(*dnsmessage.SRVResource)
				served = served || ok && srv.Port == port && (a.Header.TTL == 0) == gone &&
					strings.HasSuffix(a.Header.Name.String(), "._nvme-disc._tcp.local.")
				txt, ok := a.Body.(*dnsmessage.TXTResource)
				named = named || ok && strings.Join(txt.TXT, " ") ==
					"p=tcp nqn=nqn.2026-11.io.nvmf-target:mdnstest"
			}
			if served && named {
				return
			}
		}
	}
	until(false)
	l.apply(listenAny, sub(anyHosts, inRAM))
	until(true)
	l.apply(on, sub(anyHosts, inRAM))
	until(false)
}
