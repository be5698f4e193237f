package roce

import (
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
)

// A seq is a PSN that does not wrap around. Its lower 24 bits are the PSN on the wire.
type seq uint64

// firstSeq returns the sequence number of a connection's first PSN. It leaves room below, for PSNs
// that a peer claims to have come before.
func firstSeq(psn uint32) seq { return 1<<32 | seq(psn&packet.PSNMask) }

func (s seq) psn() uint32 { return uint32(s) & packet.PSNMask }

// near returns the sequence number of a PSN from the wire: the one within 2^23 of s (section
// 9.7.1).
func (s seq) near(psn uint32) seq { return s + seq(packet.DiffPSN(psn, s.psn())) }

// packets returns the number of PSNs of a message, at least one.
func packets(bytes, mtu uint32) seq {
	return seq(max(1, (uint64(bytes)+uint64(mtu)-1)/uint64(mtu)))
}

// rnrUnits are the times of RNR NAK timer codes in units of 10 µs (section 9.7.5.2.8, table 45).
var rnrUnits = [32]uint16{
	0: 65535, // 655.36 ms
	1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
	3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// shortRNR is the timer code of 1.28 ms.
const shortRNR = 14

func rnrTime(code uint8) time.Duration {
	return time.Duration(rnrUnits[code&31]) * 10 * time.Microsecond
}
