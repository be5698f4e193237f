// Package check finds problems with a configuration and a machine before a target uses them. The
// commands "check" and "doctor", starts and reloads use it. It changes nothing.
package check

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/ibv"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/internal/listeners"
	"github.com/nvmf-target/nvmf-target/internal/netif"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// File reads a configuration file and reports every error, in the text and on this machine: files,
// disks, CPUs, addresses. It changes nothing. After nil "serve" can use it; out gets the warnings.
func File(file string, environ []string, out io.Writer) error {
	c, err := config.LoadAll(file, environ, volumes.Backends)
	ps, ok := errors.AsType[config.Problems](err)
	if c == nil || err != nil && !ok {
		return err
	}
	machine := append(Machine(c), Listeners(c, ibv.New())...)
	if err != nil { // problems of the machine come second
		machine = slices.DeleteFunc(machine, func(p config.Problem) bool {
			list, _, _ := strings.Cut(p.Path, "[") // other entries of the list may be the reason
			if strings.HasSuffix(p.Path, "]") && strings.Count(p.Path, "[") == 1 {
				return p.Warning || c.Faulty(list)
			}
			return p.Warning || c.Faulty(p.Path)
		})
	}
	ps = append(ps, machine...)
	ps.Sort()
	if ps.Failed() {
		return ps
	}
	text := ""
	for _, p := range ps {
		text += p.Error() + "\n"
	}
	text += fmt.Sprintf("%s: valid: %s, %s, %s", file, Count(len(c.Listeners), "listener"),
		Count(len(c.Subsystems), "subsystem"), Count(len(volumes.All(c)), "namespace"))
	if len(ps) > 0 {
		text += ", with " + Count(len(ps), "warning")
	}
	_, err = io.WriteString(out, text+"\n")
	return err
}

// Count returns a number with its noun, in the plural unless it is one.
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Machine checks the configured storage, CPUs, memory and limits on this machine.
func Machine(c *config.Config) config.Problems {
	ps := append(append(c.Warnings(), probeCPUs(c)...), probeLimits(c)...)
	ps = append(append(append(ps, Certificates(c)...), Keys(c)...), Hosts(c)...)
	_, unknown := Roles(c)
	ps = append(ps, unknown...)
	ps = append(ps, volumes.Probe(c)...)
	ps.Sort()
	return ps
}

// Hosts warns of hosts that have namespaces of a subsystem which does not allow them. It is
// not an error, because a host must be easy to remove.
func Hosts(c *config.Config) (ps config.Problems) {
	for i, s := range c.Subsystems {
		if s.AllowAnyHost {
			continue
		}
		allowed := map[string]bool{}
		for _, h := range s.Hosts {
			allowed[h] = true
		}
		for j, n := range s.Namespaces {
			for k, h := range n.Hosts {
				if !allowed[h] {
					ps = append(ps, c.Warning(
						fmt.Sprintf("subsystems[%d].namespaces[%d].hosts[%d]", i, j, k),
						h+" is not among the hosts of the subsystem",
						"Add it there, or delete it here."))
				}
			}
		}
	}
	return ps
}

// Listeners reports the listeners that could not be opened now. "serve" does not need it: it
// logs such listeners and waits for them.
func Listeners(c *config.Config, devices verbs.Provider) (ps config.Problems) {
	// Without it addresses are only tried.
	m, _ := netif.Linux().Read(listeners.Devices(c.Listeners)...)
	for i := range c.Listeners {
		if !c.Faulty(fmt.Sprintf("listeners[%d]", i)) {
			ps = append(ps, Listener(c, i, &m, Address(c, i, devices))...)
		}
	}
	return ps
}

// Listener reports a listener without an address, or with one for which probe fails.
func Listener(c *config.Config, i int, m *netif.State,
	probe func(fabric.Addr) error,
) config.Problems {
	addrs, err := listeners.Addresses(c.Listeners[i], m)
	usable := 0
	for _, at := range addrs {
		if e := probe(at); e == nil {
			usable++
		} else if err == nil {
			err = fmt.Errorf("%v: %w", at, e)
		}
	}
	if err == nil {
		return nil
	}
	key := fmt.Sprintf("listeners[%d]", i)
	// A port may be in use by an instance that ends before.
	if c.Listeners[i].Required && usable == 0 && !errors.Is(err, unix.EADDRINUSE) {
		return config.Problems{c.Problem(key, err.Error(),
			"With on_unavailable: wait the target starts without it.")}
	}
	return config.Problems{c.Warning(key, err.Error(), "")}
}

// Address returns a function that returns an error if listener i could not listen at an address.
// devices is the RDMA stack of the devices.
func Address(c *config.Config, i int, devices verbs.Provider) func(fabric.Addr) error {
	return func(at fabric.Addr) error {
		if at.Transport != nvme.TransportRDMA {
			return tcp.Probe(at.AddrPort, &c.TCP)
		}
		if c.Listeners[i].Stack == fabric.DeviceStack {
			if _, err := devices.Devices(); err != nil {
				return err
			}
		}
		port := uint16(0) // RDMA has other ports than TCP, but the same addresses
		if c.Listeners[i].Stack == fabric.SoftIWARPStack {
			port = at.Port()
		}
		return tcp.Probe(netip.AddrPortFrom(at.Addr(), port), &c.TCP)
	}
}
