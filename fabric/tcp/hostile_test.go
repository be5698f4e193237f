package tcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/internal/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// set returns b with one byte changed.
func set(b []byte, at int, v byte) []byte {
	b = bytes.Clone(b)
	b[at] = v
	return b
}

// set32 returns b with four bytes changed.
func set32(b []byte, at int, v uint32) []byte {
	b = bytes.Clone(b)
	binary.LittleEndian.PutUint32(b[at:], v)
	return b
}

func invalid(at uint32) pdu.Fault { return pdu.Fault{FES: pdu.FESInvalidHeader, FEI: at} }

var (
	sequence   = pdu.Fault{FES: pdu.FESSequence}
	outOfRange = pdu.Fault{FES: pdu.FESOutOfRange}
	limit      = pdu.Fault{FES: pdu.FESLimit, FEI: pdu.OffPLEN}
)

// explained looks whether the log says of the last of n refusals what was expected and received.
func explained(t *testing.T, r *ratelog.Recorder, n int) {
	t.Helper()
	last, total := r.Refusals()[0], uint64(0)
	for _, count := range r.Kinds() {
		total += count
	}
	values := map[string]string{}
	for _, a := range last.Attributes {
		values[a.Key] = a.Value
	}
	if total != uint64(n) || values["expected"] == "" || values["received"] == "" ||
		values["expected"] == values["received"] {
		t.Errorf("%d of %d refusals, the last is %q", total, n, last.Attributes)
	}
}

func newRecorder() (*ratelog.Recorder, options) {
	r := ratelog.NewRecorder(slog.DiscardHandler)
	return r, options{cfg: Config{Log: slog.New(r)}}
}

// Before and instead of a good ICReq.
func TestHostileICReq(t *testing.T) {
	recorder, o := newRecorder()
	tg := serve(t, o)
	var good pdu.ICReq
	good.Set(&pdu.Params{HeaderDigest: true}, 1)
	c := &client{}
	sqe := rw(nvme.NVMRead, 0, 0, 512, false)
	tests := []struct {
		name string
		send []byte
		want pdu.Fault
	}{
		{"random bytes", random(77, 128), invalid(pdu.OffType)},
		{"HTTP", []byte("GET / HTTP/1.1\r\nHost: target\r\n\r\n"), invalid(pdu.OffType)},
		{
			"TLS ClientHello",
			append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, random(1, 500)...),
			invalid(pdu.OffType),
		},
		{"CapsuleCmd first", c.capsule(&sqe, nil), sequence},
		{"H2CData first", c.h2cData(0, 0, 0, 0, random(0, 512)), sequence},
		{"TermReq first", pdu.AppendTermReq(nil, pdu.TypeH2CTermReq, sequence, nil), sequence},
		{
			"C2HData first", set(c.h2cData(0, 0, 0, 0, random(0, 512)), 0, byte(pdu.TypeC2HData)),
			invalid(pdu.OffType),
		},
		{"PLEN 127", set32(good[:], 4, 127), invalid(pdu.OffPLEN)},
		{"PLEN 129", set32(good[:], 4, 129), invalid(pdu.OffPLEN)},
		{"PLEN FFFFFFFFh", set32(good[:], 4, 0xFFFFFFFF), invalid(pdu.OffPLEN)},
		{"HLEN 0", set(good[:], 2, 0), invalid(pdu.OffHLEN)},
		{"HLEN 72", set(good[:], 2, 72), invalid(pdu.OffHLEN)},
		{"PFV 1", set(good[:], 8, 1), invalid(pdu.OffPFV)},
		{"PFV 100h", set(good[:], 9, 1), invalid(pdu.OffPFV)},
		{"HPDA 32", set(good[:], 10, 32), invalid(pdu.OffHPDA)},
		{"HPDA 255", set(good[:], 10, 255), invalid(pdu.OffHPDA)},
		{
			"a second ICReq, with digests",
			append(bytes.Clone(good[:]), append(bytes.Clone(good[:]), 1, 2, 3, 4)...), sequence,
		},
		{"a second ICReq", append(set(good[:], 11, 0), good[:]...), sequence},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := tg.dial(t)
			c.send(tt.send)
			c.term(tt.want)
			explained(t, recorder, i+1)
		})
	}
	testutil.Until(t, "all connections ended", func() bool { return tg.t.Usage().Connections == 0 })
	testutil.Equal(t, tg.d.executed.Load(), 0, "commands executed")
}

