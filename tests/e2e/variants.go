package e2e

import (
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// Variant is a transport with its options.
type Variant struct {
	Name          string
	Options       Options
	TCP           host.TCP
	IsRDMA        bool
	NoFlowControl bool
	SmallPDUs     bool // H2CData and in-capsule data of at most SmallPDU bytes
}

// SmallPDU is the limit of the variant with small PDUs, in bytes.
const SmallPDU = 4096

// Variants are the transports with their options.
var Variants = []Variant{
	{Name: "tcp"},
	{Name: "tcp digests", TCP: host.TCP{HeaderDigest: true, DataDigest: true}, NoFlowControl: true},
	{
		Name: "tcp aligned", TCP: host.TCP{HeaderDigest: true, HPDA: 31}, SmallPDUs: true,
		Options: Options{TCP: func(c *tcp.Config) {
			c.MaxH2CData, c.InCapsuleSize = SmallPDU, SmallPDU
		}},
	},
	{Name: "rdma", IsRDMA: true},
	{Name: "rdma without flow control", IsRDMA: true, NoFlowControl: true},
	{Name: "iwarp", IsRDMA: true, Options: Options{IWARP: true}},
	{Name: "tcp tls", TCP: host.TCP{PSK: tlsPSK(TLSKey)}, Options: Options{TCP: RequireTLS}},
	{
		Name: "tcp tls digests", NoFlowControl: true, // also TLS_AES_256_GCM_SHA384
		TCP:     host.TCP{PSK: tlsPSK(tlsKey384), HeaderDigest: true, DataDigest: true},
		Options: Options{TCP: RequireTLS},
	},
}

// Plain is one variant per transport, for tests that do not depend on digests and keys.
var Plain = []Variant{Variants[0], Variants[3]}

// Transport returns the transport of a host to the listener of a variant.
func (h *Env) Transport(v Variant) host.Transport {
	if v.IsRDMA {
		return host.RDMA{Provider: h.Fabric.Provider("host"), Addr: h.Addr(nvme.TransportRDMA)}
	}
	v.TCP.Addr = h.Addr(nvme.TransportTCP)
	return v.TCP
}

// HostOptions returns the options of the first host for the first subsystem.
func (v Variant) HostOptions() host.Options {
	return host.Options{
		HostNQN: HostNQN, HostID: [16]byte{1, 2, 3}, SubNQN: SubNQN,
		NoFlowControl: v.NoFlowControl, Timeout: testutil.Patience,
	}
}
