package listeners

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/netif"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// This file reports peers that begin TCP connections to listeners and do not get the answers. Such
// a connection is not accepted, and has no socket: only the kernel knows it.

const (
	// handshakePause is the time between two looks at the handshakes of TCP.
	handshakePause = 10 * time.Second
	// answersLost is the number of repeated answers to a SYN, 7 s, until the peer is reported.
	answersLost = 3
)

const handshakeProblem = "the peer begins a connection and does not get the answer"

// handshakeHint returns advice for a handshake, and the interface that the answer takes.
func handshakeHint(n Network, h netif.Handshake) (route, hint string) {
	route = "no route"
	if name, err := n.Route(h.Local.Addr(), h.Remote.Addr()); err == nil {
		route = name
	}
	return route, fmt.Sprintf("packets are lost on the way back: here ip route get %v from %v, "+
		"and firewalls; on the peer tcpdump port %d", h.Remote.Addr(), h.Local.Addr(),
		h.Local.Port())
}

// watchHandshakes reports peers until quit is closed.
func (ls *Listeners) watchHandshakes(quit <-chan struct{}) {
	ticker := time.NewTicker(handshakePause)
	defer ticker.Stop()
	var reported map[netip.AddrPort]bool
	for {
		select {
		case <-quit:
			return
		case <-ticker.C:
		}
		var err error
		if reported, err = ls.reportHandshakes(reported); err != nil {
			ls.Log.Info("incomplete TCP handshakes are not reported", "err", err)
			return
		}
	}
}

// reportHandshakes reports at most mostLogged handshakes that are not in reported: anybody can
// begin some in the name of others. It returns the reported ones that have not ended.
func (ls *Listeners) reportHandshakes(reported map[netip.AddrPort]bool) (map[netip.AddrPort]bool,
	error,
) {
	ports, now, left := ls.tcpPorts(), map[netip.AddrPort]bool{}, mostLogged
	list, err := ls.Network.Handshakes()
	for _, h := range list {
		switch {
		case h.Repeated < answersLost || !ports[h.Local.Port()]:
		case reported[h.Remote]:
			now[h.Remote] = true
		case left > 0:
			left--
			now[h.Remote] = true
			route, hint := handshakeHint(ls.Network, h)
			ls.Peers.Peer(h.Remote).Report(event.TCPNotCompleted, "local", h.Local,
				"interface", route, "err", handshakeProblem, "hint", hint)
		}
	}
	return now, err
}

// tcpPorts returns the ports that the target serves with TCP sockets. A TCP socket at the port of
// an RDMA device belongs to another program.
func (ls *Listeners) tcpPorts() map[uint16]bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ports := map[uint16]bool{}
	for _, p := range ls.ports {
		if p.open != nil && !ls.isDrained(p) && (p.addr.Transport == nvme.TransportTCP ||
			stackOf(p.open) == fabric.SoftIWARPStack) {
			ports[p.addr.AddrPort.Port()] = true
		}
	}
	return ports
}

// Findings returns the peers that do not get an answer at present, mostLogged of them at most.
func Findings(n Network, at []doctor.Listener) (findings []doctor.Finding) {
	ports := map[uint16]bool{}
	for _, l := range at {
		ports[l.Address.Port()] = true
	}
	list, _ := n.Handshakes() // without it there are no findings
	for _, h := range list {
		if h.Repeated == 0 || !ports[h.Local.Port()] || len(findings) == mostLogged {
			continue
		}
		route, hint := handshakeHint(n, h)
		findings = append(findings, doctor.Finding{
			Check: "handshakes", Severity: doctor.Warning,
			Found: fmt.Sprintf("%v at %v: %s (interface of the answers: %s)", h.Remote, h.Local,
				handshakeProblem, route),
			Why: "The host cannot connect there.", Fix: hint,
		})
	}
	return findings
}
