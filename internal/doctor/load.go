package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/rates"
)

// This file describes problems of a running target, from counters of two samples: the stages of
// slow commands, networks that lose packets, and queues that are too small.

const (
	// slowSeconds is the 99th percentile from which commands are reported if there are at least
	// leastCommands. verySlowSeconds is the limit for fewer commands, since very slow storage
	// completes few. mostSlow is the number of kinds of commands that are reported.
	slowSeconds, verySlowSeconds = 0.010, 1
	leastCommands                = 100
	mostSlow                     = 10
	// A network that loses one of lossyPackets packets, and leastRetransmits in all, is reported.
	lossyPackets, leastRetransmits = 1000, 5
	// A queue is too small if one of fullCommands commands finds it nearly full.
	fullCommands = 10
	packetSize   = 1448 // TCP data in a packet of Ethernet's MTU, 1,500 bytes
)

// Sample has the counters of a target at one time.
type Sample struct {
	Time time.Time
	// Of Latencies, the number of commands, the buckets, and the means of the stages are used.
	Latencies   []observed.Latency
	Connections []observed.Connection
	// These have limits, and commands that wait for memory.
	Hosts      []observed.Host
	Subsystems []observed.Subsystem
	Namespaces []observed.Namespace
	Reactors   []observed.Reactor
	Groups     []observed.Group
	// Ports are the RDMA ports of the machine and of the target's own stack.
	Ports []observed.PortCounter
	// Of Refusals, handshakes of RDMA are used. For TCP the kernel is asked.
	Refusals []observed.Refusal
}

// stageAdvice explains the stages (ADR 0038). For waiting commands see period.waits.
var stageAdvice = map[string]advice{
	"wait": {},
	"host_data": {
		"The data of writes comes slowly from the host: its CPU, or the network.",
		"nvmf-target connections: RTT, packets sent again; on the host ethtool -S",
	},
	"backend": {
		"The storage is slow.",
		"nvmf-target disks: health; iostat -x of the device below the namespace",
	},
	"response": {
		"The host takes data and responses slowly: its CPU, or the network.",
		"nvmf-target connections: RTT, packets sent again; on the host ethtool -S",
	},
}

type advice struct{ why, fix string }

// Load returns the problems of a target between two samples, nil if there are none.
func Load(before, now *Sample) []Finding {
	p := period{before, now}
	list := append(p.slowCommands(), p.stalled()...)
	return append(append(list, p.hostFindings()...), p.ports()...)
}

// period is the time between two samples.
type period struct{ before, now *Sample }

func (p *period) seconds() float64 { return p.now.Time.Sub(p.before.Time).Seconds() }

// within returns "in the last 5 s". A time that grows with each look is rounded.
func (p *period) within() string {
	s := max(int(p.seconds()+0.5), 1)
	if s >= 10 {
		s -= s % 10
	}
	return fmt.Sprintf("in the last %d s", s)
}

// slowCommands reports slow commands with the stage that took most of their time, slowest first.
func (p *period) slowCommands() (list []Finding) {
	type slow struct {
		of    kind
		spent *observed.Spent
		p99   float64
	}
	var found []slow
	for of, s := range difference(p.before.Latencies, p.now.Latencies) {
		p99 := s.Took.Quantile(0.99)
		if p99 >= verySlowSeconds || p99 >= slowSeconds && s.Commands >= leastCommands {
			found = append(found, slow{of, s, p99})
		}
	}
	slices.SortFunc(found, func(a, b slow) int {
		return cmp.Or(cmp.Compare(b.p99, a.p99), a.of.compare(b.of))
	})
	for _, f := range found[:min(len(found), mostSlow)] {
		stage, seconds, share := f.spent.Most()
		a := stageAdvice[stage]
		if stage == "wait" {
			a = p.waits(f.of, seconds)
		}
		part := "1 of 100 commands"
		if f.spent.Commands < leastCommands {
			part = fmt.Sprintf("the slowest of %d commands", f.spent.Commands)
		}
		list = append(list, Finding{
			Check: "latency", Severity: Note,
			Found: fmt.Sprintf("%s (%s) of %s for namespace %d of %s took %.0f ms or more %s; "+
				"%.0f %% of the time was that of stage %s", part, f.of.operation,
				hostName(f.of.host), f.of.nsid, f.of.subsystem, 1e3*f.p99,
				p.within(), 100*share, stage),
			Why: a.why, Fix: a.fix,
		})
	}
	return list
}

