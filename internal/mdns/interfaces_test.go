package mdns

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// addLink makes the interfaces v0, with an address, and v1, which receives the packets of v0.
func addLink(t *testing.T) {
	t.Helper()
	testutil.IP(t, "link add v0 type veth peer name v1")
	for file, value := range map[string]string{
		"ipv4/conf/v1/accept_local": "1", "ipv4/conf/v1/rp_filter": "0",
		"ipv6/conf/v0/accept_dad": "0", "ipv6/conf/v1/accept_dad": "0", // which takes a second
	} {
		if err := os.WriteFile("/proc/sys/net/"+file, []byte(value), 0o644); err != nil {
			t.Skip(err)
		}
	}
	testutil.IP(t, "link set v1 up")
	testutil.IP(t, "link set v0 up")
	testutil.IP(t, "addr add 10.9.8.1/24 dev v0")
	carrier(t, true)
}

// carrier waits until v0 has a carrier or none.
func carrier(t *testing.T, want bool) {
	t.Helper()
	testutil.Until(t, fmt.Sprintf("carrier: %v", want), func() bool {
		ifi := testutil.Value(net.InterfaceByName("v0"))(t)
		return (ifi.Flags&net.FlagRunning != 0) == want
	})
}

// TestInterfaces: services are announced again when an interface regains its carrier, and on an
// interface that replaces another one of the same name.
func TestInterfaces(t *testing.T) {
	if !testutil.OwnNetwork(t) {
		return
	}
	r := New(new(testutil.Log).Logger())
	r.pause = time.Millisecond
	defer r.Close()
	announce := func() { r.Set(map[string][]Service{"v0": {service("mdnstest", "10.9.8.1:4420")}}) }
	const record = "host-mdnstest.local. A 10.9.8.1"
	addLink(t)
	l, six := newListener(t, "udp4", "v1"), newListener(t, "udp6", "v1")
	announce()
	for range announcements {
		l.until(record)
	}
	six.until(record)
	testutil.IP(t, "link set v1 down")
	carrier(t, false)
	announce()
	testutil.IP(t, "link set v1 up")
	carrier(t, true)
	announce()
	l.until(record)

	testutil.IP(t, "link del v0")
	addLink(t)
	l = newListener(t, "udp4", "v1")
	announce()
	l.until(record)
}

// TestIPv6: a host with only IPv6 finds services at IPv6 addresses, including a link-local one.
func TestIPv6(t *testing.T) {
	if !testutil.OwnNetwork(t) {
		return
	}
	addLink(t)
	testutil.IP(t, "addr del 10.9.8.1/24 dev v0")
	testutil.IP(t, "addr add fd00::1/64 dev v0 nodad")
	r := New(new(testutil.Log).Logger())
	r.pause = time.Millisecond
	defer r.Close()
	l := newListener(t, "udp6", "v1")
	r.Set(map[string][]Service{"v0": {
		service("mdnstest", "[fd00::1]:4420"), service("mdnstest2", "[fe80::1]:4420"),
	}})
	for range announcements {
		l.until("host-mdnstest.local. AAAA fd00::1")
	}
	to := *groups["udp6"]
	to.Zone = "v1"
	testutil.Value(l.WriteToUDP(query(t, "_nvme-disc._tcp.local.", dnsmessage.TypePTR, 0), &to))(t)
	l.until("host-mdnstest2.local. AAAA fe80::1")
}

// TestTooMany: the first services of too many are announced, and the log reports it once.
func TestTooMany(t *testing.T) {
	if !testutil.OwnNetwork(t) {
		return
	}
	addLink(t)
	var list []Service
	for i := range maxServices + 1 {
		list = append(list, service(fmt.Sprint("mdnstest", i, "end"), "10.9.8.1:4420"))
	}
	var log testutil.Log
	r := New(log.Logger())
	defer r.Close()
	for range 2 {
		r.Set(map[string][]Service{"v0": list})
	}
	n := strings.Count(log.String(), "only the first 64 of 65 are announced")
	testutil.True(t, n == 1, "logged %d times: %s", n, &log)
	testutil.Equal(t, len(r.links["v0"].services), maxServices, "services")
	r.Set(map[string][]Service{"v0": list[1:]})
	testutil.True(t, len(r.failed) == 0, "%v", r.failed)
}
