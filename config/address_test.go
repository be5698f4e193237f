package config

import (
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
