package check

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/ibv"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/internal/listeners"
	"github.com/nvmf-target/nvmf-target/internal/netif"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Doctor checks this machine, and the configuration if it can be read; it may be missing unless it
// is required. A running target is asked for slow operations: at the socket or, if it is "", at the
// sockets of the configuration. Doctor changes nothing.
func Doctor(file string, required bool, socket string, environ []string) []doctor.Finding {
	return diagnose(doctor.Linux(), ibv.New(), file, required, socket, environ)
}

func diagnose(m doctor.Machine, rdma verbs.Provider, file string, required bool, socket string,
	environ []string,
) []doctor.Finding {
	c, err := config.LoadAll(file, environ, volumes.Backends)
	if err != nil {
		t := doctor.Target{
			Sockets: sockets(config.AutoSocket), StateDir: state.DefaultDir(os.Getenv),
		}
		return append(notLoaded(required, err), m.Examine(t, socket)...)
	}
	ps := Machine(c)
	// Without it addresses are only tried.
	here, _ := netif.Linux().Read(listeners.Devices(c.Listeners)...)
	for i := range c.Listeners {
		ps = append(ps, Listener(c, i, &here, func(at fabric.Addr) error {
			if onTCP(c.Listeners[i]) {
				if _, used := m.InUse(at.AddrPort); used {
					return nil // the check of the machine reports the user
				}
			}
			return Address(c, i, rdma)(at)
		})...)
	}
	t := demands(c, &here)
	if socket != "" {
		t.Sockets = []string{socket}
	}
	if name, _, ok := m.Running(t.Sockets); ok { // it uses its own storage
		ps = slices.DeleteFunc(ps, func(p config.Problem) bool {
			return p.Warning && strings.HasSuffix(p.What, " is in use by "+name)
		})
	}
	ps.Sort()
	list := problems(ps)
	if list == nil {
		list = []doctor.Finding{{
			Check: configuration, Severity: doctor.OK, Found: file + " is valid",
		}}
	}
	list = append(list, listeners.Findings(netif.Linux(), t.Listeners)...)
	list = append(list, volumes.Findings(c)...)
	return append(list, m.Examine(t, socket)...)
}

const configuration = "configuration"

// notLoaded returns the findings about an unusable configuration.
func notLoaded(required bool, err error) []doctor.Finding {
	if ps, ok := errors.AsType[config.Problems](err); ok {
		return problems(ps)
	}
	f := doctor.Finding{
		Check: configuration, Severity: doctor.Note, Found: err.Error(),
		Why: "Without the configuration only the machine is checked.",
		Fix: "nvmf-target doctor --config FILE, as a user who may read the file",
	}
	if required {
		f.Severity = doctor.Error
	}
	return []doctor.Finding{f}
}

// problems returns the findings of the checks made by "check".
func problems(ps config.Problems) (list []doctor.Finding) {
	for _, p := range ps {
		f := doctor.Finding{
			Check: configuration, Severity: doctor.Error,
			Found: fmt.Sprintf("%s: %s: %s", p.Place, p.Path, p.What), Fix: p.Hint,
			Why: "The target does not start with it.",
		}
		if p.Path == "" {
			f.Found = p.Place + ": " + p.What
		}
		if p.Warning {
			f.Severity, f.Why = doctor.Warning, "The target starts, but not all of it works."
		}
		list = append(list, f)
	}
	return list
}

// onTCP reports whether a listener has a TCP port of the system.
func onTCP(l config.Listener) bool {
	return l.Transport == nvme.TransportTCP || l.Stack == fabric.SoftIWARPStack
}

// demands returns the requirements of a configuration on a machine.
func demands(c *config.Config, m *netif.State) doctor.Target {
	t := doctor.Target{
		Reactors: ReactorCPUs(c.Reactors), RDMA: uses(c.Listeners, nvme.TransportRDMA),
		Sockets: sockets(c.Control.Socket), StateDir: state.DefaultDir(os.Getenv),
	}
	t.Soft, t.IWARP = t.RDMA, t.RDMA
	t.Memory = int64(len(t.Reactors) * c.Reactors.Memory)
	for _, l := range c.Listeners {
		if l.Transport == nvme.TransportRDMA {
			t.Device = t.Device || l.Stack == fabric.DeviceStack
			t.Soft = t.Soft && l.Stack.Soft()
			t.IWARP = t.IWARP && l.Stack == fabric.SoftIWARPStack
		}
		if !onTCP(l) {
			continue
		}
		addrs, _ := listeners.Addresses(l, m)
		for _, at := range addrs {
			t.Listeners = append(t.Listeners,
				doctor.Listener{Name: at.String(), Address: at.AddrPort})
		}
	}
	for _, n := range volumes.All(c) {
		if path := n.BlockPath(); path != "" {
			t.Storage = append(t.Storage, doctor.Storage{
				Path: path, User: fmt.Sprintf("namespace %d of %s", n.NSID, n.NQN),
			})
		}
	}
	return t
}

// sockets returns the possible control sockets of a target.
func sockets(configured string) []string {
	list := []string{configured}
	if configured == config.AutoSocket {
		list = []string{control.DefaultSocket(), control.ClientSocket()}
	}
	return slices.DeleteFunc(list, func(s string) bool { return s == "" })
}
