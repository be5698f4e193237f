package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
)

// MaxListeners is the maximum number of listeners, and of all their addresses.
const MaxListeners = 256

// Listener is one NVMe port, or several at addresses that come and go.
type Listener struct {
	// Name is "tcp 10.0.0.1:4420" or "tcp eth0:4420"; listeners after the first one with the same
	// address and port 0 have " #2" and so on after it. No two have the same name.
	Name string
	// Label is the name given in the file, or "".
	Label     string
	Transport nvme.TransportType
	Address   ListenAddress
	Port      uint16
	Stack     fabric.Stack
	TOS       uint8
	TLS       fabric.TLSPolicy
	// ANAStates has the ANA groups that are not optimized.
	ANAStates map[uint32]nvme.ANAState
	// Required: the target does not run without this listener. Otherwise the target waits for it.
	Required bool
}

func (l *Listener) value() lang.Value {
	l.Port = 4420
	return lang.Mapping{
		lang.NewKey("name", lang.Unique(labelOf(&l.Label, "a listener"),
			"Give each listener its own name."),
			"Its name in `listeners` of subsystems. Set it when its address changes, or is long.").
			Without("none"),
		lang.NewKey("transport", transport(&l.Transport), "How hosts connect.").
			Require("Use one of: rdma, tcp."),
		lang.NewKey("address", listenAddress(&l.Address),
			"IPv4 or IPv6 address; `0.0.0.0` stands for every IPv4 address, and `\"::\"` for "+
				"every address of both families. A link-local address needs its interface: "+
				"`fe80::1%eth0`. A network (`10.0.0.0/24`), a network interface (`eth0`) or an "+
				"RDMA device (`mlx5_0`) stands for each of its addresses that the machine has "+
				"at that moment, except addresses that another listener with the same transport "+
				"and port names more precisely.").Require("Add it."),
		lang.NewKey("port", lang.Int(&l.Port, 0, 0xFFFF),
			"Port number; 0 takes any free port. Set it when 4420 is taken or several listeners "+
				"share an address."),
		lang.NewKey("stack", lang.Words(&l.Stack, []fabric.Stack{
			fabric.DeviceStack, fabric.SoftStack, fabric.SoftIWARPStack,
		}), "`rdma` only: an RDMA `device` of this machine, or RDMA in this program, over "+
			"ordinary sockets and without privileges: RoCEv2 at UDP port 4791 (`soft`), or "+
			"iWARP at the TCP port of the listener (`soft-iwarp`). Hosts need RDMA of the "+
			"same kind, RoCE or iWARP: an adapter, rdma_rxe or siw. Set it to `device` to wait "+
			"for a device that appears late, and to `soft-iwarp` when hosts have iWARP.").
			Without("a device if there is one with the address, else `soft`"),
		lang.NewKey("tos", lang.Int(&l.TOS, 0, 0xFF),
			"`rdma` only: type of service, four times the DSCP. Set it when an iWARP network has "+
				"classes of traffic; on RoCE the host decides (`nvme connect --tos`)."),
		lang.NewKey("tls", lang.Words(&l.TLS, []fabric.TLSPolicy{
			fabric.TLSOff, fabric.TLSAllowed, fabric.TLSRequired,
		}), "`tcp` only: whether hosts encrypt their connections with TLS 1.3 and a key of "+
			"their own (`tls_key` of the host, `nvme connect --tls`). `allowed` also serves "+
			"connections without TLS, even of a machine that falsely claims the NQN of a host; "+
			"`required` serves only hosts with TLS. Changes apply to new connections. Set it "+
			"when others can read or change traffic on the network."),
		lang.NewKey("ana_states", &anaStates{p: &l.ANAStates},
			"Asymmetric namespace access: the states of groups of namespaces (`ana_group`) for "+
				"hosts that connect here, as in `{2: non-optimized, 3: inaccessible}`. Hosts with "+
				"several paths to a namespace prefer optimized ones. Set it when some paths are "+
				"better than others, or should not be used. `nvmf-target ana set` changes states "+
				"by hand.").Without("optimized"),
		lang.NewKey("on_unavailable", lang.Either(&l.Required, "wait", "fail"),
			"The reaction to a missing address or RDMA device: serve everything else and wait "+
				"for it, or exit. Set it to `fail` when another instance takes over in that "+
				"case."),
	}
}

func transport(p *nvme.TransportType) lang.Value {
	return lang.Words(p, []nvme.TransportType{nvme.TransportRDMA, nvme.TransportTCP})
}

// nameListeners names each listener after its address.
func (c *Config) nameListeners() {
	free := map[string]int{}
	for i := range c.Listeners {
		l := &c.Listeners[i]
		l.Name = fmt.Sprintf("%v %s", l.Transport, l.Address.WithPort(l.Port))
		if l.Port != 0 {
			continue
		}
		if free[l.Name]++; free[l.Name] > 1 {
			l.Name += fmt.Sprintf(" #%d", free[l.Name])
		}
	}
}

