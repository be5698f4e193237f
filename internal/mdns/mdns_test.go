package mdns

import (
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

func service(name, addr string) Service {
	return Service{
		Name: name, Type: "_nvme-disc._tcp", Host: "host-" + name,
		Addr: netip.MustParseAddrPort(addr), TXT: []string{"p=tcp", "nqn=nqn.2026-11.io:d"},
	}
}

// records formats the answers in a message.
func records(t *testing.T, b []byte) (list []string) {
	t.Helper()
	var p dnsmessage.Parser
	h, err := p.Start(b)
	testutil.MustTrue(t, err == nil && h.Response && h.Authoritative && p.SkipAllQuestions() == nil,
		"%+v, %v", h, err)
	all := testutil.Value(p.AllAnswers())(t)
	for _, a := range all {
		text := a.Header.Name.String() + " "
		switch r := a.Body.(type) {
		case *dnsmessage.PTRResource:
			text += "PTR " + r.PTR.String()
		case *dnsmessage.SRVResource:
			text += "SRV " + r.Target.String()
		case *dnsmessage.TXTResource:
			text += "TXT " + strings.Join(r.TXT, " ")
		case *dnsmessage.AResource:
			text += "A " + netip.AddrFrom4(r.A).String()
		case *dnsmessage.AAAAResource:
			text += "AAAA " + netip.AddrFrom16(r.AAAA).String()
		}
		testutil.True(t, (a.Header.Class&cacheFlush != 0) != strings.Contains(text, "PTR"),
			"%s: class %#x", text, a.Header.Class)
		if a.Header.TTL == 0 {
			text += " gone"
		}
		list = append(list, text)
	}
	return list
}

// TestMessages: messages contain all records of every service and fit a frame.
func TestMessages(t *testing.T) {
	var list []Service
	for i := range 58 {
		list = append(list, service(strings.Repeat("x", i+1), "[2001:db8::1]:4420"))
	}
	list = append(list, service(strings.Repeat("y", 70), "192.0.2.1:1")) // an invalid label
	n := 0
	for _, m := range messages(list, ttl) {
		testutil.True(t, len(m) <= maxMessage, "%d bytes", len(m))
		n += len(records(t, m))
	}
	testutil.Equal(t, n, 58*5, "records")
	got := records(t, messages(list[:1], 0)[0])
	testutil.MustEqual(t, len(got), 3, "%q", got)
	for i, want := range []string{
		"_nvme-disc._tcp.local. PTR x._nvme-disc._tcp.local. gone",
		"x._nvme-disc._tcp.local. SRV host-x.local. gone",
		"x._nvme-disc._tcp.local. TXT p=tcp nqn=nqn.2026-11.io:d gone",
	} {
		testutil.Equal(t, got[i], want, "")
	}
}

// query asks for a name; known are instances that the host knows, with their TTL.
func query(t *testing.T, name string, typ dnsmessage.Type, left uint32, known ...string) []byte {
	t.Helper()
	m := dnsmessage.Message{Questions: []dnsmessage.Question{{
		Name: dnsmessage.MustNewName(name), Type: typ, Class: dnsmessage.ClassINET,
	}}}
	for _, k := range known {
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{
				Name: dnsmessage.MustNewName(name), Class: dnsmessage.ClassINET, TTL: left,
			},
			Body: &dnsmessage.PTRResource{PTR: dnsmessage.MustNewName(k)},
		})
	}
	b := testutil.Value(m.Pack())(t)
	return b
}

// TestAsks: queries that are answered, and others.
func TestAsks(t *testing.T) {
	list := []Service{service("a", "192.0.2.1:4420"), service("b", "192.0.2.2:4420")}
	const typ, ptr = "_nvme-disc._tcp.local.", dnsmessage.TypePTR
	known := []string{"a." + typ, "B." + typ}
	for i, test := range []struct {
		packet []byte
		want   bool
	}{
		{query(t, typ, ptr, 0), true},
		{query(t, strings.ToUpper(typ), ptr, 0), true},
		{query(t, serviceTypes, ptr, 0), true},
		{query(t, "host-b.local.", dnsmessage.TypeA, 0), true},
		{query(t, "a."+typ, dnsmessage.TypeSRV, 0), true},
		{query(t, "_nvme-disc._udp.local.", ptr, 0), false},
		{query(t, typ, ptr, ttl/2, known...), false},
		{query(t, typ, ptr, ttl/2, known[0]), true},
		{query(t, typ, ptr, ttl/2-1, known...), true},
		{messages(list, ttl)[0], false},
		{nil, false},
		{query(t, typ, ptr, 0)[:20], false},
	} {
		testutil.Equal(t, asks(test.packet, list, questions(list)), test.want, "%d", i)
	}
}

// FuzzAsks: no packet causes a panic.
func FuzzAsks(f *testing.F) {
	list := []Service{service("a", "192.0.2.1:4420")}
	f.Add(messages(list, ttl)[0])
	f.Fuzz(func(_ *testing.T, b []byte) { asks(b, list, questions(list)) })
}

// listener receives the packets for a group on an interface.
type listener struct {
	t *testing.T
	*net.UDPConn
}

