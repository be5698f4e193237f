package cm

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// golden are the messages of one connection between two machines with rxe, Linux 7.3, made by
// ib_read_bw of perftest with -R. The zeroes at the end are left out.
var golden = map[attr]string{
	attrREQ: `
		01070203 00000000 00000005 19d293db 00100000 00000000 db93d219 00000000 00000000
		01064853 5c2776ff feefd53b 00000000 00000000 00001100 00000000 000000a0 2f1a45a7
		ffff57f0 ffffffff 00000000 00000000 0000ffff 0a000002 00000000 00000000 0000ffff
		0a000001 9d64b000 00400088 00000000 00000000 00000000 00000000 00000000 00000000
		00000000 00000000 00000000 00000000 00000000 0040d308 00000000 00000000 00000000
		0a000002 00000000 00000000 00000000 0a000001`,
	attrREP: `
		01070203 00000000 00000005 19d293db 00130000 00000000 da93d219 db93d219 00000000
		00001100 00000000 002d6400 000078e0 304942ff fe4a3af8`,
	attrRTU:  `01070203 00000000 00000005 19d293db 00140000 00000000 db93d219 da93d219`,
	attrDREQ: `01070203 00000000 00000002 19d293de 00150000 00000000 de93d219 df93d219 00001200`,
	attrDREP: `01070203 00000000 00000002 19d293de 00160000 00000000 df93d219 de93d219`,
}

func goldenMAD(t testing.TB, a attr) []byte {
	b := testutil.Unhex(t, golden[a])
	return append(b, make([]byte, madSize-len(b))...)
}

func TestGolden(t *testing.T) {
	v4a, v4b := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")
	ip := ipPrivate{port: 0xd308, from: v4a, to: v4b}
	want := map[attr]message{
		attrREQ: {
			tid: 0x519d293db, local: 0xdb93d219, guid: 0x5c2776fffeefd53b, qpn: 0x11, psn: 0x2f1a45,
			rnrRetry: 7, request: request{
				service: serviceTCP | 18515, remoteWait: 20, localWait: 20, retries: 7,
				maxCMRetries: 15, pkey: 0xffff, mtu: 5, from: v4a, to: v4b, flowLabel: 0x9d64b,
				hopLimit: 64, ackTimeout: 17,
			},
		},
		attrREP: {
			tid: 0x519d293db, local: 0xda93d219, remote: 0xdb93d219, guid: 0x304942fffe4a3af8,
			qpn: 0x11, psn: 0x2d64, rnrRetry: 7, ackDelay: 15,
		},
		attrRTU:  {tid: 0x519d293db, local: 0xdb93d219, remote: 0xda93d219},
		attrDREQ: {tid: 0x219d293de, local: 0xde93d219, remote: 0xdf93d219, qpn: 0x12},
		attrDREP: {tid: 0x219d293de, local: 0xdf93d219, remote: 0xde93d219},
	}
	for a, w := range want {
		w.attr = a
		if a == attrREQ {
			ip.encode(w.private[:])
		}
		var got message
		b := goldenMAD(t, a)
		testutil.True(t, got.decode(b), "%v is refused", a)
		testutil.Equal(t, got, w, "%v", a)
		var again [madSize]byte
		w.encode(again[:])
		testutil.True(t, bytes.Equal(again[:], b), "%v is\n%x, want\n%x", a, again, b)
	}
	var got ipPrivate
	testutil.True(t, got.decode(goldenMAD(t, attrREQ)[madHeader+140:]), "the header is refused")
	testutil.Equal(t, got, ip, "private data")
}

