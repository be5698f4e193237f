package e2e

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// way is one way to connect.
type way struct {
	name          string
	options       options
	tcp           host.TCP
	rdma          host.RDMA
	isRDMA        bool
	noFlowControl bool
}

// ways are the ways that what matters is tried on.
var ways = []way{
	{name: "tcp"},
	{name: "tcp digests", tcp: host.TCP{HeaderDigest: true, DataDigest: true}, noFlowControl: true},
	{
		name: "tcp aligned", tcp: host.TCP{HeaderDigest: true, HPDA: 31},
		options: options{tcp: tcp.Config{MaxH2CData: 4096, InCapsuleSize: 4096}},
	},
	{name: "rdma", isRDMA: true},
	{name: "rdma invalidate", isRDMA: true, rdma: host.RDMA{Invalidate: true}, noFlowControl: true},
	{name: "iwarp", isRDMA: true, options: options{iwarp: true}},
}

// eachWay runs fn on a rig for each way. change alters the options.
func eachWay(t *testing.T, change func(*options), fn func(t *testing.T, r *rig, w way)) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			o := w.options
			if change != nil {
				change(&o)
			}
			fn(t, newRig(t, o), w)
		})
	}
}

func (r *rig) transport(w way) host.Transport {
	if w.isRDMA {
		w.rdma.Provider, w.rdma.Addr = r.fab.Provider("host"), r.addrs[nvme.TransportRDMA]
		return w.rdma
	}
	w.tcp.Addr = r.addrs[nvme.TransportTCP]
	return w.tcp
}

func (w way) hostOptions() host.Options {
	return host.Options{
		HostNQN: hostNQN, HostID: [16]byte{1, 2, 3}, SubNQN: subNQN,
		NoFlowControl: w.noFlowControl,
	}
}

// bothWays is one way per transport, for what does not depend on digests and keys.
func bothWays(t *testing.T, change func(*options), fn func(t *testing.T, r *rig, w way)) {
	for _, w := range ways {
		if w.name != "tcp" && w.name != "rdma" {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			o := w.options
			if change != nil {
				change(&o)
			}
			fn(t, newRig(t, o), w)
		})
	}
}
