package capture

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// recorded are queues of a host that connected by RDMA and then, from the same port, by TCP.
func recorded() []observed.TraceQueue {
	at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	queue := func(qid uint16, transport, local, remote string, list ...observed.TraceCommand,
	) observed.TraceQueue {
		for i := range list {
			list[i].State, list[i].Start = "done", at.Add(time.Duration(i)*time.Millisecond)
			list[i].BackendSeconds, list[i].Number = 0.001, uint64(i+1)
		}
		return observed.TraceQueue{
			Time: at, ID: uint64(qid), Host: "nqn.2014-08.org.nvmexpress:uuid:1", CNTLID: 3,
			Subsystem: "nqn.2026-11.io.example:a", QID: qid, Transport: transport,
			Local: netip.MustParseAddrPort(local), Remote: netip.MustParseAddrPort(remote),
			Commands: list,
		}
	}
	read := observed.TraceCommand{
		Command: "Read", Opcode: 2, CID: 7, NSID: 1, LBA: 1<<32 + 8, Blocks: 8, Length: 4096,
	}
	write := observed.TraceCommand{
		Command: "Write", Opcode: 1, CID: 7, NSID: 1, LBA: 4096, Blocks: 256, FUA: true,
		Status: "LBA Out of Range", StatusCode: uint16(nvme.LBAOutOfRange | nvme.DNR),
	}
	late := observed.TraceCommand{Command: "Read", Opcode: 2, CID: 8, NSID: 2, Blocks: 1}
	io := queue(1, "rdma", "[fd00::1]:9500", "[fd00::2]:50000", read, write, late)
	io.Commands[2].State = "executing"
	return []observed.TraceQueue{
		queue(0, "rdma", "[fd00::1]:9500", "[fd00::2]:50000",
			observed.TraceCommand{Command: "Connect", Opcode: 0x7F, FabricsType: 1, CID: 1},
			observed.TraceCommand{Command: "Identify", Opcode: 6, CID: 2, CDW10: 1, Length: 4096}),
		io,
		queue(2, "tcp", "10.0.0.1:4420", "10.0.0.2:50000", read),
	}
}

// TestWireshark: Wireshark reads the opcode, block and status, and tells the queues apart although
// the RDMA queues share a port.
func TestWireshark(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.pcapng")
	f := testutil.Value(os.Create(file))(t)
	defer f.Close()
	c := testutil.Value(New(f))(t)
	for _, q := range recorded() {
		testutil.Must(t, c.Add(q))
	}
	tshark := testutil.Program(t, "scripts/deps.sh test installs it", "tshark")
	args := []string{"-n", "-r", file, "-T", "fields", "-E", "separator=|"}
	for _, field := range []string{
		"_ws.col.Protocol", "tcp.stream", "ipv6.src", "ip.src", "tcp.dstport",
		"nvme.fabrics.cmd.connect.qid", "nvme.fabrics.cmd.connect.data.subnqn", "nvme.cmd.opc",
		"nvme.cmd.identify.dword10.cns", "nvme.cmd.cid", "nvme.cmd.nsid", "nvme.cmd.slba",
		"nvme.cmd.nlb",
		"nvme.cqe.cid", "nvme.cqe.status.sct", "nvme.cqe.status.sc",
	} {
		args = append(args, "-e", field)
	}
	decode := exec.CommandContext(t.Context(), tshark, args...)
	var problem strings.Builder
	decode.Stderr = &problem
	out, err := decode.Output()
	testutil.MustTrue(t, err == nil, "%v %v", err, problem.String())
	got := "\n" + string(out)
	testutil.True(t, got == want, "tshark says\n%s, want\n%s", got, want)
}

// want has a line for each packet.
const want = `
NVMe/TCP|0|fd00::2||4420|0|nqn.2026-11.io.example:a|||||||||
NVMe/TCP|0|fd00::1||50000|||||||||0x0000|0x0000|0x0000
NVMe|0|fd00::2||4420|||0x06|0x00000001|0x0002|0x00000000|||||
NVMe|0|fd00::1||50000|||||||||0x0002|0x0000|0x0000
NVMe/TCP|1|fd00::2||4420|1|nqn.2026-11.io.example:a|||||||||
NVMe/TCP|1|fd00::1||50001|||||||||0x0000|0x0000|0x0000
NVMe|1|fd00::2||4420|||0x02||0x0007|0x00000001|0x0000000100000008|8|||
NVMe|1|fd00::1||50001|||||||||0x0007|0x0000|0x0000
NVMe|1|fd00::2||4420|||0x01||0x0007|0x00000001|0x0000000000001000|256|||
NVMe|1|fd00::1||50001|||||||||0x0007|0x0000|0x0080
NVMe|1|fd00::2||4420|||0x02||0x0008|0x00000002|0x0000000000000000|1|||
NVMe/TCP|2||10.0.0.2|4420|2|nqn.2026-11.io.example:a|||||||||
NVMe/TCP|2||10.0.0.1|50000|||||||||0x0000|0x0000|0x0000
NVMe|2||10.0.0.2|4420|||0x02||0x0007|0x00000001|0x0000000100000008|8|||
NVMe|2||10.0.0.1|50000|||||||||0x0007|0x0000|0x0000
`
