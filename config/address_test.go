package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testutil"
)

// TestListenAddress: what an address is recognized as, and what it is called.
func TestListenAddress(t *testing.T) {
	for _, tc := range []struct{ text, name, problem string }{
		{"10.0.0.1", "tcp 10.0.0.1:4420", ""},
		{"'::'", "tcp [::]:4420", ""},
		{"'::ffff:10.0.0.1'", "tcp 10.0.0.1:4420", ""},
		{"'::ffff:0.0.0.0'", "tcp 0.0.0.0:4420", ""},
		{"'::ffff:10.0.0.0/120'", "tcp 10.0.0.0/24:4420", ""},
		{"'::ffff:0:0/64'", "", "is not an IP address, network or interface"},
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
		{"tcp", "0.0.0.0", "'::'", true},
		{"tcp", "'::'", "10.0.0.1", true},
		{"tcp", "'::'", "'::ffff:10.0.0.1'", true},
		{"tcp", "0.0.0.0", "'::ffff:10.0.0.0/104'", true},
		{"rdma", "0.0.0.0", "'::'", true},
		{"tcp", "0.0.0.0", "10.0.0.0/24", true},
		{"tcp", "'::'", "10.0.0.0/24", true},
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

// TestAddressesOfOthers: what else listens on TCP conflicts with listeners, and with one another.
func TestAddressesOfOthers(t *testing.T) {
	const others = "metrics: {listen: '[::]:9500'}\nweb: {listen: '127.0.0.1:%d'}\n"
	for text, problem := range map[string]string{
		fmt.Sprintf(others, 9501): "",
		fmt.Sprintf(others, 9500): "web.listen: web.listen and metrics.listen are about the same " +
			"addresses. Delete one of the two: :: has all addresses, those of IPv4 too, with one",
		"metrics: {listen: '0.0.0.0:4420'}\n": "metrics.listen and tcp 127.0.0.1:4420 are about",
		"metrics: {listen: '[::ffff:127.0.0.1]:4420'}\n": "tcp 127.0.0.1:4420 is used already by " +
			"listeners[0]",
		"metrics: {listen: '[::1]:4420'}\n": "",
	} {
		_, err := parse(t, minimal+text)
		if problem == "" && err != nil || problem != "" && (err == nil ||
			!strings.Contains(err.Error(), problem)) {
			t.Errorf("%s: %v, want %s", text, err, problem)
		}
	}
}

// TestMappedAddresses: an address of IPv4 that is written as one of IPv6 is the same as any other.
func TestMappedAddresses(t *testing.T) {
	const text = `
listeners: [{transport: tcp, address: 10.0.0.1}]
hosts: [{nqn: nqn.2014-08.org.example:a, networks: ['::ffff:10.1.0.0/112', '::ffff:10.2.0.1/128']}]
discovery: {referrals: [{transport: tcp, address: '::ffff:192.0.2.1'}]}
subsystems:
- nqn: nqn.2014-08.org.example:s
  allow_any_host: true
  listeners: ['[::ffff:10.0.0.1]:4420']
  namespaces: [{nsid: 1, backend: ram, size: 1MiB}]
`
	c := testutil.Value(parse(t, text))(t)
	got := fmt.Sprint(c.Hosts[0].Networks, c.Discovery.Referrals[0].Address,
		c.Subsystems[0].Listeners)
	const want = "[10.1.0.0/16 10.2.0.1/32] 192.0.2.1 [tcp 10.0.0.1:4420]"
	testutil.Equal(t, got, want, "")
}
