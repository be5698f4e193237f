package config

import (
	"fmt"
	"strings"
	"testing"
)

// TestListenAddress: what an address is recognized as, and what it is called.
func TestListenAddress(t *testing.T) {
	for _, tc := range []struct{ text, name, problem string }{
		{"10.0.0.1", "tcp 10.0.0.1:4420", ""},
		{"'::'", "tcp [::]:4420", ""},
		{"'fe80::1%eth0'", "tcp [fe80::1%eth0]:4420", ""},
		{"10.0.0.0/24", "tcp 10.0.0.0/24:4420", ""},
		{"'fd00::/64'", "tcp fd00::/64:4420", ""},
		{"eth0", "tcp eth0:4420", ""},
		{"eth0.100", "tcp eth0.100:4420", ""},
		{"10.0.0.5/24", "", "Write 10.0.0.0/24 for all addresses in the network, or 10.0.0.5"},
		{"224.0.0.0/4", "", "multicast"},
		{"10.0.0.0/33", "", "is not an IP address, network or interface"},
		{"'10.0.0'", "", "is not an IP address, network or interface"},
		{"storage.example", "", "host names are not resolved"},
		{"eth 0", "", "is not an IP address, network or interface"},
		{"eth0:1", "", "is not an IP address, network or interface"},
		{strings.Repeat("e", 16), "", "more than 15 characters"},
		{strings.Repeat("e", 64), "", "is not an IP address, network or interface"},
	} {
		c, err := parse(t, strings.Replace(minimal, "127.0.0.1", tc.text, 1))
		switch {
		case tc.problem == "" && (err != nil || c.Listeners[0].Name != tc.name):
			t.Errorf("%s: %+v, %v", tc.text, c, err)
		case tc.problem != "" && (err == nil || !strings.Contains(err.Error(), tc.problem)):
			t.Errorf("%s: %v, want %s", tc.text, err, tc.problem)
		}
	}
}

// TestListenersAtWildcards: a wildcard leaves no address to other listeners of its port.
func TestListenersAtWildcards(t *testing.T) {
	for _, tc := range []struct {
		transport, a, b string
		conflict        bool
	}{
		{"tcp", "0.0.0.0", "10.0.0.1", true},
		{"tcp", "0.0.0.0", "'::1'", false},
		{"tcp", "0.0.0.0", "'::'", false},
		{"rdma", "0.0.0.0", "'::'", true},
		{"tcp", "0.0.0.0", "10.0.0.0/24", true},
		{"tcp", "'::'", "10.0.0.0/24", false},
		{"rdma", "'::'", "10.0.0.0/24", true},
		{"tcp", "'::'", "eth0", true},
		{"tcp", "10.0.0.0/24", "10.0.0.1", false},
		{"tcp", "eth0", "10.0.0.0/8", false},
	} {
		for _, order := range [][2]string{{tc.a, tc.b}, {tc.b, tc.a}} {
			for _, port := range []int{4420, 4421} {
				list := fmt.Sprintf("{transport: %s, address: %s}, {transport: %[1]s, "+
					"address: %[3]s, port: %[4]d}", tc.transport, order[0], order[1], port)
				_, err := parse(t, strings.Replace(minimal,
					"{transport: tcp, address: 127.0.0.1}", list, 1))
				conflict := tc.conflict && port == 4420
				if conflict != (err != nil) || err != nil &&
					!strings.Contains(err.Error(), "are about the same addresses") {
					t.Errorf("%s: %v", list, err)
				}
			}
		}
	}
}
