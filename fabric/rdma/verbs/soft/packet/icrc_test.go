package packet

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// golden are packets of other implementations, from the IP header to the ICRC.
var golden = []struct{ name, packet string }{
	{
		"CNP of a ConnectX-4 Lx (identification 0x718c)", `
		45c2003c 718c4000 40119161 0a001101 0a001201 000012b7 00280000
		8100ffff 40000118 00000000 00000000 00000000 00000000 00000000 82fd002a`,
	},
	{
		"UC SEND (identification 0x478)", `
		45010040 04784000 4011b4d5 c0a80007 c0a80007 c00012b7 002caca2
		2460ffff 000000d3 00cf1710 4630818b e28935d9 0e9a9550 5401be88 5e500000 78f353f3`,
	},
	{
		"READ request of rxe, Linux 7.3 (identification 0x8e86)", `
		4500003c 8e864000 40119828 0a000002 0a000001 f1a512b7 00280000
		0c00ffff 00000014 8039c08a 00005500 0004d329 00000522 00002329 90ef2046`,
	},
	{
		"ACK of rxe, Linux 7.3, IPv6", `
		60000000 001c1140 fd000000 00000000 00000000 00000001
		fd000000 00000000 00000000 00000002 c12112b7 001c0000
		1100ffff 00000011 00d19676 1f000001 0ba29f3f`,
	},
}

// split takes a packet with its IP header apart.
func split(b []byte) (v ICRC, id uint16, packet []byte) {
	ip := ip4Size
	var src, dst netip.Addr
	if b[0]>>4 == 4 {
		src, _ = netip.AddrFromSlice(b[12:16])
		dst, _ = netip.AddrFromSlice(b[16:20])
		id = binary.BigEndian.Uint16(b[4:])
	} else {
		ip = ip6Size
		src, _ = netip.AddrFromSlice(b[8:24])
		dst, _ = netip.AddrFromSlice(b[24:40])
	}
	v.Set(src, dst, binary.BigEndian.Uint16(b[ip:]), binary.BigEndian.Uint16(b[ip+2:]))
	return v, id, b[ip+udpSize:]
}

func TestICRCGolden(t *testing.T) {
	for _, g := range golden {
		v, id, b := split(unhex(t, g.packet))
		v.Identify(id) // as if the socket had told
		if !v.Check(b, false) {
			n := len(b) - ICRCSize
			t.Errorf("%s: ICRC %08x, computed %08x", g.name, binary.LittleEndian.Uint32(b[n:]),
				v.sum(b[:n]))
		}
	}
}

// The check finds the identification of a packet that does not have 0.
func TestICRCIdentification(t *testing.T) {
	for _, g := range golden {
		v, id, b := split(unhex(t, g.packet))
		n := len(b) - ICRCSize
		got, ok := identification(v.sum(b[:n])^binary.LittleEndian.Uint32(b[n:]), n)
		if v.ip == ip4Size && (!ok || got != id) {
			t.Errorf("%s: identification %#x %v, want %#x", g.name, got, ok, id)
		}
		if !v.Check(b, true) || v.Check(b, false) != (id == 0) {
			t.Errorf("%s: any identification %v, only 0 %v", g.name, v.Check(b, true),
				v.Check(b, false))
		}
	}

	r := rand.New(rand.NewPCG(1, 2))
	var v ICRC
	v.Set(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 50000, 4791)
	b := make([]byte, MaxSize+ICRCSize)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	for n := BTHSize; n <= MaxSize; n += 4 {
		want := uint16(r.Uint32())
		v.Identify(want)
		with := v.sum(b[:n])
		v.Identify(0)
		if got, ok := identification(with^v.sum(b[:n]), n); !ok || got != want {
			t.Fatalf("%d bytes: %#x %v, want %#x", n, got, ok, want)
		}
	}
}

// A change that passes needs a fitting identification: about one of 65,536 does. A change of one
// byte never does, in any length.
func TestICRCCorruption(t *testing.T) {
	var v ICRC
	v.Set(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 50000, 4791)
	r := rand.New(rand.NewPCG(3, 4))
	b := make([]byte, 256+BTHSize+ICRCSize)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	v.Put(b)
	passed := 0
	for range 1 << 16 {
		c := [2]int{r.IntN(len(b)), r.IntN(len(b))}
		x := [2]byte{byte(1 + r.IntN(255)), byte(1 + r.IntN(255))}
		b[c[0]] ^= x[0]
		b[c[1]] ^= x[1]
		if v.Check(b, true) && c[0] != 4 && c[1] != 4 && c[0] != c[1] {
			passed++
		}
		if v.Check(b, false) && c[0] != 4 && c[1] != 4 && c[0] != c[1] {
			t.Fatalf("changes of the bytes %v passed", c)
		}
		b[c[0]] ^= x[0]
		b[c[1]] ^= x[1]
	}
	if passed > 16 {
		t.Errorf("%d of 65536 passed", passed)
	}
}

func BenchmarkICRC(b *testing.B) {
	var v ICRC
	v.Set(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 50000, 4791)
	p := make([]byte, 4096+BTHSize+ICRCSize)
	v.Put(p)
	b.Run("4096", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			v.Check(p, true)
		}
	})
	v.Identify(7)
	v.Put(p)
	v.Identify(0)
	b.Run("4096, identification", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			v.Check(p, true)
		}
	})
}
