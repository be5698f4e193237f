package doctor

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

func TestRDMA(t *testing.T) {
	const port = infiniband + "/rxe0/ports/1"
	good := files{
		infiniband + "/rxe0/node_type": "1: CA",
		port + "/state":                "4: ACTIVE", port + "/link_layer": "Ethernet",
		port + "/rate":                         "100 Gb/sec (4X EDR)",
		port + "/gid_attrs/types/0":            "IB/RoCE v1",
		port + "/gid_attrs/types/1":            "RoCE v2",
		port + "/gid_attrs/types/2":            "",
		port + "/gid_attrs/ndevs/0":            "eth0",
		port + "/gid_attrs/ndevs/1":            "eth0",
		"sys/class/net/eth0/mtu":               "9000",
		port + "/hw_counters/out_of_sequence":  "0",
		port + "/counters/port_xmit_wait":      "N/A (no PMA)",
		port + "/counters/port_xmit_discards":  "0",
		port + "/hw_counters/rx_read_requests": "7",
		"dev/infiniband/rdma_cm":               "", "dev/infiniband/uverbs0": "",
	}
	without := func(name string) files {
		list := maps.Clone(good)
		delete(list, name)
		return list
	}
	state, gid, mtu := "ok: rxe0 port 1: 4: ACTIVE, Ethernet, 100 Gb/sec",
		"ok: rxe0 port 1: IB/RoCE v1, RoCE v2", "ok: eth0 has an MTU of 9000"
	quiet := "ok: no counter"
	needed := Target{RDMA: true}
	for _, c := range []check{
		{"no device", Machine.rdmaFiles, nil, Target{}, []string{"ok: no RDMA device"}},
		{
			"no device, wanted", Machine.rdmaFiles, nil, needed,
			[]string{"warning: no RDMA device | rdma link add"},
		},
		{"files", Machine.rdmaFiles, good, needed, []string{"ok: rdma_cm, uverbs0"}},
		{
			"no rdma_cm", Machine.rdmaFiles, without("dev/infiniband/rdma_cm"), needed,
			[]string{"warning: no /dev/infiniband/rdma_cm | modprobe rdma_ucm"},
		},
		{
			"no uverbs", Machine.rdmaFiles, without("dev/infiniband/uverbs0"), needed,
			[]string{"warning: no /dev/infiniband/uverbs* | modprobe ib_uverbs"},
		},
		{
			"no permission", Machine.rdmaFiles,
			with(good, files{"dev/infiniband/uverbs0": "denied"}),
			needed,
			[]string{"warning: uverbs0: permission denied | group"},
		},
		{"no ports", Machine.rdmaPorts, nil, needed, nil},
		{"port", Machine.rdmaPorts, good, needed, []string{state, gid, mtu, quiet}},
		{
			"port down", Machine.rdmaPorts, with(good, files{port + "/state": "1: DOWN"}), needed,
			[]string{"warning: 1: DOWN | ip link set eth0 up", gid, mtu, quiet},
		},
		{
			"iWARP", Machine.rdmaPorts, with(good, files{infiniband + "/rxe0/node_type": "4: " +
				"RNIC"}),
			needed,
			[]string{state, quiet},
		},
		{
			"RoCE v1", Machine.rdmaPorts, without(port + "/gid_attrs/types/1"), needed,
			[]string{state, "warning: only GIDs of the type IB/RoCE v1", mtu, quiet},
		},
		{
			"no GID", Machine.rdmaPorts, with(good, files{
				port + "/gid_attrs/types/0": "", port + "/gid_attrs/types/1": "",
			}),
			needed,
			[]string{state, "warning: has no GID | ip address add", mtu, quiet},
		},
		{
			"no counters", Machine.rdmaPorts,
			files{port + "/state": "4: ACTIVE"},
			needed,
			[]string{"ok: rxe0 port 1: 4: ACTIVE"},
		},
		{
			"MTU", Machine.rdmaPorts, with(good, files{"sys/class/net/eth0/mtu": "1500"}), needed,
			[]string{state, gid, "note: packets carry up to 1024 bytes | ip link set eth0 " +
				"mtu", quiet},
		},
		{
			"congestion", Machine.rdmaPorts, with(good, files{
				port + "/hw_counters/out_of_sequence": "12", port + "/counters/port_xmit_wait": "3",
			}),
			needed,
			[]string{state, gid, mtu, "note: port_xmit_wait=3 out_of_sequence=12 | rdma statistic"},
		},
	} {
		c.test(t)
	}
	// the MTU at which the kernel takes the next size
	for wire, data := range map[int]int{4192: 4096, 4191: 2048, 1120: 1024, 1119: 512, 300: 256} {
		m := machine(t, with(good, files{"sys/class/net/eth0/mtu": fmt.Sprint(wire)}))
		found := m.rdmaPorts(needed)[2].Found
		if !strings.Contains(found, fmt.Sprintf("up to %d bytes", data)) {
			t.Errorf("MTU %d: %s", wire, found)
		}
	}
}
