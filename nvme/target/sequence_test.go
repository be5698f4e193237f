package target

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// sequence executes the commands of a file of testdata/sequences.
type sequence struct {
	r      *harness
	hosts  map[string]*host
	events map[string]*fabrictest.Command // that wait
}

// TestSequences executes testdata/sequences/*.txt: each block is a command with its arguments and,
// below "----", what it prints. With -rewrite, the files get what the commands print.
func TestSequences(t *testing.T) {
	datadriven.Walk(t, "testdata/sequences", func(t *testing.T, path string) {
		s := &sequence{
			hosts: map[string]*host{}, events: map[string]*fabrictest.Command{},
		}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return s.execute(t, &arguments{TestData: d, t: t, used: map[string]bool{}})
		})
	})
}

// arguments are those of a command. Every one of them must be used.
type arguments struct {
	*datadriven.TestData
	t    *testing.T
	used map[string]bool
}

// number is the value of an argument, or def without the argument.
func (a *arguments) number(key string, def uint64) uint64 {
	for _, arg := range a.CmdArgs {
		if arg.Key == key && len(arg.Vals) == 1 {
			a.used[key] = true
			n, err := strconv.ParseUint(arg.Vals[0], 0, 64)
			if err != nil {
				a.Fatalf(a.t, "%v", err)
			}
			return n
		}
	}
	return def
}

// flag reports whether an argument without a value is given.
func (a *arguments) flag(key string) bool {
	a.used[key] = true
	return a.HasArg(key)
}

// name is the first argument.
func (a *arguments) name() string {
	if len(a.CmdArgs) == 0 {
		a.Fatalf(a.t, "the command needs the name of a host")
	}
	a.used[a.CmdArgs[0].Key] = true
	return a.CmdArgs[0].Key
}

// check fails if there is an argument that the command does not know.
func (a *arguments) check() {
	for _, arg := range a.CmdArgs {
		if !a.used[arg.Key] {
			a.Fatalf(a.t, "unknown argument %s", arg)
		}
	}
}

func (s *sequence) execute(t *testing.T, a *arguments) string {
	t.Helper()
	switch a.Cmd {
	case "subsystem":
		n := int(a.number("namespaces", 1))
		if a.flag("store") {
			s.r = storeHarness(t, 1, n, &memoryStore{})
		} else {
			sub := ramSubsystem(t, n)
			sub.MaxIOQueues = int(a.number("queues", 0))
			if group := a.number("last-group", 0); group != 0 {
				sub.Namespaces[n-1].ANAGroup = uint32(group)
			}
			s.r = newHarness(t, 1, sub)
		}
		a.check()
		return "ok"
	case "connect":
		name, queues := a.name(), int(a.number("queues", 1))
		at := info(nvme.TransportTCP)
		at.PortID = uint16(a.number("port", 1))
		a.check()
		i := len(s.hosts)
		s.hosts[name] = s.r.connectHostInfo(queues, at, func(c *connectArgs) {
			c.hostID, c.host = hostID(i), fmt.Sprintf("%s-%d", testHost, i)
		})
		return "ok"
	case "states":
		s.r.must(s.r.target.SetANAStates(uint16(a.number("port", 1)), anaStatesOf(a)))
		a.check()
		return "ok"
	case "namespace":
		nsid := uint32(a.number("nsid", 0))
		if a.flag("remove") {
			s.r.removeNamespace(nsid)
		} else {
			cfg := NamespaceConfig{NSID: nsid, ANAGroup: uint32(a.number("group", 0))}
			s.r.must(s.r.target.UpdateNamespace(testSub, cfg, nil))
		}
		a.check()
		return "ok"
	}
	h := s.hosts[a.name()]
	if h == nil {
		a.Fatalf(t, "there is no host %s", a.name())
	}
	if a.Cmd == "event" {
		a.check()
		return s.event(a.name(), h)
	}
	c, io := s.command(a)
	a.check()
	q := h.admin
	if io {
		q = h.io[0]
	}
	s.r.do(q, c)
	if st := c.CQE.Status(); !st.OK() {
		return fmt.Sprintf("%v%s", st&^nvme.More, dword(c))
	}
	return "ok" + s.result(a, c)
}

// event returns the event that the host has got since the last time, and asks for the next one.
func (s *sequence) event(name string, h *host) string {
	s.r.w.Settle()
	c, result := s.events[name], "none"
	if c != nil && !c.Done {
		return result
	}
	if c != nil {
		result = fmt.Sprintf("event %#x", c.CQE.DW0())
	}
	s.events[name] = s.r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	return result
}

// anaStatesOf returns the states of arguments such as 7=inaccessible.
func anaStatesOf(a *arguments) states {
	list := states{}
	for _, arg := range a.CmdArgs {
		group, err := strconv.ParseUint(arg.Key, 10, 32)
		for _, state := range nvme.ANAStates {
			if err == nil && len(arg.Vals) == 1 && state.String() == arg.Vals[0] {
				list[uint32(group)] = state
				a.used[arg.Key] = true
			}
		}
	}
	return list
}

