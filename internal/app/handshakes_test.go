package app

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/internal/netif"
)

// Peers that do not get the answers to their SYNs are refusals, once each while that lasts, and few
// of many at a time.
func TestHandshakes(t *testing.T) {
	l, n := healing(t, at("eth0", 0), "eth0 127.0.9.1")
	open, _ := l.s.listeners.addrs()
	local := open[0].AddrPort
	from := func(remote string, repeated int) netif.Handshake {
		return netif.Handshake{
			Local: local, Remote: netip.MustParseAddrPort(remote), Repeated: repeated,
		}
	}
	elsewhere := from("10.0.0.4:1", answersLost)
	elsewhere.Local = netip.AddrPortFrom(local.Addr(), local.Port()+1)
	lost, unroutable := from("10.0.0.2:1", answersLost), from("10.0.0.3:1", answersLost)

	var reported map[netip.AddrPort]bool
	look := func(list ...netif.Handshake) (lines []string) {
		t.Helper()
		n.handshakes = list
		before := len(l.s.refusals())
		var err error
		if reported, err = l.s.listeners.reportHandshakes(reported); err != nil {
			t.Error(err)
		}
		for _, r := range l.s.refusals() {
			lines = append(lines, fmt.Sprint(r.Message, " ", r.Remote, " ", r.Attributes))
		}
		return lines[:len(lines)-before]
	}
	if got := look(from("10.0.0.2:1", answersLost-1), elsewhere); len(got) > 0 {
		t.Errorf("reported: %q", got)
	}
	got := look(lost, unroutable)
	for i, want := range []string{
		"10.0.0.3:1 [{local " + local.String() + "} {interface no route}",
		"10.0.0.2:1 [{local " + local.String() + "} {interface eth0}",
	} {
		if len(got) != 2 || !strings.HasPrefix(got[i], "TCP handshake not completed "+want) {
			t.Errorf("reported: %q, want %s", got, want)
		}
	}
	findings := handshakeFindings(n, []doctor.Listener{{Address: local}})
	if len(findings) != 2 || findings[0].Severity != doctor.Warning ||
		!strings.Contains(findings[0].Found, "10.0.0.2:1 at "+local.String()) ||
		!strings.Contains(findings[1].Found, "no route") {
		t.Errorf("findings: %+v", findings)
	}
	if got := look(lost, unroutable); len(got) > 0 || len(reported) != 2 {
		t.Errorf("reported again: %q", got)
	}
	var many []netif.Handshake
	for i := range 3 * mostLogged {
		many = append(many, from(fmt.Sprintf("10.0.1.%d:1", i), answersLost))
	}
	for range 3 {
		if got := look(many...); len(got) != mostLogged {
			t.Errorf("%d of many are reported, want %d", len(got), mostLogged)
		}
	}
	if got := look(many...); len(got) > 0 {
		t.Errorf("reported again: %q", got)
	}
	if look(); len(reported) > 0 {
		t.Errorf("%d are remembered after their end", len(reported))
	}
}
