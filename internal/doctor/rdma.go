package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/rates"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

const infiniband = "sys/class/infiniband" // Documentation/ABI/stable/sysfs-class-infiniband

func (m Machine) memlock(t Target) []Finding {
	limit, limited := m.Memlock()
	switch {
	case t.Soft, !t.Device && len(m.list(infiniband)) == 0:
		return nil
	case !limited:
		return []Finding{ok("locked memory", "no limit")}
	case t.Memory > 0 && uint64(t.Memory) <= limit:
		return []Finding{ok("locked memory", "the limit is %d KiB, and the reactors need %d KiB",
			limit>>10, t.Memory>>10)}
	}
	f := Finding{
		"locked memory", Note, fmt.Sprintf("the limit of this user is %d KiB", limit>>10),
		"RDMA registers the memory of the reactors, which counts as locked.",
		"LimitMEMLOCK=infinity in the systemd unit, or ulimit -l unlimited as root before the " +
			"start",
	}
	if t.Memory > 0 {
		f.Found += fmt.Sprintf(", and the reactors need %d KiB", t.Memory>>10)
	}
	if t.RDMA {
		f.Severity = Error
	}
	return []Finding{f}
}

// rdmaFiles checks the device files through which programs use RDMA.
func (m Machine) rdmaFiles(t Target) (list []Finding) {
	const why = "Without it RDMA devices cannot be used; listeners that need one wait."
	switch {
	case t.IWARP:
		return []Finding{inSoftware("the target does iWARP itself (stack: soft-iwarp)")}
	case t.Soft:
		return m.soft("the target does RoCEv2 itself (stack: soft)")
	}
	if len(m.list(infiniband)) == 0 {
		switch {
		case !t.RDMA:
			return []Finding{ok("rdma", "no RDMA device, and no listener for RDMA")}
		case !t.Device:
			return m.soft("no RDMA device: the target does RoCEv2 itself (stack: soft)")
		}
		return []Finding{{
			"rdma", Warning, "no RDMA device", why,
			"load the driver of the adapter and ib_uverbs; without hardware: " +
				"rdma link add rxe0 type rxe netdev NAME",
		}}
	}
	needed := []string{"rdma_cm"}
	for _, name := range m.list("dev/infiniband") {
		if strings.HasPrefix(name, "uverbs") {
			needed = append(needed, name)
		}
	}
	if len(needed) == 1 {
		list = append(list, Finding{
			"rdma", Warning, "no /dev/infiniband/uverbs*", why, "modprobe ib_uverbs",
		})
	}
	for _, name := range needed {
		switch err := m.Access(m.path("dev/infiniband", name), unix.R_OK|unix.W_OK); err {
		case nil:
		case unix.ENOENT:
			list = append(list, Finding{
				"rdma", Warning, "no /dev/infiniband/" + name, why, "modprobe rdma_ucm",
			})
		default:
			list = append(list, Finding{
				"rdma", Warning, fmt.Sprintf("/dev/infiniband/%s: %v", name, err), why,
				"run the target in the group that owns the file (ls -l /dev/infiniband)",
			})
		}
	}
	if list == nil {
		list = append(list, ok("rdma", "this user may use /dev/infiniband/%s",
			strings.Join(needed, ", ")))
	}
	return list
}

func inSoftware(found string) Finding {
	return Finding{
		"rdma", Note, found,
		"The processor does the work of an adapter. NVMe/TCP is faster on the same network, " +
			"unless the hosts have RDMA adapters.",
		"if there is an adapter, load its driver and ib_uverbs",
	}
}

