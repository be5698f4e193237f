package app

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/google/uuid"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// This file turns configuration into what the packages below ask for. It opens nothing.

// rules are the checks of the wire formats' package that the configuration parser applies.
var rules = config.Rules{
	SubsystemNQN: func(nqn string) error {
		if nqn == nvme.DiscoveryNQN {
			return errors.New("the discovery subsystem exists by itself")
		}
		return nvme.ValidateNQN(nqn)
	},
	HostNQN: nvme.ValidateNQN,
}

// Parse checks the text of a configuration file; file is its name for messages. See config.Parse.
func Parse(file string, data []byte, environ []string) (*config.Config, error) {
	return config.Parse(file, data, environ, rules)
}

// reactorCPUs is the CPU of each reactor, -1 for a reactor that is not pinned.
func reactorCPUs(c config.Reactors) []int {
	if len(c.CPUs) > 0 {
		return c.CPUs
	}
	n := c.Count
	if n == 0 {
		n = max(1, runtime.NumCPU()/2)
	}
	cpus := make([]int, n)
	for i := range cpus {
		cpus[i] = -1
	}
	return cpus
}

// port is one configured listener. Its ID is the NVMe port ID in the discovery log.
type port struct {
	id   uint16
	addr fabric.Addr
	tos  uint8
	// fail says that the target must not run without this port.
	fail bool
}

func ports(listeners []config.Listener) ([]port, error) {
	out := make([]port, 0, len(listeners))
	for i, l := range listeners {
		ip, err := netip.ParseAddr(l.Address)
		if err != nil {
			return nil, fmt.Errorf("listeners[%d]: %w", i, err)
		}
		out = append(out, port{
			id: uint16(i + 1),
			addr: fabric.Addr{
				Transport: transportType(l.Transport),
				AddrPort:  netip.AddrPortFrom(ip, l.Port),
			},
			tos:  l.TOS,
			fail: l.OnUnavailable == "fail",
		})
	}
	return out, nil
}

func transportType(name string) nvme.TransportType {
	if name == "rdma" {
		return nvme.TransportRDMA
	}
	return nvme.TransportTCP
}

// uses says whether any listener is of the transport.
func uses(ps []port, t nvme.TransportType) bool {
	for _, p := range ps {
		if p.addr.Transport == t {
			return true
		}
	}
	return false
}

// namespaceIDs fills in the identifiers that the configuration gives; the target derives the
// others.
func namespaceIDs(n config.Namespace, out *target.NamespaceConfig) error {
	if n.UUID != "" {
		id, err := uuid.Parse(n.UUID)
		if err != nil {
			return err
		}
		out.UUID = id
	}
	if err := decodeHex(out.NGUID[:], n.NGUID); err != nil {
		return fmt.Errorf("nguid: %w", err)
	}
	if err := decodeHex(out.EUI64[:], n.EUI64); err != nil {
		return fmt.Errorf("eui64: %w", err)
	}
	return nil
}

func decodeHex(dst []byte, s string) error {
	if s == "" {
		return nil
	}
	if hex.DecodedLen(len(s)) != len(dst) {
		return fmt.Errorf("%q has not %d digits", s, 2*len(dst))
	}
	_, err := hex.Decode(dst, []byte(s))
	return err
}