// waits explains the given total wait of commands, either at their limits or otherwise for memory.
// The wait at a limit is known only for all commands together.
func (p *period) waits(of kind, seconds float64) advice {
	before := limits(p.before)
	var most limited
	waited := 0.0
	for name, l := range limits(p.now) {
		w := l.WaitSeconds - before[name].WaitSeconds
		if of.at(name) && (w > waited || w == waited && most.String() > name.String()) {
			most, waited = name, w
		}
	}
	if 2*waited >= seconds {
		return advice{
			fmt.Sprintf("They wait at the limits of %s.", most),
			"raise limits: iops and bandwidth of " + most.String(),
		}
	}
	waiting := 0
	for _, s := range []*Sample{p.before, p.now} {
		for _, r := range s.Reactors {
			waiting = max(waiting, r.WaitingCommands)
		}
	}
	why := "They wait for data memory."
	if waiting > 0 {
		why = fmt.Sprintf("They wait for data memory: %d of one reactor at once.", waiting)
	}
	return advice{why, "a larger reactors.memory"}
}

// limited is an object with limits: a host, a subsystem, or a namespace.
type limited struct {
	host, subsystem string
	nsid            uint32
}

func (l limited) String() string {
	switch {
	case l.host != "":
		return "host " + hostName(l.host)
	case l.nsid != 0:
		return fmt.Sprintf("namespace %d of %s", l.nsid, l.subsystem)
	}
	return "subsystem " + l.subsystem
}

func limits(s *Sample) map[limited]observed.Limits {
	all := map[limited]observed.Limits{}
	add := func(name limited, l *observed.Limits) {
		if l != nil {
			all[name] = *l
		}
	}
	for i := range s.Hosts {
		add(limited{host: s.Hosts[i].NQN}, s.Hosts[i].Limits)
	}
	for i := range s.Subsystems {
		add(limited{subsystem: s.Subsystems[i].NQN}, s.Subsystems[i].Limits)
	}
	for i := range s.Namespaces {
		n := &s.Namespaces[i]
		add(limited{subsystem: n.Subsystem, nsid: n.NSID}, n.Limits)
	}
	return all
}

// connections calls fn with each connection and its earlier counters, which are zero for a new one.
func (p *period) connections(fn func(old, now *observed.Connection)) {
	rates.Each(p.before.Connections, p.now.Connections, (*observed.Connection).ID,
		func(old, c *observed.Connection) {
			if old == nil || old.Commands > c.Commands || old.Host != c.Host {
				old = &observed.Connection{}
			}
			fn(old, c)
		})
}

// stalled reports hosts with commands that do not complete: a queue has some, and has received none
// since the last look. Such commands are not yet counted among the latencies.
func (p *period) stalled() (list []Finding) {
	hosts := map[string]int{}
	p.connections(func(old, now *observed.Connection) {
		if now.QID != 0 && old.Commands == now.Commands && now.InFlight > 0 {
			hosts[now.Host] += now.InFlight
		}
	})
	for _, name := range sorted(hosts) {
		list = append(list, Finding{
			Check: "latency", Severity: Note,
			Found: fmt.Sprintf("%d commands of %s have not been completed %s", hosts[name],
				hostName(name), p.within()),
			Why: "Storage does not answer, a namespace is paused, or data does not come.",
			Fix: "nvmf-target trace shows which; nvmf-target namespaces: the state",
		})
	}
	return list
}