// soft checks the conditions of RoCEv2 without a device.
func (m Machine) soft(found string) []Finding {
	list := []Finding{inSoftware(found)}
	const enough = 4 << 20
	if n, err := strconv.Atoi(m.read("proc/sys/net/core/rmem_max")); err == nil && n < enough {
		list = append(list, Finding{
			"rdma", Note, fmt.Sprintf("net.core.rmem_max is %d KiB", n>>10),
			"The receive buffer of the UDP socket is no larger. Packets that find it full are " +
				"lost and repeated.",
			fmt.Sprintf("sysctl -w net.core.rmem_max=%d", enough),
		})
	}
	list = append(list, m.udp()...)
	for _, table := range []string{"proc/net/udp", "proc/net/udp6"} {
		for line := range strings.Lines(m.read(table)) {
			f := strings.Fields(line)
			if len(f) < 10 {
				continue
			}
			if a, known := parseAddress(f[1]); known && a.Port() == rocePort && f[9] == "0" {
				return append(list, Finding{
					"rdma", Warning, fmt.Sprintf("the kernel has UDP port %d", rocePort),
					"RoCEv2 without a device needs the port. rdma_rxe takes it in its network " +
						"namespace.",
					"give the listener an address of the device (rdma link), or remove the " +
						"devices of rdma_rxe",
				})
			}
		}
	}
	return list
}

// udp checks how adapters that are up handle UDP packets.
func (m Machine) udp() (list []Finding) {
	const net = "sys/class/net"
	for _, name := range m.list(net) {
		if m.read(net, name, "operstate") != "up" || len(m.list(net, name, "device")) == 0 {
			continue
		}
		off, err := m.FeaturesOff(name, "rx-gro", "tx-udp-segmentation")
		if err == nil && len(off) > 0 {
			list = append(list, Finding{
				"rdma", Note, name + " has switched off " + strings.Join(off, ", "),
				"RoCEv2 without a device sends and receives many packets at once. Without " +
					"these features the system handles them one by one.",
				fmt.Sprintf("ethtool -K %s %s on", name, strings.Join(off, " on ")),
			})
		}
		queues := 0
		for _, q := range m.list(net, name, "queues") {
			if strings.HasPrefix(q, "rx-") {
				queues++
			}
		}
		if ports, err := m.UDPPortsHashed(name); err == nil && !ports && queues > 1 {
			list = append(list, Finding{
				"rdma", Note, name + " chooses the receive queue of UDP packets by addresses only",
				fmt.Sprintf("All packets of a host arrive in the same one of its %d queues, which "+
					"one processor serves.", queues),
				fmt.Sprintf("ethtool -N %s rx-flow-hash udp4 sdfn", name),
			})
		}
	}
	return list
}

const rocePort = 4791 // of RoCEv2 (InfiniBand specification, annex A17)

func (m Machine) rdmaPorts(Target) (list []Finding) {
	for _, dev := range m.list(infiniband) {
		for _, port := range m.list(infiniband, dev, "ports") {
			p := rdmaPort{
				m, dev, port, []string{infiniband, dev, "ports", port}, dev + " port " + port,
			}
			list = append(list, p.state())
			// iWARP (node type RNIC) has no types of GIDs and no MTU of its own
			if p.read("link_layer") == "Ethernet" && strings.HasSuffix(m.read(infiniband, dev,
				"node_type"), ": CA") {
				list = append(append(list, p.gids()), p.mtu()...)
			}
			list = append(list, p.congestion()...)
		}
	}
	return list
}

type rdmaPort struct {
	m         Machine
	dev, port string
	dir       []string
	name      string
}

func (p rdmaPort) read(name string) string { return p.m.read(append(p.dir, name)...) }

