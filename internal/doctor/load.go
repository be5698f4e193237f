package doctor

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nvmf-target/nvmf-target/internal/control"
)

// This file says in words what a target that runs has counted: where slow commands spend their
// time, which network loses packets, and which queues are too small.

const (
	// slowSeconds is the 99th percentile from which commands are reported, leastCommands how many
	// there must be, and mostSlow how many kinds of them are.
	slowSeconds   = 0.010
	leastCommands = 100
	mostSlow      = 10
	// A network that loses a packet of lossyPackets is reported once leastRetransmits were lost.
	lossyPackets, leastRetransmits = 1000, 10
	// A queue is too small if one of fullCommands finds it nearly full.
	fullCommands = 10
	packetSize   = 1448 // TCP data in a packet of Ethernet's MTU, 1,500 bytes
)

// stageAdvice is what the stages mean (ADR 0038).
var stageAdvice = map[string]struct{ why, fix string }{
	"wait": {
		"They wait at a limit, or for data memory.",
		"limits of the host, its subsystem or namespace; reactors.memory",
	},
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

// Load says what is wrong with what a target has counted, nil if nothing is. Of the latencies it
// needs the number of commands, the 99th percentile of the total, and the shares of the stages.
func Load(latencies []control.Latency, connections []control.Connection) []Finding {
	return append(slowCommands(latencies), hostFindings(connections)...)
}

// slowCommands names the stage in which most of their time was spent, the slowest first.
func slowCommands(counted []control.Latency) (list []Finding) {
	counted = slices.DeleteFunc(slices.Clone(counted), func(l control.Latency) bool {
		return l.IOs < leastCommands || l.Total.P99Seconds < slowSeconds
	})
	slices.SortStableFunc(counted, func(a, b control.Latency) int {
		return cmp.Compare(b.Total.P99Seconds, a.Total.P99Seconds)
	})
	for _, l := range counted[:min(len(counted), mostSlow)] {
		share := 0.0
		for _, s := range l.Stages {
			if s.Stage == l.Dominant {
				share = s.Share
			}
		}
		advice := stageAdvice[l.Dominant]
		list = append(list, Finding{
			Check: "latency", Severity: Note,
			Found: fmt.Sprintf("1 of 100 commands (%s) of %s for namespace %d of %s takes %.0f ms "+
				"or more; %.0f %% of the time is that of stage %s", l.Operation,
				cmp.Or(l.Host, "other hosts"), l.NSID, l.Subsystem, 1e3*l.Total.P99Seconds,
				100*share, l.Dominant),
			Why: advice.why, Fix: advice.fix,
		})
	}
	return list
}

// hostFindings tells of hosts whose network loses packets, and whose queues are too small.
func hostFindings(connections []control.Connection) (list []Finding) {
	hosts := map[string]*control.Connection{}
	var names []string
	for _, c := range connections {
		h := hosts[c.Host]
		if h == nil {
			h = &control.Connection{}
			hosts[c.Host] = h
			names = append(names, c.Host)
		}
		h.Retransmits += c.Retransmits
		h.ReadBytes += c.ReadBytes
		if c.QID != 0 {
			h.Commands += c.Commands
			h.NearlyFull += c.NearlyFull
			h.Depth = max(h.Depth, c.Depth)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		h := hosts[name]
		packets := h.Commands + h.ReadBytes/packetSize
		if h.Retransmits >= leastRetransmits && h.Retransmits*lossyPackets >= packets {
			list = append(list, Finding{
				Check: "network", Severity: Note,
				Found: fmt.Sprintf("the target has sent %d packets to %s again, of about %d",
					h.Retransmits, name, packets),
				Why: "Each lost packet holds up the commands of its connection.",
				Fix: "ethtool -S and ip -s link on both sides, and counters of switches: errors, " +
					"drops, MTU",
			})
		}
		if h.Commands >= leastCommands && h.NearlyFull*fullCommands >= h.Commands {
			list = append(list, Finding{
				Check: "queues", Severity: Note,
				Found: fmt.Sprintf("%d of %d commands of %s found at least three quarters of "+
					"their queue in use (%d entries)", h.NearlyFull, h.Commands, name, h.Depth),
				Why: "More commands may wait in the host, which no latency here shows.",
				Fix: "nvme connect --nr-io-queues=N --queue-size=N on the host; queue_depth of " +
					"the transport",
			})
		}
	}
	return list
}
