package subnet

import (
	"net/netip"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestOf(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.7":                   "192.0.2.7",
		"::ffff:192.0.2.7":            "192.0.2.7",
		"2001:db8:1:2:3:4:5:6":        "2001:db8:1:2::/64",
		"2001:db8:1:2:ffff:ffff::":    "2001:db8:1:2::/64",
		"2001:db8:1:3::1":             "2001:db8:1:3::/64",
		"fe80::1234:5678:9abc%eth0":   "fe80::%eth0/64",
		"fe80::ffff:ffff:ffff:1%eth1": "fe80::%eth1/64",
		"::1":                         "::/64",
	} {
		n := Of(netip.MustParseAddr(addr))
		got := Text(n)
		testutil.True(t, got == want && Of(n) == n, "%s is in %s, want %s", addr, got, want)
	}
	n := Of(netip.Addr{})
	testutil.True(t, !n.IsValid(), "no address is in %v", n)
}
