package app

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/netif"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// maxReachable bounds the addresses with which a wildcard listener is announced.
const maxReachable = 8

// maxNamespaces bounds the namespaces that are announced one by one.
const maxNamespaces = 32

// announcement is the text printed first: subsystems, addresses, missing parts, and how to connect.
type announcement struct {
	version    string
	subsystems []config.Subsystem
	namespaces []*volumes.Namespace // not pending
	up         []fabric.Addr
	encrypted  map[fabric.Addr]bool // addresses of up that need TLS
	waiting    []string             // listeners
	pending    []*volumes.Namespace
}

// summary returns one line.
func (a announcement) summary() string {
	line := fmt.Sprintf("nvmf-target %s serves %s with %s on %s", a.version,
		check.Count(len(a.subsystems), "subsystem"),
		check.Count(len(a.namespaces), "namespace"), addrs(a.up))
	if len(a.waiting) > 0 {
		line += " and waits for " + strings.Join(a.waiting, ", ")
	}
	if n := len(a.pending); n > 0 {
		line += "; pending: " + check.Count(n, "namespace")
	}
	return line
}

// text returns the summary and connect commands. reachable gives the addresses of a wildcard.
func (a announcement) text(reachable func(fabric.Addr) []netip.Addr) string {
	text := a.summary() + "\n"
	for i, n := range a.namespaces {
		if i == maxNamespaces {
			text += fmt.Sprintf("  and %s more\n", check.Count(len(a.namespaces)-i, "namespace"))
			break
		}
		text += fmt.Sprintf("  namespace %d of %s: %s\n", n.NSID, n.NQN,
			strings.TrimSpace(n.Backend+" "+n.Place()))
	}
	for _, n := range a.pending {
		text += fmt.Sprintf("  pending: namespace %d of %s, until %s is there\n", n.NSID, n.NQN,
			n.Place())
	}
	for _, addr := range a.up {
		text += connectCommands(addr, a.encrypted[addr], a.subsystems, reachable)
	}
	return text
}

func addrs(list []fabric.Addr) string {
	if len(list) == 0 {
		return "no address"
	}
	var names []string
	for _, a := range list {
		names = append(names, a.String())
	}
	return strings.Join(names, ", ")
}

// connectCommands returns the nvme-cli commands that connect to every subsystem through addr, with
// the options that all hosts need there. Over RDMA nobody reaches a subsystem that requires TLS.
func connectCommands(addr fabric.Addr, encrypted bool, list []config.Subsystem,
	reachable func(fabric.Addr) []netip.Addr,
) string {
	var b strings.Builder
	ips := []netip.Addr{addr.Addr()}
	if addr.Addr().IsUnspecified() {
		ips = reachable(addr)
	}
	for _, ip := range ips {
		for _, s := range list {
			tls := encrypted || s.Security&subsystems.SecurityTLS != 0
			if tls && addr.Transport == nvme.TransportRDMA {
				continue
			}
			fmt.Fprintf(&b, "  nvme connect -t %s -a %s -s %d -n %s", addr.Transport, ip,
				addr.Port(), shellQuote(s.NQN))
			if s.Security&subsystems.SecurityAuth != 0 {
				b.WriteString(" --dhchap-secret=KEY")
			}
			if tls {
				b.WriteString(" --tls")
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// shellQuote quotes text that a shell would not take as one plain word.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("._:-+=@/", r)
	}
	if strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// reachable returns the addresses at which a wildcard listener answers; for RDMA those of RDMA
// devices. Loopback addresses are returned only without others.
func reachable(addr fabric.Addr) []netip.Addr {
	m, err := netif.Linux().Read("*")
	if err != nil {
		return nil
	}
	var rdma []string
	if addr.Transport == nvme.TransportRDMA {
		rdma = slices.Concat(slices.Collect(maps.Values(m.RDMA))...)
	}
	var out, loopback []netip.Addr
	for _, a := range m.Addresses {
		switch {
		case !a.Up || len(rdma) > 0 && !slices.Contains(rdma, a.Interface):
		case addr.Addr().Is4() && !a.Is4() || a.IsLinkLocalUnicast():
		case a.IsLoopback():
			loopback = append(loopback, a.Addr)
		default:
			out = append(out, a.Addr)
		}
	}
	if len(out) == 0 {
		out = loopback
	}
	return out[:min(len(out), maxReachable)]
}

// announcement describes the current state.
func (s *Server) announcement() announcement {
	c := s.current()
	a := announcement{
		version: s.opts.Version, subsystems: c.Subsystems, pending: s.engine.Volumes.Pending(),
		encrypted: map[fabric.Addr]bool{},
	}
	a.namespaces = slices.DeleteFunc(volumes.All(c), func(n *volumes.Namespace) bool {
		return slices.ContainsFunc(a.pending,
			func(p *volumes.Namespace) bool { return p.Name() == n.Name() })
	})
	a.up, a.waiting = s.listeners.Addrs()
	for _, addr := range a.up {
		a.encrypted[addr] = s.listeners.Encrypted(addr)
	}
	return a
}