// TestLayout sets one field at a time. The positions are those of tables 106 to 113, as Linux has
// them in include/rdma/ibta_vol1_c12.h: byte and bit from the end of the MAD header, and width.
func TestLayout(t *testing.T) {
	v6 := netip.MustParseAddr("2001:db8::1")
	for _, c := range []struct {
		name       string
		m          message
		byte, bits int
		width      int
		value      uint64
	}{
		{"REQ local ID", message{attr: attrREQ, local: 0x89abcdef}, 0, 0, 32, 0x89abcdef},
		{"REQ service", req(request{service: 1<<63 | 5}), 8, 0, 64, 1<<63 | 5},
		{"REQ GUID", message{attr: attrREQ, guid: 1<<63 | 5}, 16, 0, 64, 1<<63 | 5},
		{"REQ QPN", message{attr: attrREQ, qpn: 0x89abcd}, 32, 0, 24, 0x89abcd},
		{"REQ responder resources", message{attr: attrREQ, responder: 0x81}, 35, 0, 8, 0x81},
		{"REQ initiator depth", message{attr: attrREQ, initiator: 0x81}, 39, 0, 8, 0x81},
		{"REQ remote response timeout", req(request{remoteWait: 0x15}), 43, 0, 5, 0x15},
		{"REQ transport", req(request{transport: 3}), 43, 5, 2, 3},
		{"REQ flow control", message{attr: attrREQ, flowControl: true}, 43, 7, 1, 1},
		{"REQ PSN", message{attr: attrREQ, psn: 0x89abcd}, 44, 0, 24, 0x89abcd},
		{"REQ local response timeout", req(request{localWait: 0x15}), 47, 0, 5, 0x15},
		{"REQ retry count", req(request{retries: 5}), 47, 5, 3, 5},
		{"REQ partition", req(request{pkey: 0x8001}), 48, 0, 16, 0x8001},
		{"REQ MTU", req(request{mtu: 5}), 50, 0, 4, 5},
		{"REQ RNR retry", message{attr: attrREQ, rnrRetry: 5}, 50, 5, 3, 5},
		{"REQ CM retries", req(request{maxCMRetries: 9}), 51, 0, 4, 9},
		{"REQ SRQ", message{attr: attrREQ, srq: true}, 51, 4, 1, 1},
		{"REQ local GID", req(request{from: v6}), 56, 0, 32, 0x20010db8},
		{"REQ remote GID", req(request{to: v6}), 72, 0, 32, 0x20010db8},
		{"REQ flow label", req(request{flowLabel: 0x89abc}), 88, 0, 20, 0x89abc},
		{"REQ traffic class", req(request{trafficClass: 0x81}), 92, 0, 8, 0x81},
		{"REQ hop limit", req(request{hopLimit: 0x81}), 93, 0, 8, 0x81},
		{"REQ ACK timeout", req(request{ackTimeout: 0x15}), 95, 0, 5, 0x15},
		{"MRA message", ref(attrMRA, refusal{of: 2}), 8, 0, 2, 2},
		{"MRA timeout", ref(attrMRA, refusal{wait: 0x15}), 9, 0, 5, 0x15},
		{"REJ message", ref(attrREJ, refusal{of: 2}), 8, 0, 2, 2},
		{"REJ info length", ref(attrREJ, refusal{infoSize: 72}), 9, 0, 7, 72},
		{"REJ reason", ref(attrREJ, refusal{reason: 0x8001}), 10, 0, 16, 0x8001},
		{"REJ info", ref(attrREJ, refusal{info: [72]byte{0x81}}), 12, 0, 8, 0x81},
		{"REP remote ID", message{attr: attrREP, remote: 0x89abcdef}, 4, 0, 32, 0x89abcdef},
		{"REP QPN", message{attr: attrREP, qpn: 0x89abcd}, 12, 0, 24, 0x89abcd},
		{"REP PSN", message{attr: attrREP, psn: 0x89abcd}, 20, 0, 24, 0x89abcd},
		{"REP responder resources", message{attr: attrREP, responder: 0x81}, 24, 0, 8, 0x81},
		{"REP initiator depth", message{attr: attrREP, initiator: 0x81}, 25, 0, 8, 0x81},
		{"REP ACK delay", message{attr: attrREP, ackDelay: 0x15}, 26, 0, 5, 0x15},
		{"REP failover", message{attr: attrREP, failover: 2}, 26, 5, 2, 2},
		{"REP flow control", message{attr: attrREP, flowControl: true}, 26, 7, 1, 1},
		{"REP RNR retry", message{attr: attrREP, rnrRetry: 5}, 27, 0, 3, 5},
		{"REP SRQ", message{attr: attrREP, srq: true}, 27, 3, 1, 1},
		{"REP GUID", message{attr: attrREP, guid: 1<<63 | 5}, 28, 0, 64, 1<<63 | 5},
		{"DREQ QPN", message{attr: attrDREQ, qpn: 0x89abcd}, 8, 0, 24, 0x89abcd},
	} {
		var base, b [madSize]byte
		zero := message{attr: c.m.attr}
		zero.encode(base[:])
		c.m.encode(b[:])
		got := uint64(0)
		for i := range c.width {
			at, bit := madHeader+c.byte+(c.bits+i)/8, 7-(c.bits+i)%8
			got = got<<1 | uint64(b[at]>>bit&1)
			b[at] = b[at]&^(1<<bit) | base[at]&(1<<bit)
		}
		testutil.Equal(t, got, c.value, "%s", c.name)
		if c.width < 64 && !strings.Contains(c.name, "GID") {
			testutil.True(t, b == base, "%s: other bits are set as well", c.name)
		}
	}
	for a, size := range map[attr][2]int{ // offset and size of the private data
		attrREQ: {140, 92}, attrMRA: {10, 222}, attrREJ: {84, 148}, attrREP: {36, 196},
		attrRTU: {8, 224}, attrDREQ: {12, 220}, attrDREP: {8, 224},
	} {
		m := message{attr: a}
		m.private[0], m.private[size[1]-1] = 1, 2
		var b [madSize]byte
		m.encode(b[:])
		first, last := b[madHeader+size[0]], b[madHeader+size[0]+size[1]-1]
		testutil.True(t, first == 1 && last == 2 && size[0]+size[1] == madSize-madHeader,
			"%v: private data", a)
	}
}