func newListener(t *testing.T, network, name string) *listener {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		t.Skipf("needs an interface lo that takes multicast: %v", err)
	}
	conn, err := net.ListenMulticastUDP(network, ifi, groups[network])
	if err != nil {
		t.Skipf("needs an interface lo that takes multicast: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &listener{t, conn}
}

// until waits for a record and returns the number of our messages before it.
func (l *listener) until(want string) (before int) {
	l.t.Helper()
	b := make([]byte, maxPacket)
	_ = l.SetReadDeadline(time.Now().Add(testutil.Patience))
	for {
		n, _, err := l.ReadFromUDPAddrPort(b)
		testutil.MustEqual(l.t, err, nil, "%q has not come", want)
		var p dnsmessage.Parser
		if h, err := p.Start(b[:n]); err != nil || !h.Response {
			continue
		}
		all := strings.Join(records(l.t, b[:n]), "\n")
		if strings.Contains(all, want) {
			return before
		}
		if strings.Contains(all, "host-mdnstest") {
			before++
		}
	}
}

// TestResponder: a host on the network learns of services and of their withdrawal, and gets an
// answer to a query.
func TestResponder(t *testing.T) {
	l := newListener(t, "udp4", "lo")
	r := New(new(testutil.Log).Logger())
	r.pause = time.Millisecond
	a, b := service("mdnstesta", "127.0.0.1:4420"), service("mdnstestb", "127.0.0.1:4421")
	r.Set(map[string][]Service{"lo": {a}, "absent0": {a}})
	defer r.Close()
	if len(r.links) == 0 {
		t.Skip("multicast does not work on the loopback interface")
	}
	l.until("host-mdnstesta.local. A 127.0.0.1")
	r.Set(map[string][]Service{"lo": {b}})
	l.until("SRV host-mdnstesta.local. gone")
	l.until("host-mdnstestb.local. A 127.0.0.1")
	l.until("host-mdnstestb.local. A 127.0.0.1") // once more
	l.ask()
	l.until("host-mdnstestb.local. A 127.0.0.1")
	r.Close()
	l.until("SRV host-mdnstestb.local. gone")
	testutil.Equal(t, len(r.links), 0, "a link is left")
}

// ask queries all services.
func (l *listener) ask() {
	l.t.Helper()
	testutil.Value(l.WriteToUDP(query(l.t, "_nvme-disc._tcp.local.", dnsmessage.TypePTR, 0),
		groups["udp4"]))(l.t)
}

// TestPause: no query is answered in the pause after an announcement.
func TestPause(t *testing.T) {
	l := newListener(t, "udp4", "lo")
	r := New(new(testutil.Log).Logger())
	r.pause = time.Hour
	r.Set(map[string][]Service{"lo": {service("mdnsteste", "127.0.0.1:4420")}})
	defer r.Close()
	lo := r.links["lo"]
	if lo == nil {
		t.Skip("multicast does not work on the loopback interface")
	}
	l.until("host-mdnsteste.local. A 127.0.0.1")
	for range perSecond { // the listener gets them as well, and has room for a few hundred
		l.ask()
	}
	testutil.Until(t, "a question", func() bool { return len(lo.kick) > 0 })
	r.Close()
	n := l.until("SRV host-mdnsteste.local. gone")
	testutil.True(t, n == 0, "%d answers", n)
}

// TestWithdrawn: an answer in progress does not announce a withdrawn service again.
func TestWithdrawn(t *testing.T) {
	l := newListener(t, "udp4", "lo")
	r := New(new(testutil.Log).Logger())
	r.pause = time.Hour
	services := []Service{
		service("mdnstestc", "127.0.0.1:4420"), service("mdnstestd", "127.0.0.1:4421"),
	}
	r.Set(map[string][]Service{"lo": services[:1]})
	defer r.Close()
	lo := r.links["lo"]
	if lo == nil {
		t.Skip("multicast does not work on the loopback interface")
	}
	last := "" // that was withdrawn
	b := make([]byte, maxPacket)
	_ = l.SetReadDeadline(time.Now().Add(testutil.Patience))
	for i := range 100 {
		old, next := services[i%2], services[(i+1)%2]
		var both sync.WaitGroup
		both.Go(func() { lo.tell() })
		both.Go(func() { r.Set(map[string][]Service{"lo": {next}}) })
		both.Wait()
		for last != old.Host {
			n, _, err := l.ReadFromUDPAddrPort(b)
			testutil.Must(t, err)
			var p dnsmessage.Parser
			if h, err := p.Start(b[:n]); err != nil || !h.Response {
				continue
			}
			for _, record := range records(t, b[:n]) {
				_, host, srv := strings.Cut(record, " SRV ")
				name, gone := strings.CutSuffix(host, ".local. gone")
				name = strings.TrimSuffix(name, ".local.")
				switch {
				case !srv || !strings.HasPrefix(name, "host-mdnstest"):
				case gone:
					last = name
				case name == last:
					t.Fatalf("%d: %s is there again", i, name)
				}
			}
		}
	}
}

// TestUnicast: unicast packets go to the program that had the port first.
func TestUnicast(t *testing.T) {
	if !testutil.OwnNetwork(t) {
		return
	}
	testutil.IP(t, "link set lo up")
	shared := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		})
	}}
	other := testutil.Value(shared.ListenPacket(t.Context(), "udp4", "0.0.0.0:5353"))(t)
	defer func() { _ = other.Close() }()
	r := New(new(testutil.Log).Logger())
	r.Set(map[string][]Service{"lo": {service("mdnstestf", "127.0.0.1:4420")}})
	defer r.Close()
	testutil.MustTrue(t, len(r.links) != 0, "no link")
	c, err := net.Dial("udp4", "127.0.0.1:5353")
	if err == nil {
		_, err = c.Write([]byte("unicast"))
	}
	testutil.Must(t, err)
	b := make([]byte, 100)
	for string(b[:7]) != "unicast" { // otherwise it is a message of the responder to the group
		_ = other.SetReadDeadline(time.Now().Add(testutil.Patience))
		if _, _, err := other.ReadFrom(b); err != nil {
			t.Fatal(err)
		}
	}
}
