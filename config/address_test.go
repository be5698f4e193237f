package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
				testutil.True(t, conflict == (err != nil) &&
					(err == nil || strings.Contains(err.Error(), "are about the same addresses")),
					"%s: %v", list, err)
			}
		}
	}
}

// TestPortOfIWARP: without a device iWARP has a TCP port, which a listener for TCP may want.
func TestPortOfIWARP(t *testing.T) {
	for _, stack := range []string{"device", "soft", "soft-iwarp"} {
		for _, port := range []int{4420, 4421} {
			list := fmt.Sprintf("{transport: tcp, address: 10.0.0.1}, {transport: rdma, "+
				"address: 10.0.0.1, stack: %s, port: %d}", stack, port)
			_, err := parse(t, strings.Replace(minimal, "{transport: tcp, address: 127.0.0.1}",
				list, 1))
			if stack == "soft-iwarp" && port == 4420 {
				testutil.Fails(t, err, "iWARP is over TCP", "%s", list)
				continue
			}
			testutil.True(t, err == nil, "%s: %v", list, err)
		}
	}
}

// TestMappedAddresses: an IPv4 address written as one of IPv6 is the same address.
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
