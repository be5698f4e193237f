package subnet

import (
	"net/netip"
	"testing"
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
		if got := Text(n); got != want || Of(n) != n {
			t.Errorf("%s is in %s, want %s", addr, got, want)
		}
	}
	if n := Of(netip.Addr{}); n.IsValid() {
		t.Errorf("no address is in %v", n)
	}
}
