package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/rates"
)

// This file says in words what is wrong with a target that runs, from what it has counted between
// two looks: where slow commands spend their time, which network loses packets, and which queues
// are too small.

const (
	// slowSeconds is the 99th percentile from which commands are reported if there are at least
	// leastCommands, verySlowSeconds the one from which fewer are, since storage as slow as that
	// completes few. mostSlow is how many kinds of them are reported.
	slowSeconds, verySlowSeconds = 0.010, 1
	leastCommands                = 100
	mostSlow                     = 10
	// A network that loses a packet of lossyPackets is reported once leastRetransmits were lost.
	lossyPackets, leastRetransmits = 1000, 5
	// A queue is too small if one of fullCommands finds it nearly full.
	fullCommands = 10
	packetSize   = 1448 // TCP data in a packet of Ethernet's MTU, 1,500 bytes
)

// Sample is what a target has counted until one time.
type Sample struct {
	Time time.Time
	// Of Latencies the number of commands, the buckets, and the means of the stages are needed.
	Latencies   []control.Latency
	Connections []control.Connection
	// These have limits, and commands that wait for memory.
	Hosts      []control.Host
	Subsystems []control.Subsystem
	Namespaces []control.Namespace
	Reactors   []control.Reactor
	// Ports are those of the machine.
	Ports []PortCounter
}

// stageAdvice is what the stages mean (ADR 0038). What commands wait for is said by period.waits.
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

// Load says what was wrong with a target from one look at it to the next, nil if nothing was.
func Load(before, now *Sample) []Finding {
	p := period{before, now}
	list := append(p.slowCommands(), p.stalled()...)
	return append(append(list, p.hostFindings()...), p.ports()...)
}

// period is what happened between two samples.
type period struct{ before, now *Sample }

func (p *period) seconds() float64 { return p.now.Time.Sub(p.before.Time).Seconds() }

// within is "in the last 5 s". A time that grows with each look is told in steps.
func (p *period) within() string {
	s := max(int(p.seconds()+0.5), 1)
	if s >= 10 {
		s -= s % 10
	}
	return fmt.Sprintf("in the last %d s", s)
}

// slowCommands names the stage in which most of their time was spent, the slowest first.
func (p *period) slowCommands() (list []Finding) {
	type slow struct {
		of    kind
		spent *spent
		p99   float64
	}
	var found []slow
	for of, s := range difference(p.before.Latencies, p.now.Latencies) {
		p99 := s.took.Quantile(0.99)
		if p99 >= verySlowSeconds || p99 >= slowSeconds && s.commands >= leastCommands {
			found = append(found, slow{of, s, p99})
		}
	}
	slices.SortFunc(found, func(a, b slow) int {
		return cmp.Or(cmp.Compare(b.p99, a.p99), a.of.compare(b.of))
	})
	for _, f := range found[:min(len(found), mostSlow)] {
		stage, seconds, share := f.spent.most()
		a := stageAdvice[stage]
		if stage == "wait" {
			a = p.waits(f.of, seconds)
		}
		part := "1 of 100 commands"
		if f.spent.commands < leastCommands {
			part = fmt.Sprintf("the slowest of %d commands", f.spent.commands)
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

// waits says what commands have waited for, in all for so long: for their limits, or for memory,
// since there is nothing else. The time at a limit is known, of all commands that wait there.
func (p *period) waits(of kind, seconds float64) advice {
	before := limits(p.before)
	var most limited
	waited := 0.0
	for name, l := range limits(p.now) {
		w := l.WaitSeconds - before[name].WaitSeconds
		if of.at(name) && (w > waited || w == waited && most.compare(name) > 0) {
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

// limited is what has limits: a host, a subsystem, or a namespace.
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

func (l limited) compare(o limited) int { return strings.Compare(l.String(), o.String()) }

func limits(s *Sample) map[limited]control.Limits {
	all := map[limited]control.Limits{}
	add := func(name limited, l *control.Limits) {
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

// connections calls fn with each, and what it had counted before: nothing, if it is new.
func (p *period) connections(fn func(old, now *control.Connection)) {
	rates.Each(p.before.Connections, p.now.Connections, (*control.Connection).ID,
		func(old, c *control.Connection) {
			if old == nil || old.Commands > c.Commands || old.Host != c.Host {
				old = &control.Connection{}
			}
			fn(old, c)
		})
}

// stalled tells of hosts whose commands do not complete: a queue has some, and has received none
// since the last look. What does not complete is not counted among the latencies.
func (p *period) stalled() (list []Finding) {
	hosts := map[string]int{}
	p.connections(func(old, now *control.Connection) {
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

// hostFindings tells of hosts whose network loses packets, and whose queues are too small.
func (p *period) hostFindings() (list []Finding) {
	hosts := map[string]*control.Connection{}
	p.connections(func(old, now *control.Connection) {
		h := hosts[now.Host]
		if h == nil {
			h = &control.Connection{}
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

// hostName is what a host calls itself, quoted unless it is a word, so that it is no part of a
// sentence.
func hostName(nqn string) string {
	if nqn == "" {
		return "other hosts"
	}
	if strings.ContainsFunc(nqn, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' }) {
		return strconv.QuoteToASCII(nqn)
	}
	return nqn
}
