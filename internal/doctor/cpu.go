package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

const (
	clockSource = "sys/devices/system/clocksource/clocksource0"
	cpuDir      = "sys/devices/system/cpu"
	nodeDir     = "sys/devices/system/node"
)

// pinned returns the CPUs of pinned reactors.
func (t Target) pinned() []int {
	return slices.DeleteFunc(slices.Clone(t.Reactors), func(cpu int) bool { return cpu < 0 })
}

func (m Machine) clock(Target) []Finding {
	now := m.read(clockSource, "current_clocksource")
	switch {
	case now == "":
		return nil
	case now != "hpet" && now != "acpi_pm":
		return []Finding{ok("clock", "the clock source is %s", now)}
	}
	fix := "dmesg | grep -i tsc says why the kernel does not use the TSC"
	if slices.Contains(strings.Fields(m.read(clockSource, "available_clocksource")), "tsc") {
		fix = "echo tsc > /" + clockSource + "/current_clocksource"
	}
	return []Finding{{
		"clock", Warning, "the clock source is " + now,
		"Reading it takes a system call and a slow device register, and reactors read the clock " +
			"in every turn.", fix,
	}}
}

func (m Machine) governor(t Target) []Finding {
	cpus := t.pinned()
	if len(cpus) == 0 {
		cpus = parseCPUs(m.read(cpuDir, "online"))
	}
	slow := map[string][]int{}
	known := false
	for _, cpu := range cpus {
		g := m.read(cpuDir, fmt.Sprint("cpu", cpu), "cpufreq/scaling_governor")
		known = known || g != ""
		if g != "" && g != "performance" {
			slow[g] = append(slow[g], cpu)
		}
	}
	if !known {
		return []Finding{ok("cpu governor", "none: the kernel does not scale the frequency")}
	}
	if len(slow) == 0 {
		return []Finding{ok("cpu governor", "performance")}
	}
	var found []string
	for g, cpus := range slow {
		found = append(found, fmt.Sprintf("%s on CPU %s", g, cpuNames(cpus)))
	}
	slices.Sort(found)
	return []Finding{{
		"cpu governor", Note, strings.Join(found, "; "),
		"CPUs that slow down while a reactor sleeps serve the next commands later.",
		"cpupower frequency-set -g performance",
	}}
}

func (m Machine) isolation(t Target) []Finding {
	text := m.read(cpuDir, "isolated")
	isolated, cpus := parseCPUs(text), t.pinned()
	shared := slices.DeleteFunc(slices.Clone(cpus), func(cpu int) bool {
		return slices.Contains(isolated, cpu)
	})
	switch {
	case len(t.Reactors) == 0 || len(isolated) == 0 && len(cpus) == 0:
		return nil
	case len(cpus) == 0:
		return []Finding{{
			"cpu isolation", Note, "CPUs " + text + " are isolated, and the reactors are not " +
				"pinned",
			"The scheduler places nothing on isolated CPUs, so the reactors share the others.",
			fmt.Sprintf("reactors.cpus: [%s]", cpuNames(isolated)),
		}}
	case len(shared) > 0:
		return []Finding{{
			"cpu isolation", Note, "reactors are pinned to CPUs that are not isolated: " +
				cpuNames(shared),
			"The scheduler may place other programs on these CPUs, which delay the reactors.",
			"add the kernel parameter isolcpus=" + strings.ReplaceAll(cpuNames(cpus), " ", "") +
				", or ignore this if nothing else runs on this machine",
		}}
	}
	return []Finding{ok("cpu isolation", "all CPUs of reactors are isolated: %s", text)}
}

// cores finds reactors that share a core.
func (m Machine) cores(t Target) (list []Finding) {
	cpus := t.pinned()
	for i, cpu := range cpus {
		siblings := parseCPUs(m.read(cpuDir, fmt.Sprint("cpu", cpu),
			"topology/thread_siblings_list"))
		for _, other := range cpus[i+1:] {
			if slices.Contains(siblings, other) {
				list = append(list, Finding{
					"cpu cores", Warning, fmt.Sprintf("CPUs %d and %d, each with a reactor, are "+
						"threads of the same core", cpu, other),
					"The two reactors take the core from each other.",
					"reactors.cpus with one CPU of each core (lscpu -e lists them)",
				})
			}
		}
	}
	if len(cpus) > 0 && list == nil {
		list = append(list, ok("cpu cores", "each reactor has a core of its own"))
	}
	return list
}

// numa finds network devices on a NUMA node without a reactor.
func (m Machine) numa(t Target) (list []Finding) {
	onNode := map[int64][]int{}
	for _, name := range m.list(nodeDir) {
		var node int64
		if n, _ := fmt.Sscanf(name, "node%d", &node); n == 1 {
			onNode[node] = parseCPUs(m.read(nodeDir, name, "cpulist"))
		}
	}
	cpus := t.pinned()
	if len(onNode) < 2 || len(cpus) == 0 {
		return nil
	}
	for _, class := range []string{"infiniband", "net"} {
		for _, name := range m.list("sys/class", class) {
			dir := []string{"sys/class", class, name}
			node, err := sys.Number(m.path(append(dir, "device/numa_node")...))
			down := class == "net" && m.read(append(dir, "operstate")...) != "up"
			if err != nil || node < 0 || down {
				continue
			}
			near := slices.ContainsFunc(cpus, func(cpu int) bool {
				return slices.Contains(onNode[node], cpu)
			})
			if near {
				list = append(list, ok("numa", "%s is on NUMA node %d, as reactors are", name,
					node))
				continue
			}
			list = append(list, Finding{
				"numa", Note, fmt.Sprintf("%s is on NUMA node %d, and no reactor is", name, node),
				"Each packet passes the link between the nodes, which costs latency and bandwidth.",
				fmt.Sprintf("reactors.cpus among %s, if hosts connect through %s",
					m.read(nodeDir, fmt.Sprint("node", node), "cpulist"), name),
			})
		}
	}
	return list
}