// hostFindings reports hosts with networks that lose packets, and with queues that are too small.
func (p *period) hostFindings() (list []Finding) {
	hosts := map[string]*observed.Connection{}
	p.connections(func(old, now *observed.Connection) {
		h := hosts[now.Host]
		if h == nil {
			h = &observed.Connection{}
			hosts[now.Host] = h
		}
		h.Retransmits += rates.Rise(old.Retransmits, now.Retransmits)
		h.ReadBytes += rates.Rise(old.ReadBytes, now.ReadBytes)
		if now.QID != 0 {
			h.Commands += rates.Rise(old.Commands, now.Commands)
			h.NearlyFull += rates.Rise(old.NearlyFull, now.NearlyFull)
			h.Depth = max(h.Depth, now.Depth)
		}
	})
	for _, name := range sorted(hosts) {
		h := hosts[name]
		packets := h.Commands + h.ReadBytes/packetSize
		if h.Retransmits >= leastRetransmits && h.Retransmits*lossyPackets >= packets {
			list = append(list, Finding{
				Check: "network", Severity: Note,
				Found: fmt.Sprintf("the target has sent %d packets to %s again %s, of about %d",
					h.Retransmits, hostName(name), p.within(), packets),
				Why: "Each lost packet holds up the commands of its connection.",
				Fix: "ethtool -S and ip -s link on both sides, and counters of switches: errors, " +
					"drops, MTU",
			})
		}
		if h.Commands >= leastCommands && h.NearlyFull*fullCommands >= h.Commands {
			list = append(list, Finding{
				Check: "queues", Severity: Note,
				Found: fmt.Sprintf("%d of %d commands of %s found at least three quarters of "+
					"their queue in use %s (%d entries)", h.NearlyFull, h.Commands,
					hostName(name), p.within(), h.Depth),
				Why: "More commands may wait in the host, which no latency here shows.",
				Fix: "nvme connect --nr-io-queues=N --queue-size=N on the host; queue_depth of " +
					"the transport",
			})
		}
	}
	return list
}

// hostName returns the NQN of a host, quoted unless it is a word, to stand in a sentence.
func hostName(nqn string) string {
	if nqn == "" {
		return "other hosts"
	}
	if strings.ContainsFunc(nqn, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' }) {
		return strconv.QuoteToASCII(nqn)
	}
	return nqn
}

// kind is a set of commands counted together. The host "" stands for hosts without own counts.
type kind struct {
	host, subsystem string
	nsid            uint32
	operation       string
}

func (k kind) compare(o kind) int {
	return cmp.Or(strings.Compare(k.subsystem, o.subsystem), cmp.Compare(k.nsid, o.nsid),
		strings.Compare(k.operation, o.operation), strings.Compare(k.host, o.host))
}

// at reports whether limits apply to commands of the kind.
func (k kind) at(l limited) bool {
	if l.host != "" {
		return k.host == "" || k.host == l.host
	}
	return k.subsystem == l.subsystem && (l.nsid == 0 || l.nsid == k.nsid)
}

func kindOf(l *observed.Latency) kind { return kind{l.Host, l.Subsystem, l.NSID, l.Operation} }

// difference returns the growth between two samples. If there are many kinds, most had no commands,
// and are left out. After a host has left, its counters may be added to the other hosts, on one
// reactor or on all (observe.LatencyEntries); such a host is compared together with the others.
func difference(before, now []observed.Latency) map[kind]*observed.Spent {
	idle, gone := map[kind]bool{}, map[kind]bool{}
	rates.Each(now, before, kindOf, func(now, old *observed.Latency) {
		of := kindOf(old)
		idle[of] = now != nil && now.IOs == old.IOs
		gone[of] = of.host != "" && (now == nil || now.IOs < old.IOs)
	})
	sum := func(list []observed.Latency) map[kind]*observed.Spent {
		all := map[kind]*observed.Spent{}
		for i := range list {
			of := kindOf(&list[i])
			if idle[of] {
				continue
			}
			if gone[of] {
				of.host = ""
			}
			all[of] = cmp.Or(all[of], new(observed.Spent))
			all[of].Add(&list[i])
		}
		return all
	}
	old, all := sum(before), sum(now)
	for of, s := range all {
		all[of] = s.Since(old[of])
	}
	return all
}

func sorted[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