// command makes a command and reports whether it goes to an I/O queue.
func (s *sequence) command(a *arguments) (c *fabrictest.Command, io bool) {
	nsid := uint32(a.number("nsid", 0))
	switch a.Cmd {
	case "register", "acquire", "release":
		nsid = uint32(a.number("nsid", 1))
		c, io = reservationCommand(a), true
	case "report":
		nsid = uint32(a.number("nsid", 1))
		c, io = command(nvme.IOReservationReport, 0, make([]byte, a.number("bytes", 64))), true
		c.SQE.Reservation().SetReport(len(c.Data), !a.flag("no-eds"))
		if n := a.number("numd", 0); n != 0 {
			c.SQE.SetCDW(10, uint32(n))
		}
	case "set-feature":
		c = setFeature(nvme.FID(a.number("fid", 0)), uint32(a.number("value", 0)))
		if a.flag("save") {
			c.SQE[43] |= 0x80
		}
	case "get-feature":
		sel := nvme.FeatureSelect(a.number("sel", 0))
		for key, v := range map[string]nvme.FeatureSelect{
			"default": nvme.FeatureDefault, "saved": nvme.FeatureSaved,
			"capabilities": nvme.FeatureCapabilities,
		} {
			if a.flag(key) {
				sel = v
			}
		}
		c = getFeature(nvme.FID(a.number("fid", 0)), sel, uint32(a.number("value", 0)))
	case "log-ana":
		c = anaCommand(0, anaLogSize, false)
		nsid = nvme.NSIDAll
	case "identify":
		c = identifyCommand(nvme.CNS(a.number("cns", 0)), nsid)
	default:
		a.Fatalf(a.t, "unknown command %s", a.Cmd)
	}
	if a.flag("every-namespace") {
		nsid = nvme.NSIDAll
	}
	c.SQE.SetNSID(nsid)
	return c, io
}

// reservationCommand makes a Register, Acquire or Release.
func reservationCommand(a *arguments) *fabrictest.Command {
	op := map[string]nvme.Opcode{
		"register": nvme.IOReservationRegister, "acquire": nvme.IOReservationAcquire,
		"release": nvme.IOReservationRelease,
	}[a.Cmd]
	c := resv(op, 0, 0, a.number("current", 0), a.number("key", 0))
	c.SQE.Reservation().Set(nvme.ReservationAction(a.number("action", 0)), a.flag("iekey"),
		nvme.ReservationType(a.number("type", 0)), nvme.ChangePTPL(a.number("cptpl", 0)))
	if n := int(a.number("bytes", uint64(len(c.Data)))); n <= len(c.Data) {
		c.Data = c.Data[:n]
	} else {
		c.Data = append(c.Data, make([]byte, n-len(c.Data))...)
	}
	return c
}

// dword shows dword 0 of the completion of a command that failed, unless it is 0.
func dword(c *fabrictest.Command) string {
	if v := c.CQE.DW0(); v != 0 {
		return fmt.Sprintf(" value=%#x", v)
	}
	return ""
}

// result is what a command that succeeded returns.
func (s *sequence) result(a *arguments, c *fabrictest.Command) string {
	var b strings.Builder
	switch a.Cmd {
	case "get-feature", "set-feature":
		fmt.Fprintf(&b, " value=%#x", c.CQE.DW0())
	case "log-ana":
		l, groups, err := nvme.ParseANALog(c.Data)
		s.r.must(err)
		fmt.Fprintf(&b, " changes=%d", l.CHGC)
		for _, g := range groups {
			fmt.Fprintf(&b, "\n  group %d: %v changes=%d namespaces=%v", g.AGID, g.ANAS, g.CHGC,
				g.NSIDs)
		}
	case "identify":
		switch cns := nvme.CNS(a.number("cns", 0)); cns {
		case nvme.CNSNamespace:
			ns, err := nvme.Parse[nvme.IdentifyNamespace](c.Data)
			s.r.must(err)
			fmt.Fprintf(&b, " RESCAP=%#x NMIC=%#x", ns.RESCAP, ns.NMIC)
		case nvme.CNSIndependentNamespace:
			ns, err := nvme.Parse[nvme.IdentifyNamespaceIndependent](c.Data)
			s.r.must(err)
			fmt.Fprintf(&b, " RESCAP=%#x", ns.RESCAP)
		case nvme.CNSController:
			id, err := nvme.Parse[nvme.IdentifyController](c.Data)
			s.r.must(err)
			fmt.Fprintf(&b, " reservations=%t", id.ONCS&nvme.ONCSReservations != 0)
		default:
			a.Fatalf(a.t, "no fields of CNS %#x are known", cns)
		}
	}
	return b.String()
}