// values returns the contents of readable files in a directory; empty GIDs are unreadable.
func (p rdmaPort) values(dir string) (list []string) {
	for _, name := range p.m.list(append(p.dir, dir)...) {
		if v := p.read(dir + "/" + name); v != "" && !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	return list
}

func (p rdmaPort) state() Finding {
	found := fmt.Sprintf("%s: %s, %s, %s", p.name, p.read("state"), p.read("link_layer"),
		p.read("rate"))
	if strings.HasSuffix(p.read("state"), ": ACTIVE") {
		return ok("rdma port", "%s", found)
	}
	fix := "check cable and switch, and see rdma link"
	if names := p.values("gid_attrs/ndevs"); len(names) > 0 {
		fix = "ip link set " + names[0] + " up, and check cable and switch"
	}
	return Finding{
		"rdma port", Warning, found, "Hosts can connect only through an active port.", fix,
	}
}

func (p rdmaPort) gids() Finding {
	types := p.values("gid_attrs/types")
	switch {
	case len(types) == 0:
		return Finding{
			"rdma gid", Warning, p.name + " has no GID",
			"RoCE addresses its packets with GIDs, which come from the addresses of the interface.",
			"ip address add ADDRESS/PREFIX dev NAME, and ip link set NAME up",
		}
	case !slices.Contains(types, "RoCE v2"):
		return Finding{
			"rdma gid", Warning, p.name + " has only GIDs of the type " + strings.Join(types, ", "),
			"RoCE v1 is not routed, and hosts that use RoCE v2 cannot connect.",
			"enable RoCE v2 in the driver or firmware of the adapter, or make hosts use RoCE v1",
		}
	}
	return ok("rdma gid", "%s: %s", p.name, strings.Join(types, ", "))
}

// roceHeaders is the part of the MTU of an interface that the kernel reserves for the headers of
// RoCE (iboe_get_mtu in include/rdma/ib_addr.h): GRH, UDP, BTH, XRC and AtomicETH headers and ICRC.
const roceHeaders = 40 + 8 + 12 + 4 + 28 + 4

func (p rdmaPort) mtu() (list []Finding) {
	for _, name := range p.values("gid_attrs/ndevs") {
		mtu, err := sys.Number(p.m.path("sys/class/net", name, "mtu"))
		if err != nil {
			continue
		}
		data := int64(4096)
		for data > 256 && data > mtu-roceHeaders {
			data /= 2
		}
		found := fmt.Sprintf("%s: %s has an MTU of %d, so packets carry up to %d bytes", p.name,
			name, mtu, data)
		if data == 4096 {
			list = append(list, ok("rdma mtu", "%s", found))
			continue
		}
		list = append(list, Finding{
			"rdma mtu", Note, found,
			"Small packets cost throughput, and hosts, target and switches must agree.",
			"ip link set " + name + " mtu 9000, here, on all hosts and on the switches between",
		})
	}
	return list
}

func (p rdmaPort) congestion() []Finding {
	var known bool
	var counted []string
	for _, c := range readPortCounters(p.m.path(infiniband)) {
		if c.Device != p.dev || c.Port != p.port || c.Counter != "port_xmit_wait" &&
			!slices.Contains(lostPackets, c.Counter) &&
			!slices.Contains(markedPackets, c.Counter) {
			continue
		}
		if known = true; c.Value != 0 {
			counted = append(counted, fmt.Sprintf("%s=%d", c.Counter, c.Value))
		}
	}
	switch {
	case !known:
		return nil
	case len(counted) == 0:
		return []Finding{ok("rdma congestion", "%s: no counter shows any", p.name)}
	}
	return []Finding{{
		"rdma congestion", Note, p.name + ": " + strings.Join(counted, " "),
		"Packets have waited or were lost, marked or repeated since the counters began; RoCE " +
			"becomes slow where that goes on.",
		"read them again under load (rdma statistic show; of a target that runs, doctor says " +
			"whether they rise); if they do, set up PFC or ECN on the port and the switches",
	}}
}

const (
	// leastLost is the number of lost packets from which a port is reported if no connection has
	// ended meanwhile. mostMarked is the number of packets per second that may be marked, as
	// happens on busy networks without loss.
	leastLost, mostMarked = 10, 100
)

// Counters of ports, as named by mlx5, bnxt_re, irdma and rxe: packets that were lost or repeated,
// and packets that were marked (ECN) or slowed senders down (CNP).
var (
	lostPackets = []string{
		"out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err",
		"rnr_nak_retry_err", "out_of_buffer", "port_xmit_discards", "to_retransmits",
		"seq_err_naks_rcvd", "rnr_naks_rcvd", "missing_resp", "oos_drop_count", "RetransSegs",
		"tcpRetransSegs", "out_of_seq_request", "rcvd_seq_err", "rcv_overflows", "rcvd_rnr_err",
		"completer_retry_err", "retry_exceeded_err", "retry_rnr_exceeded_err",
		"req_transport_retries_exceeded", "req_rnr_retries_exceeded", "max_retry_exceeded",
	}
	markedPackets = []string{
		"np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "rx_ecn_marked_pkts",
		"tx_cnp_pkts", "rx_cnp_pkts", "RxECNMrkd", "cnpSent", "cnpHandled",
	}
)

// ports reports ports of RDMA devices with rising counters of lost and of marked packets.
func (p *period) ports() (list []Finding) {
	type port struct{ lost, marked risen }
	ports := map[string]*port{}
	which := func(c *observed.PortCounter) observed.PortCounter {
		return observed.PortCounter{Device: c.Device, Port: c.Port, Counter: c.Counter}
	}
	rates.Each(p.before.Ports, p.now.Ports, which, func(old, c *observed.PortCounter) {
		if old == nil {
			return // a new device, with earlier counts
		}
		name := "port " + c.Port + " of " + c.Device
		if ports[name] == nil {
			ports[name] = &port{}
		}
		if slices.Contains(lostPackets, c.Counter) {
			ports[name].lost.add(c.Counter, rates.Rise(old.Value, c.Value))
		}
		if slices.Contains(markedPackets, c.Counter) {
			ports[name].marked.add(c.Counter, rates.Rise(old.Value, c.Value))
		}
	})
	ended := p.ended()
	for _, name := range sorted(ports) {
		if l := &ports[name].lost; l.sum >= leastLost || l.sum > 0 && ended > 0 {
			f := Finding{
				Check: "rdma network", Severity: Note,
				Found: fmt.Sprintf("%s: packets were lost or sent again %s: %s", name, p.within(),
					strings.Join(l.text, " ")),
				Why: "All that follows a lost packet is sent again, and commands wait for it.",
				Fix: "rdma statistic show on both sides: do they rise; cables, PFC or ECN on the " +
					"port and the switches",
			}
			if ended > 0 {
				f.Found += fmt.Sprintf("; RDMA controllers that have ended meanwhile: %d", ended)
				f.Why += " A connection ends when that has happened too often."
			}
			list = append(list, f)
		}
		if m := &ports[name].marked; float64(m.sum) >= mostMarked*p.seconds() && m.sum > 0 {
			list = append(list, Finding{
				Check: "rdma network", Severity: Note,
				Found: fmt.Sprintf("%s: packets were marked %s: %s", name, p.within(),
					strings.Join(m.text, " ")),
				Why: "Queues in the network are long; senders slow down to lose no packets.",
				Fix: "more links or paths between hosts and target; thresholds of ECN in switches",
			})
		}
	}
	return list
}

// ended returns the number of controllers over RDMA that have gone: Linux ends all connections of a
// controller together when one of them fails.
func (p *period) ended() (n int) {
	type controller struct {
		host, subsystem string
		cntlid          uint16
	}
	now := map[controller]bool{}
	for _, h := range p.now.Hosts {
		now[controller{h.NQN, h.Subsystem, h.CNTLID}] = true
	}
	for _, h := range p.before.Hosts {
		if h.Transport == "rdma" && !h.Discovery &&
			!now[controller{h.NQN, h.Subsystem, h.CNTLID}] {
			n++
		}
	}
	return n
}

// risen has the counters of a port that have risen, with their increase.
type risen struct {
	sum  uint64
	text []string
}

func (r *risen) add(counter string, n uint64) {
	if n > 0 {
		r.sum += n
		r.text = append(r.text, fmt.Sprintf("%s=%d", counter, n))
	}
}