// TestHostileLog: bad PDUs leave a few lines, whatever their number.
func TestHostileLog(t *testing.T) {
	var log testutil.Log
	tg := serve(t, options{cfg: Config{Log: log.Logger()}})
	for range 200 {
		c := tg.dial(t)
		c.send(random(77, 128))
		c.term(invalid(pdu.OffType))
	}
	testutil.Until(t, "all connections ended", func() bool { return tg.t.Usage().Connections == 0 })
	n := strings.Count(log.String(), "level=WARN")
	if n == 0 || n > 40 { // ten in as many seconds, each time with how many were dropped
		t.Errorf("%d lines", n)
	}
}

// Every unknown or wrong type on a live connection.
func TestHostileTypes(t *testing.T) {
	tg := serve(t, options{})
	for ty := range 256 {
		switch pdu.Type(ty) {
		case pdu.TypeICReq, pdu.TypeH2CTermReq, pdu.TypeCapsuleCmd, pdu.TypeH2CData:
			continue
		}
		c := tg.connect(t, pdu.Params{}, 4, 0)
		c.send([]byte{byte(ty), 0, 24, 0, 24, 0, 0, 0})
		c.term(invalid(pdu.OffType))
	}
}

// hostilePDU is a PDU that is wrong on a live connection, and what the target finds wrong with it.
type hostilePDU struct {
	name        string
	build       buildPDU
	plain, both pdu.Fault // without and with digests
}

type buildPDU func(c *client) []byte

// hostilePDUs are the rows of TestHostilePDU.
func hostilePDUs() []hostilePDU {
	read := func(c *client) []byte {
		sqe := rw(nvme.NVMRead, 1, 0, 512, false)
		return c.capsule(&sqe, nil)
	}
	inline := func(n int) buildPDU {
		return func(c *client) []byte {
			sqe := rw(nvme.NVMWrite, 1, 0, n, true)
			return c.capsule(&sqe, random(0, n))
		}
	}
	change := func(fn buildPDU, at int, v byte) buildPDU {
		return func(c *client) []byte { return c.fixHeaderDigest(set(fn(c), at, v), int(fn(c)[2])) }
	}
	change32 := func(fn buildPDU, at int, v uint32) buildPDU {
		return func(c *client) []byte {
			return c.fixHeaderDigest(set32(fn(c), at, v),
				int(fn(c)[2]))
		}
	}
	return []hostilePDU{
		{"CapsuleCmd HLEN", change(read, 2, 24), invalid(pdu.OffHLEN), invalid(pdu.OffHLEN)},
		{
			"CapsuleCmd PLEN < HLEN", change32(read, 4, 71), invalid(pdu.OffPLEN),
			invalid(pdu.OffPLEN),
		},
		{"CapsuleCmd PLEN 0", change32(read, 4, 0), invalid(pdu.OffPLEN), invalid(pdu.OffPLEN)},
		{
			"CapsuleCmd PLEN HLEN+3", change32(read, 4, 75), invalid(pdu.OffPDO),
			invalid(pdu.OffPLEN),
		},
		{"CapsuleCmd PLEN FFFFFFFFh", change32(inline(512), 4, 0xFFFFFFFF), limit, limit},
		{
			"CapsuleCmd PDO 0 with data", change(inline(512), 3, 0), invalid(pdu.OffPDO),
			invalid(pdu.OffPDO),
		},
		{
			"CapsuleCmd PDO < HLEN", change(inline(512), 3, 68), invalid(pdu.OffPDO),
			invalid(pdu.OffPDO),
		},
		{
			"CapsuleCmd PDO odd", change(inline(512), 3, 78), invalid(pdu.OffPDO),
			invalid(pdu.OffPDO),
		},
		{
			"CapsuleCmd PDO without data", change(read, 3, 80), invalid(pdu.OffPDO),
			invalid(pdu.OffPDO),
		},
		{"CapsuleCmd PDO beyond", func(c *client) []byte {
			return c.fixHeaderDigest(set(set32(inline(512)(c), 4, 100), 3, 128), 72)
		}, invalid(pdu.OffPDO), invalid(pdu.OffPDO)},
		{
			"CapsuleCmd HDGSTF wrong", func(c *client) []byte { b := read(c); b[1] ^= 1; return b },
			invalid(pdu.OffFlags), invalid(pdu.OffFlags),
		},
		{
			"CapsuleCmd DDGSTF wrong",
			func(c *client) []byte { b := inline(512)(c); b[1] ^= 2; return b },
			invalid(pdu.OffFlags), invalid(pdu.OffFlags),
		},
		{
			"capsule longer than its SGL", change32(inline(1024), 8+24+8, 512),
			invalid(pdu.OffPLEN),
			invalid(pdu.OffPLEN),
		},
		{
			"capsule shorter than its SGL", change32(inline(512), 8+24+8, 1024),
			invalid(pdu.OffPLEN),
			invalid(pdu.OffPLEN),
		},
		{
			"SGL says data, capsule has none", change(read, 8+24+15, 1), invalid(pdu.OffPLEN),
			invalid(pdu.OffPLEN),
		},
		{
			"capsule has data, SGL says transport", change(inline(512), 8+24+15, 0x5A),
			invalid(pdu.OffPLEN), invalid(pdu.OffPLEN),
		},
		{"too much data in an I/O capsule", inline(128<<10 + 512), limit, limit},
		{
			"in-capsule offset", change32(inline(512), 8+24, 16),
			pdu.Fault{FES: pdu.FESUnsupported, FEI: pdu.OffSGL1},
			pdu.Fault{FES: pdu.FESUnsupported, FEI: pdu.OffSGL1},
		},
		{
			"H2CData without R2T",
			func(c *client) []byte { return c.h2cData(pdu.LastPDU, 1, 1, 0, random(0, 512)) },
			sequence, sequence,
		},
		{
			"H2CData TTAG 0",
			func(c *client) []byte { return c.h2cData(pdu.LastPDU, 0, 0, 0, random(0, 512)) },
			sequence, sequence,
		},
		{
			"H2CData TTAG FFFFh",
			func(c *client) []byte { return c.h2cData(pdu.LastPDU, 0, 0xFFFF, 0, random(0, 512)) },
			sequence, sequence,
		},
		{"TermReq PLEN 153", func(c *client) []byte {
			return set32(pdu.AppendTermReq(nil, pdu.TypeH2CTermReq, sequence, random(0, 128)), 4,
				153)
		}, invalid(pdu.OffPLEN), invalid(pdu.OffPLEN)},
		{"TermReq HLEN", func(c *client) []byte {
			return set(pdu.AppendTermReq(nil, pdu.TypeH2CTermReq, sequence, nil), 2, 128)
		}, invalid(pdu.OffHLEN), invalid(pdu.OffHLEN)},
		{
			"ICReq", func(c *client) []byte { var r pdu.ICReq; r.Set(&c.p, 1); return r[:] },
			sequence,
			sequence,
		},
	}
}

