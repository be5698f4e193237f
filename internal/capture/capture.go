// Package capture writes recorded commands as packets for Wireshark: IP, TCP and NVMe/TCP, even for
// RDMA.
package capture

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// capturePort is decoded as NVMe/TCP by Wireshark (preference nvme-tcp.subsystem_ports).
const capturePort = 4420

// flow is a connection in the file. seq counts the bytes of the host and of the target.
type flow struct {
	host, target netip.AddrPort
	seq          [2]uint32
}

// Writer writes a pcapng file.
type Writer struct {
	w     *pcapgo.NgWriter
	flows map[flowKey]*flow
	used  map[netip.AddrPort]bool // hosts of flows
}

// flowKey identifies a connection of one target.
type flowKey struct {
	id            uint64
	local, remote netip.AddrPort
}

// New begins a file.
func New(w io.Writer) (*Writer, error) {
	i := pcapgo.DefaultNgInterface
	i.LinkType = layers.LinkTypeRaw
	i.Comment = "made from the flight recorder of nvmf-target: without data, with headers that " +
		"were not on the network"
	ng, err := pcapgo.NewNgWriterInterface(w, i, pcapgo.DefaultNgWriterOptions)
	if err != nil {
		return nil, err
	}
	c := &Writer{w: ng, flows: map[flowKey]*flow{}, used: map[netip.AddrPort]bool{}}
	return c, ng.Flush()
}

// event is a capsule sent or received.
type event struct {
	at       time.Time
	response bool
	capsule  []byte
	comment  string
}

// Add writes the recorded commands of a queue.
func (c *Writer) Add(q observed.TraceQueue) error {
	f, events := c.flow(&q)
	for i := range q.Commands {
		events = append(events, capsules(&q.Commands[i])...)
	}
	// Responses come before commands at the same time, which may reuse their CIDs.
	slices.SortStableFunc(events, func(a, b event) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(order(a), order(b)))
	})
	for i := range events {
		if err := c.write(f, &events[i]); err != nil {
			return err
		}
	}
	return c.w.Flush()
}

func order(e event) int {
	if e.response {
		return 0
	}
	return 1
}

// flow returns the connection of a queue. For a new connection it also returns events that identify
// the queue, since Wireshark decodes commands only after a Connect command.
func (c *Writer) flow(q *observed.TraceQueue) (f *flow, events []event) {
	key := flowKey{q.ID, q.Local, q.Remote}
	if f := c.flows[key]; f != nil {
		return f, nil
	}
	f = &flow{host: q.Remote, target: netip.AddrPortFrom(q.Local.Addr(), capturePort)}
	for c.used[f.host] { // of RDMA, or of successive connections
		f.host = netip.AddrPortFrom(f.host.Addr(), max(f.host.Port()+1, 1024))
	}
	c.used[f.host], c.flows[key] = true, f
	at := q.Time
	for i := range q.Commands {
		if s := q.Commands[i].Start; s.Before(at) {
			at = s
		}
	}
	return f, connect(q, at.Add(-2))
}

// connect returns a Connect command for a queue. Unknown fields are 0.
func connect(q *observed.TraceQueue, at time.Time) []event {
	comment := fmt.Sprintf("made up, so that Wireshark knows queue %d of controller %d; the "+
		"connection is %s from %s to %s", q.QID, q.CNTLID, q.Transport, q.Remote, q.Local)
	if q.Reason != "" {
		comment += "; kept because: " + q.Reason
	}
	var head pdu.CapsuleCmd
	pdo := head.Set(&pdu.Params{}, nvme.ConnectDataSize)
	sqe := head.SQE()
	sqe.Connect().Set(q.QID, 0, 0, 0)
	sqe.SetFlags(1 << 6)
	sqe.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, nvme.ConnectDataSize)
	data := nvme.ConnectData{CNTLID: q.CNTLID}
	copy(data.SUBNQN[:len(data.SUBNQN)-1], q.Subsystem)
	copy(data.HOSTNQN[:len(data.HOSTNQN)-1], q.Host)
	capsule := append(make([]byte, 0, pdo+nvme.ConnectDataSize), head[:]...)
	capsule = nvme.Append(capsule[:pdo], &data)
	var cqe nvme.CQE
	cqe.Fill(uint64(q.CNTLID), 0, 0, nvme.Success)
	return []event{
		{at: at, capsule: capsule, comment: comment},
		{at: at.Add(1), response: true, capsule: response(&cqe), comment: "made up"},
	}
}