// Is reports whether a name given by a user means the listener. The name is the label, or the
// address and port, with or without the transport.
func (l *Listener) Is(name string) bool {
	if a, err := netip.ParseAddrPort(name); err == nil {
		name = netip.AddrPortFrom(a.Addr().Unmap(), a.Port()).String()
	}
	return name == l.Name || name == l.Label && name != "" ||
		name == l.Address.WithPort(l.Port) && l.Port != 0
}

// resolveListeners replaces the labels and addresses of listeners in subsystems by their names.
func (v *validator) resolveListeners() {
	c := v.c
	for i := range c.Subsystems {
		list, used := c.Subsystems[i].Listeners, map[string]bool{}
		for j, name := range list {
			path := fmt.Sprintf("subsystems[%d].listeners[%d]", i, j)
			var meant []string
			for k := range c.Listeners {
				if c.Listeners[k].Is(name) {
					meant = append(meant, c.Listeners[k].Name)
				}
			}
			switch {
			case v.Bad(path):
			case len(meant) == 0:
				v.Add(path, fmt.Sprintf("there is no listener %s", lang.Printable(name)),
					"Write the name of a listener, or its address and port as in 10.0.0.1:4420.")
			case len(meant) > 1:
				v.Add(path, "may be "+strings.Join(meant, " or "),
					"Write one of these, or give the listener a name.")
			case used[meant[0]]:
				v.Add(path, "is "+meant[0]+" once more", "Delete one of the two.")
			default:
				list[j] = meant[0]
				used[meant[0]] = true
			}
		}
	}
}

func (v *validator) listener(l *Listener, path string) {
	if l.Transport == nvme.TransportTCP && len(l.Address.Device) > maxInterface {
		v.Add(path+".address", fmt.Sprintf("%q has more than %d characters, as no network "+
			"interface has", l.Address.Device, maxInterface), "Correct it; ip link lists them.")
	}
	v.listens(socket{l.Name, l.Transport, l.Address, l.Port}, path,
		"Delete one of the two listeners.")
	if l.Transport == nvme.TransportRDMA && l.Stack == fabric.SoftIWARPStack {
		v.listens(socket{l.Name, nvme.TransportTCP, l.Address, l.Port}, path+".port",
			"Choose another port for one of the two: iWARP is over TCP.")
	}
	switch {
	case l.TOS%4 != 0: // RFC 3168, section 5: the lowest two bits are ECN
		v.Add(path+".tos", fmt.Sprintf("%d is not a multiple of 4", l.TOS),
			"Write four times the DSCP, for instance 104 for DSCP 26.")
	case l.TOS != 0 && l.Transport == nvme.TransportTCP:
		v.Add(path+".tos", "listeners with transport: tcp have none", "Delete it.")
	}
	if l.Stack != fabric.AnyStack && l.Transport == nvme.TransportTCP {
		v.Add(path+".stack", "listeners with transport: tcp have none", "Delete it.")
	}
	if l.TLS != fabric.TLSOff && l.Transport == nvme.TransportRDMA {
		v.Add(path+".tls", "listeners with transport: rdma have none",
			"Delete it. On RDMA nothing is encrypted; use a network that others do not reach.")
	}
}

// anaStates maps ANA groups to the states that last. Groups of the default state are left out.
type anaStates struct {
	p *map[uint32]nvme.ANAState
	// groups are the keys, set by Decode.
	groups lang.Mapping
}

// anaState is one of the states of p.
func anaState(p *nvme.ANAState) lang.Value {
	lasting := slices.DeleteFunc(slices.Clone(nvme.ANAStates[:]), func(s nvme.ANAState) bool {
		return s == nvme.ANAStateChange // a transition has an end
	})
	return lang.Words(p, lasting)
}

func (v *anaStates) Type() string {
	return "mapping of ANA groups to " + anaState(new(nvme.ANAState)).Type()
}

func (v *anaStates) String() string { return "" }

func (v *anaStates) Decode(d *lang.Decoder, n *yaml.Node, path string) {
	hint := fmt.Sprintf("Write {GROUP: STATE}, with groups from 1 to %d.", ana.MaxGroups)
	if n.Kind != yaml.MappingNode {
		d.Add(path, "must be a mapping of ANA groups to states, not "+lang.KindName(n), hint)
		return
	}
	states := make([]nvme.ANAState, ana.MaxGroups+1)
	v.groups = nil
	for group := 1; group <= ana.MaxGroups; group++ {
		states[group] = nvme.ANAStateOptimized
		v.groups = append(v.groups,
			lang.NewKey(strconv.Itoa(group), anaState(&states[group]), ""))
	}
	d.Mapping(n, path, v.groups, func(string) (what, _ string) {
		return "is not an ANA group", hint
	})
	*v.p = map[uint32]nvme.ANAState{}
	for group, state := range states[1:] {
		if state != nvme.ANAStateOptimized {
			(*v.p)[uint32(group+1)] = state
		}
	}
}

func (v *anaStates) Flatten(all *lang.Settings, at lang.Setting) { v.groups.Flatten(all, at) }

func (v *anaStates) Schema() lang.Schema {
	return lang.Schema{
		"type":                 "object",
		"propertyNames":        lang.Schema{"pattern": "^[1-9][0-9]{0,2}$"},
		"additionalProperties": anaState(new(nvme.ANAState)).Schema(),
	}
}