func req(r request) message {
	if !r.from.IsValid() {
		r.from = netip.IPv6Unspecified()
	}
	if !r.to.IsValid() {
		r.to = netip.IPv6Unspecified()
	}
	return message{attr: attrREQ, request: r}
}

func ref(a attr, r refusal) message { return message{attr: a, refusal: r} }

func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(b []byte) []byte
	}{
		{"short", func(b []byte) []byte { return b[:255] }},
		{"long", func(b []byte) []byte { return append(b, 0) }},
		{"base version", func(b []byte) []byte { b[0] = 2; return b }},
		{"class", func(b []byte) []byte { b[1] = 3; return b }},
		{"class version", func(b []byte) []byte { b[2] = 1; return b }},
		{"method", func(b []byte) []byte { b[3] = 1; return b }},
		{"attribute below", func(b []byte) []byte { b[17] = 0x0f; return b }},
		{"attribute above", func(b []byte) []byte { b[17] = 0x17; return b }},
		{"attribute far above", func(b []byte) []byte { b[16] = 1; return b }},
	} {
		var m message
		testutil.True(t, !m.decode(c.change(goldenMAD(t, attrREQ))), "%s is taken", c.name)
	}
	var m message
	rej := message{attr: attrREJ, refusal: refusal{infoSize: 73}}
	var b [madSize]byte
	rej.encode(b[:])
	testutil.True(t, !m.decode(b[:]), "73 bytes of additional information are taken")
}

func TestMTUCode(t *testing.T) {
	for code, mtu := range map[uint8]int{1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096} {
		testutil.Equal(t, mtuCode(mtu), code, "code of %d", mtu)
		testutil.Equal(t, mtuOf(code), mtu, "MTU of %d", code)
	}
	testutil.Equal(t, mtuCode(255)+mtuCode(0), 0, "codes of MTUs that are too small")
	testutil.Equal(t, mtuCode(1500), 3, "the largest that fits")
	testutil.Equal(t, mtuOf(0)+mtuOf(6)+mtuOf(15), 0, "MTUs of invalid codes")
}

func FuzzDecode(f *testing.F) {
	for a := range golden {
		f.Add(goldenMAD(f, a))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, again message
		if !m.decode(b) {
			return
		}
		var c, d [madSize]byte
		m.encode(c[:])
		testutil.MustTrue(t, again.decode(c[:]), "%x is refused, read from %x", c, b)
		testutil.MustEqual(t, again, m, "%x read back", b)
		again.encode(d[:])
		testutil.MustTrue(t, c == d, "%x becomes %x", c, d)
		if m.attr != attrREQ {
			return
		}
		var ip, same ipPrivate
		if ip.decode(m.data()) {
			var p [ipHeader]byte
			ip.encode(p[:])
			testutil.MustTrue(t, same.decode(p[:]), "private data")
		}
	})
}
