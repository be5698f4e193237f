package tcp

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/internal/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// attacker is a host that sends the PDUs of testdata/sequences.
type attacker struct {
	*client
	t       *testing.T
	d       *datadriven.TestData
	granted uint16 // transfer tag of the write with an R2T
}

// TestSequences runs testdata/sequences, explained in testdata/README.md. After a fault nothing is
// executed, and in the end nothing is left.
func TestSequences(t *testing.T) {
	datadriven.Walk(t, "testdata/sequences", func(t *testing.T, path string) {
		recorder, o := newRecorder()
		o.cfg.MaxH2CData = 8192
		tg := serve(t, o)
		executed, faults := int64(0), uint64(0)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			refused := func(how string, line string, a *attacker) {
				a.send(a.stream(line))
				if d.Cmd == "granted" {
					a.send(random(3, 2000)) // none of this is parsed
				}
				faults++
				fmt.Fprintf(&out, "%s%s: %s; %s\n", line, how, a.fault(), explained(t, recorder))
			}
			for line := range strings.SplitSeq(d.Input, "\n") {
				a := &attacker{t: t, d: d}
				switch d.Cmd {
				case "new": // before ICReq
					a.client = tg.dial(t)
					refused("", line, a)
				case "connected":
					a.client = tg.connect(t, pdu.Params{}, 4, 0)
					refused("", line, a)
					a.client = tg.connect(t, pdu.Params{HeaderDigest: true, DataDigest: true}, 4, 0)
					refused(" (digests)", line, a)
					executed += 2
				case "granted": // a write of 16 KiB with an R2T
					const n = 16384
					a.client = tg.connect(t, pdu.Params{}, 4, 0)
					sqe := rw(nvme.NVMWrite, 1, 0, n, false)
					a.send(a.capsule(&sqe, nil))
					a.granted = a.r2t(1, n)
					executed++
					refused("", line, a)
				case "commands": // without effect on the connection
					a.client = tg.connect(t, pdu.Params{}, 4, 0)
					a.send(a.stream(line))
					cqe := (*pdu.CapsuleResp)(a.recv().raw).CQE()
					fmt.Fprintf(&out, "%s: %v\n", line, cqe.Status())
					a.readBlocks(5, 0, 512)
					executed += 3 // with Connect and the refused command
					_ = a.Close()
				default:
					t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
				}
			}
			return out.String()
		})
		testutil.Until(t, "all connections ended",
			func() bool { return tg.t.Usage().Connections == 0 })
		logged := uint64(0)
		for _, n := range recorder.Kinds() {
			logged += n
		}
		testutil.Equal(t, logged, faults, "refusals in the log")
		testutil.Equal(t, tg.d.executed.Load(), executed, "commands executed")
		testutil.Equal(t, tg.d.written.Load(), 0, "writes executed")
		testutil.Equal(t, tg.free(), 16<<20, "bytes of the arena are free")
	})
}

// explained returns the expected and received values in the last logged refusal.
func explained(t *testing.T, r *ratelog.Recorder) string {
	t.Helper()
	last := r.Refusals()[0]
	if last.Expected == "" || last.Received == "" || last.Expected == last.Received {
		t.Errorf("the last refusal is %+v", last)
	}
	return fmt.Sprintf("expected %s, received %s", last.Expected, last.Received)
}

// stream builds the PDUs of a line.
func (a *attacker) stream(line string) (all []byte) {
	for one := range strings.SplitSeq(line, " + ") {
		words := strings.Fields(one)
		b := a.pdu(words[0], words[1:])
		for _, word := range words[1:] {
			at, value, ok := strings.Cut(word, ":")
			if !ok {
				continue
			}
			offset, v := a.number(at[1:]), a.number(value)
			switch at[0] {
			case 'b':
				b = a.fixHeaderDigest(set(b, offset, byte(v)), int(b[2]))
			case 'd':
				b = a.fixHeaderDigest(set32(b, offset, uint32(v)), int(b[2]))
			case 'x': // bits of a byte are changed, and the digest stays
				b = set(b, offset, b[offset]^byte(v))
			}
		}
		all = append(all, b...)
	}
	return all
}

var sglTypes = map[string]nvme.SGLType{
	"data": nvme.SGLDataBlock, "keyed": nvme.SGLKeyedDataBlock, "segment": nvme.SGLSegment,
	"last": nvme.SGLLastSegment, "bits": nvme.SGLBitBucket, "transport": nvme.SGLTransportDataBlock,
}

// pdu builds a PDU; words are KEY=VALUE.
func (a *attacker) pdu(kind string, words []string) []byte {
	c := a.client
	n, off, cid, ttag := 512, 0, 1, int(a.granted)
	var flags pdu.Flags
	var opcode nvme.Opcode
	prp, typ, sub, length, lba := false, "", 0, -1, 0
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "n":
			n = a.number(value)
		case "off":
			off = a.number(value)
		case "cid":
			cid = a.number(value)
		case "last":
			flags = pdu.LastPDU
		case "ttag":
			if v, ok := map[string]uint16{
				"next-round": a.granted + 1<<ttagBits, "free": a.granted ^ 1,
				"beyond": a.granted | 1<<9,
			}[value]; ok {
				ttag = int(v)
			} else {
				ttag = a.number(value)
			}
		case "opcode":
			opcode = nvme.Opcode(a.number(value))
		case "prp":
			prp = true
		case "sgl":
			typ = value
		case "subtype":
			sub = a.number(value)
		case "length":
			length = a.number(value)
		case "lba":
			lba = a.number(value)
		}
	}
	data := random(n, n)
	switch kind {
	case "random":
		return random(77, n)
	case "http":
		return []byte("GET / HTTP/1.1\r\nHost: target\r\n\r\n")
	case "client-hello":
		return append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, data...)
	case "icreq":
		var r pdu.ICReq
		r.Set(&pdu.Params{}, 1)
		return r[:]
	case "term":
		return pdu.AppendTermReq(nil, pdu.TypeH2CTermReq, sequence, random(0, n))
	case "h2c":
		return c.h2cData(flags, uint16(cid), uint16(ttag), off, data)
	case "read", "write", "read-with-data":
		op := map[bool]nvme.Opcode{true: nvme.NVMWrite, false: nvme.NVMRead}[kind == "write"]
		sqe := rw(op, 1, 0, n, kind != "read")
		sqe.SetCDW64(10, uint64(lba))
		if opcode != 0 {
			sqe.SetOpcode(opcode)
		}
		if prp {
			sqe.SetFlags(0)
		}
		if typ != "" {
			if length < 0 {
				length = n
			}
			sqe.SGL1().SetData(sglTypes[typ], byte(sub), 0, uint32(length))
		}
		if kind == "read" {
			return c.capsule(&sqe, nil)
		}
		return c.capsule(&sqe, data)
	}
	a.t.Fatalf("%s: unknown PDU %s", a.d.Pos, kind)
	return nil
}

func (a *attacker) number(s string) int {
	return int(testutil.Value(strconv.ParseUint(s, 0, 64))(a.t))
}

// fault reads PDUs until a C2HTermReq, and expects the end of the stream.
func (a *attacker) fault() string {
	for {
		if m := a.recv(); m.t == pdu.TypeC2HTermReq {
			a.end()
			f := (*pdu.TermReq)(m.raw).Fault()
			said := f.Error()
			if at := fmt.Sprintf(" at byte %d", f.FEI); f.FEI != 0 && !strings.HasSuffix(said, at) {
				said += at
			}
			return said
		}
	}
}
