package doctor

import (
	"slices"
	"testing"
)

func TestCPUs(t *testing.T) {
	const siblings = "/topology/thread_siblings_list"
	pinned := Target{Reactors: []int{2, 3}}
	free := Target{Reactors: []int{-1, -1}}
	twoNodes := files{
		nodeDir + "/node0/cpulist": "0-1", nodeDir + "/node1/cpulist": "2-3",
		nodeDir + "/online": "0-1",
	}
	governors := func(a, b string) files {
		return files{
			cpuDir + "/online": "1-2", cpuDir + "/cpu1/cpufreq/scaling_governor": a,
			cpuDir + "/cpu2/cpufreq/scaling_governor": b,
		}
	}
	for _, c := range []check{
		{"no clock", Machine.clock, nil, Target{}, nil},
		{
			"tsc", Machine.clock,
			files{clockSource + "/current_clocksource": "tsc"},
			Target{},
			[]string{"ok: tsc"},
		},
		{
			"hpet", Machine.clock,
			files{
				clockSource + "/current_clocksource":   "hpet",
				clockSource + "/available_clocksource": "hpet acpi_pm",
			},
			Target{},
			[]string{"warning: hpet | dmesg"},
		},
		{
			"tsc is there", Machine.clock,
			files{
				clockSource + "/current_clocksource":   "acpi_pm",
				clockSource + "/available_clocksource": "tsc acpi_pm",
			},
			Target{},
			[]string{"warning: acpi_pm | echo tsc > /sys/devices/system/clocksource/"},
		},
		{
			"no governor", Machine.governor,
			files{cpuDir + "/online": "0"},
			Target{},
			[]string{"ok: none"},
		},
		{
			"performance", Machine.governor, governors("performance", "performance"),
			Target{},
			[]string{"ok: performance"},
		},
		{
			"powersave", Machine.governor, governors("performance", "powersave"),
			Target{},
			[]string{"note: powersave on CPU 2 | cpupower"},
		},
		{
			"powersave elsewhere", Machine.governor, governors("powersave", "performance"), pinned,
			[]string{"ok: performance"},
		},
		{"nothing isolated", Machine.isolation, files{cpuDir + "/isolated": ""}, free, nil},
		{
			"isolated", Machine.isolation,
			files{cpuDir + "/isolated": "1-3"},
			pinned,
			[]string{"ok: 1-3"},
		},
		{
			"not isolated", Machine.isolation,
			files{cpuDir + "/isolated": "1-2"},
			pinned,
			[]string{"note: not isolated: 3 | isolcpus=2,3"},
		},
		{
			"not pinned", Machine.isolation,
			files{cpuDir + "/isolated": "2-3"},
			free,
			[]string{"note: not pinned | reactors.cpus: [2, 3]"},
		},
		{"cores unknown", Machine.cores, nil, free, nil},
		{
			"cores", Machine.cores,
			files{
				cpuDir + "/cpu2" + siblings: "0,2", cpuDir + "/cpu3" + siblings: "1,3",
			},
			pinned,
			[]string{"ok: "},
		},
		{
			"threads", Machine.cores,
			files{
				cpuDir + "/cpu2" + siblings: "2-3", cpuDir + "/cpu3" + siblings: "2-3",
			},
			pinned,
			[]string{"warning: CPUs 2 and 3 | reactors.cpus"},
		},
		{
			"one node", Machine.numa,
			files{
				nodeDir + "/node0/cpulist":                        "0-3",
				"sys/class/infiniband/mlx5_0/device/numa_node":    "0",
				"sys/class/net/eth0/device/numa_node":             "0",
				"sys/class/net/eth0/operstate":                    "up",
				"sys/class/net/unconnected/device/numa_node/none": "",
			},
			pinned, nil,
		},
		{
			"nodes", Machine.numa, with(twoNodes, files{
				"sys/class/infiniband/mlx5_0/device/numa_node": "1",
				"sys/class/net/eth0/device/numa_node":          "0",
				"sys/class/net/eth0/operstate":                 "up",
				"sys/class/net/eth1/device/numa_node":          "0",
				"sys/class/net/eth1/operstate":                 "down",
				"sys/class/net/eth2/device/numa_node":          "-1",
				"sys/class/net/eth2/operstate":                 "up",
			}),
			pinned,
			[]string{"ok: mlx5_0", "note: eth0 is on NUMA node 0 | reactors.cpus among 0-1"},
		},
	} {
		c.test(t)
	}
}

func TestParseCPUs(t *testing.T) {
	for text, want := range map[string][]int{
		"": nil, "3": {3}, "0-2": {0, 1, 2}, "0,2-3,8": {0, 2, 3, 8}, "x": nil,
	} {
		if got := parseCPUs(text); !slices.Equal(got, want) {
			t.Errorf("%q: %v", text, got)
		}
	}
}
