package e2e

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// variant is a transport with its options.
type variant struct {
	name          string
	options       options
	tcp           host.TCP
	rdma          host.RDMA
	isRDMA        bool
	noFlowControl bool
	smallPDUs     bool // H2CData and in-capsule data of at most smallPDU bytes
}

const smallPDU = 4096

var variants = []variant{
	{name: "tcp"},
	{name: "tcp digests", tcp: host.TCP{HeaderDigest: true, DataDigest: true}, noFlowControl: true},
	{
		name: "tcp aligned", tcp: host.TCP{HeaderDigest: true, HPDA: 31}, smallPDUs: true,
		options: options{tcp: func(c *tcp.Config) {
			c.MaxH2CData, c.InCapsuleSize = smallPDU, smallPDU
		}},
	},
	{name: "rdma", isRDMA: true},
	{name: "rdma invalidate", isRDMA: true, rdma: host.RDMA{Invalidate: true}, noFlowControl: true},
	{name: "iwarp", isRDMA: true, options: options{iwarp: true}},
	{name: "tcp tls", tcp: host.TCP{PSK: tlsPSK(tlsKey)}, options: options{tcp: requireTLS}},
	{
		name: "tcp tls digests", noFlowControl: true, // also TLS_AES_256_GCM_SHA384
		tcp:     host.TCP{PSK: tlsPSK(tlsKey384), HeaderDigest: true, DataDigest: true},
		options: options{tcp: requireTLS},
	},
}

// plain is one variant per transport, for tests that do not depend on digests and keys.
var plain = []variant{variants[0], variants[3]}

type testBody func(t *testing.T, h *env, v variant)

// eachVariant runs fn on a harness for each variant. change alters the options.
func eachVariant(t *testing.T, change func(*options), fn testBody) {
	runVariants(t, variants, change, fn)
}

// eachTransport is eachVariant with one variant per transport.
func eachTransport(t *testing.T, change func(*options), fn testBody) {
	runVariants(t, plain, change, fn)
}

func runVariants(t *testing.T, list []variant, change func(*options), fn testBody) {
	for _, v := range list {
		t.Run(v.name, func(t *testing.T) {
			if v.tcp.PSK != nil {
				needTLS(t)
			}
			o := v.options
			if change != nil {
				change(&o)
			}
			fn(t, newEnv(t, o), v)
		})
	}
}

func (h *env) transport(v variant) host.Transport {
	if v.isRDMA {
		v.rdma.Provider, v.rdma.Addr = h.Fabric.Provider("host"), h.Addr(nvme.TransportRDMA)
		return v.rdma
	}
	v.tcp.Addr = h.Addr(nvme.TransportTCP)
	return v.tcp
}

func (v variant) hostOptions() host.Options {
	return host.Options{
		HostNQN: hostNQN, HostID: [16]byte{1, 2, 3}, SubNQN: subNQN,
		NoFlowControl: v.noFlowControl,
	}
}