func response(cqe *nvme.CQE) []byte {
	var resp pdu.CapsuleResp
	resp.Set(&pdu.Params{}, cqe)
	return resp[:]
}

// capsules returns the one or two capsules of a command. Connect is left out, see connect.
func capsules(c *observed.TraceCommand) []event {
	fabrics := nvme.Opcode(c.Opcode) == nvme.FabricsOpcode
	if fabrics && nvme.FabricsType(c.FabricsType) == nvme.FabricsConnect {
		return nil
	}
	var head pdu.CapsuleCmd
	head.Set(&pdu.Params{}, 0)
	sqe := head.SQE()
	sqe.SetOpcode(nvme.Opcode(c.Opcode))
	sqe.SetFlags(1<<6 | uint8(c.Fused)&3)
	sqe.SetCID(c.CID)
	sqe.SetNSID(c.NSID)
	if fabrics {
		sqe.SetNSID(uint32(c.FabricsType))
	}
	if c.Length > 0 {
		sqe.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0, c.Length)
	}
	sqe.SetCDW64(10, uint64(c.CDW11)<<32|uint64(c.CDW10))
	sqe.SetCDW(12, uint32(c.CDW12))
	if c.Blocks > 0 {
		flags := nvme.RWFlags(0)
		if c.FUA {
			flags = nvme.RWFUA
		}
		sqe.RW().Set(c.LBA, uint32(c.Blocks), flags)
	}
	took := func(seconds float64) time.Duration { return time.Duration(seconds * 1e9) }
	wait, data := took(c.WaitSeconds), took(c.HostDataSeconds)
	backend, left := took(c.BackendSeconds), took(c.ResponseSeconds)
	stages := fmt.Sprintf("%s %s: wait %v, host_data %v, backend %v, response %v", c.Command,
		c.State, wait, data, backend, left)
	list := []event{{at: c.Start, capsule: head[:], comment: stages}}
	if c.State == "done" {
		var cqe nvme.CQE
		cqe.Fill(0, 0, c.CID, nvme.Status(c.StatusCode))
		list = append(list, event{
			at: c.Start.Add(max(wait+data+backend+left, 1)), response: true,
			capsule: response(&cqe), comment: stages,
		})
	}
	return list
}

func (c *Writer) write(f *flow, e *event) error {
	from, to, way := f.host, f.target, 0
	if e.response {
		from, to, way = f.target, f.host, 1
	}
	tcp := &layers.TCP{
		SrcPort: layers.TCPPort(from.Port()), DstPort: layers.TCPPort(to.Port()),
		Seq: f.seq[way] + 1, Ack: f.seq[1-way] + 1, ACK: true, PSH: true, Window: 0xFFFF,
	}
	f.seq[way] += uint32(len(e.capsule))
	var ip interface {
		gopacket.SerializableLayer
		gopacket.NetworkLayer
	} = &layers.IPv6{
		Version: 6, NextHeader: layers.IPProtocolTCP, HopLimit: 64,
		SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice(),
	}
	if from.Addr().Unmap().Is4() {
		ip = &layers.IPv4{
			Version: 4, Protocol: layers.IPProtocolTCP, TTL: 64,
			SrcIP: from.Addr().Unmap().AsSlice(), DstIP: to.Addr().Unmap().AsSlice(),
		}
	}
	if err := tcp.SetNetworkLayerForChecksum(ip); err != nil {
		return err
	}
	b := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{
		FixLengths: true, ComputeChecksums: true,
	}, ip, tcp, gopacket.Payload(e.capsule))
	if err != nil {
		return err
	}
	return c.w.WritePacketWithOptions(gopacket.CaptureInfo{
		Timestamp: e.at, CaptureLength: len(b.Bytes()), Length: len(b.Bytes()),
	}, b.Bytes(), pcapgo.NgPacketOptions{Comments: []string{e.comment}})
}
