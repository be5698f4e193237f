package app

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/netif"
)

// TestAddresses: which addresses a listener has.
func TestAddresses(t *testing.T) {
	m := netif.State{
		Addresses: addressList("lo 127.0.0.1", "lo ::1", "eth0 10.0.0.1", "eth0 fd00::1",
			"eth0 fe80::1%eth0", "eth1 10.0.1.1", "eth1 10.0.0.1", "eth2 10.0.0.3 down"),
		RDMA: map[string][]string{"mlx5_0": {"eth0", "eth1"}, "eth9": {"eth1"}},
	}
	for _, tc := range []struct{ listener, want string }{
		{"tcp, address: 10.0.0.0/24", "[10.0.0.1]"},
		{"tcp, address: 0.0.0.0/0", "[10.0.0.1 10.0.1.1]"},
		{"tcp, address: '::/0'", "[fd00::1]"},
		{"tcp, address: 127.0.0.0/8", "[127.0.0.1]"},
		{"tcp, address: 10.9.0.0/16", "no network interface has such an address"},
		{"tcp, address: eth0", "[10.0.0.1 fd00::1 fe80::1%eth0]"},
		{"rdma, address: eth0", "[10.0.0.1 fd00::1 fe80::1%eth0]"},
		{"rdma, address: mlx5_0", "[10.0.0.1 10.0.1.1 fd00::1 fe80::1%eth0]"},
		{"tcp, address: mlx5_0", "no network interface called mlx5_0"},
		{"rdma, address: mlx5_1", "no network interface or RDMA device called mlx5_1"},
		{"tcp, address: eth2", "eth2 is switched off"},
		{"tcp, address: 10.0.0.3", "eth2 is switched off"},
		{"tcp, address: 10.0.0.1", "[10.0.0.1]"},
		{"tcp, address: 10.7.7.7", "[10.7.7.7]"},
		{"tcp, address: 'fe80::1%eth0'", "[fe80::1%eth0]"},
		{"tcp, address: 0.0.0.0", "[0.0.0.0]"},
	} {
		c := parse(t, "{transport: "+tc.listener+"}").Listeners[0]
		ips, err := (&listener{name: c.Name, Listener: c}).addresses(&m)
		if got := fmt.Sprint(ips); err == nil && got != tc.want ||
			err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %s, %v", tc.listener, got, err)
		}
	}
}