// PDUs that are wrong on a live connection; nothing of them may be executed.
func TestHostilePDU(t *testing.T) {
	recorder, o := newRecorder()
	tg, n := serve(t, o), 0
	before := tg.d.executed.Load()
	for _, tt := range hostilePDUs() {
		for _, digests := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,digests=%v", tt.name, digests), func(t *testing.T) {
				c := tg.connect(t, pdu.Params{HeaderDigest: digests, DataDigest: digests}, 4, 0)
				before++
				want := tt.plain
				if digests {
					want = tt.both
				}
				c.send(tt.build(c))
				c.term(want)
				n++
				explained(t, recorder, n)
			})
		}
	}
	if n := tg.d.executed.Load(); n != before {
		t.Errorf("%d commands executed", n-before)
	}
	testutil.Until(t, "all connections ended", func() bool { return tg.t.Usage().Connections == 0 })
}

// A TermReq of the host ends the connection without an answer.
func TestTermReqFromHost(t *testing.T) {
	tg := serve(t, options{})
	for _, b := range [][]byte{
		pdu.AppendTermReq(nil, pdu.TypeH2CTermReq, pdu.Fault{FES: 3, FEI: 7}, random(0, 128)),
		pdu.AppendTermReq(nil, pdu.TypeH2CTermReq, pdu.Fault{FES: 0xFFFF}, nil),
	} {
		c := tg.connect(t, pdu.Params{HeaderDigest: true, DataDigest: true}, 4, 0)
		c.send(b)
		c.end()
	}
	testutil.Until(t, "all connections ended", func() bool { return tg.t.Usage().Connections == 0 })
}
