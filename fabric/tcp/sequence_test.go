package tcp

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// attacker is a host that sends the PDUs of testdata/sequences.
type attacker struct {
	*client
	t       *testing.T
	d       *datadriven.TestData
	granted uint16 // transfer tag of the write with an R2T
}

// states are the states of a connection, each with the parameters it is tried with.
var states = map[string][]pdu.Params{
	"new": {{}}, "greeted": {{}, digests}, "connected": {{}, digests}, "damaged": {digests},
	"granted": {{}}, "written": {{}}, "held": {{}}, "commands": {{}, digests},
	"commands-with-digests": {digests},
}

var digests = pdu.Params{HeaderDigest: true, DataDigest: true}

// reach brings a connection to a state.
func (a *attacker) reach(tg *target, state string, p pdu.Params) {
	if a.client = tg.dial(a.t); state == "new" {
		return
	}
	if a.icReq(p); state == "greeted" {
		return
	}
	a.send(a.connectPDU(1, 4, 0))
	a.status(0, nvme.Success)
	n := map[string]int{"granted": 16384, "written": 512}[state]
	if n == 0 {
		return
	}
	a.send(a.request(nvme.NVMWrite, 1, 0, n))
	if a.granted = a.r2t(1, n); state == "written" { // a missing LAST_PDU is forgiven
		a.send(a.H2CData(0, 1, a.granted, 0, random(0, n)))
		a.status(1, nvme.Success)
	}
}

// TestSequences runs testdata/sequences, explained in testdata/README.md. After a fault nothing is
// executed, and in the end nothing is left.
func TestSequences(t *testing.T) {
	datadriven.Walk(t, "testdata/sequences", func(t *testing.T, path string) {
		recorder, o := newRecorder()
		o.cfg.MaxH2CData, o.hold = 8192, true
		tg := serve(t, o)
		written, faults := 0, uint64(0)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			for line := range strings.SplitSeq(d.Input, "\n") {
				for i, p := range states[d.Cmd] {
					a := &attacker{t: t, d: d}
					a.reach(tg, d.Cmd, p)
					written += map[string]int{
						"written": 1, "held": strings.Count(line, "write"),
					}[d.Cmd]
					out.WriteString(line + []string{": ", " (digests): "}[i])
					executed := tg.d.Executed.Load()
					a.send(a.stream(line))
					if strings.HasPrefix(d.Cmd, "commands") { // without effect on the connection
						a.answers(&out, strings.Count(line, " + ")+1)
						continue
					}
					_, _ = a.Write(random(3, 2000)) // none of this is parsed
					said := a.fault()
					faults++
					if out.WriteString(said); said != ended {
						out.WriteString("; " + explained(t, recorder))
					}
					out.WriteString("\n")
					if d.Cmd == "held" {
						tg.do(tg.d.Release)
					} else {
						testutil.Equal(t, tg.d.Executed.Load(), executed, "%s: executed", line)
					}
				}
			}
			testutil.MustTrue(t, out.Len() > 0, "%s: unknown command %s", d.Pos, d.Cmd)
			return out.String()
		})
		testutil.Until(t, "all connections ended",
			func() bool { return tg.t.Usage().Connections == 0 })
		logged := uint64(0)
		for _, n := range recorder.Kinds() {
			logged += n
		}
		testutil.Equal(t, logged, faults, "refusals in the log")
		testutil.Equal(t, tg.d.Written.Load(), int64(written), "writes executed")
		testutil.Equal(t, tg.free(), 16<<20, "bytes of the arena are free")
	})
}

// answers prints the answers to n commands. The connection goes on.
func (a *attacker) answers(out *strings.Builder, n int) {
	for i, data := 0, 0; i < n; {
		m := a.recv()
		if data += len(m.Data); m.Type != pdu.TypeCapsuleResp {
			continue
		}
		if fmt.Fprintf(out, "%v", (*pdu.CapsuleResp)(m.Raw).CQE().Status()); data > 0 {
			fmt.Fprintf(out, " with %d bytes", data)
		}
		i, data = i+1, 0
		out.WriteString(map[bool]string{true: "\n", false: ", "}[i == n])
	}
	a.readBlocks(5, 0, 512)
	_ = a.Close()
}

// explained returns the expected and received values in the last logged refusal.
func explained(t *testing.T, r *ratelog.Recorder) string {
	t.Helper()
	last := r.Refusals()[0]
	testutil.True(t, last.Expected != "" && last.Received != "" && last.Expected != last.Received,
		"the last refusal is %+v", last)
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
	nsid, prp, typ, sub, length, lba := uint32(1), false, "", 0, -1, 0
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
		case "hold":
			nsid = holdNSID
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
		r := pdu.ICReq(&pdu.Params{}, 1)
		return r[:]
	case "term":
		return pdu.AppendTermReq(nil, pdu.TypeH2CTermReq, sequence, random(0, n))
	case "h2c":
		return c.H2CData(flags, uint16(cid), uint16(ttag), off, data)
	case "read", "write", "read-with-data":
		op := map[bool]nvme.Opcode{true: nvme.NVMWrite, false: nvme.NVMRead}[kind == "write"]
		sqe := rw(op, uint16(cid), 0, n, kind != "read")
		sqe.SetNSID(nsid)
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
			return c.Capsule(&sqe, nil)
		}
		return c.Capsule(&sqe, data)
	}
	a.t.Fatalf("%s: unknown PDU %s", a.d.Pos, kind)
	return nil
}

func (a *attacker) number(s string) int {
	return int(testutil.Value(strconv.ParseUint(s, 0, 64))(a.t))
}

const ended = "the connection ends"

// fault reads PDUs until a C2HTermReq, if there is one, and expects the end of the stream.
func (a *attacker) fault() string {
	for {
		if m, err := a.Receive(); errors.Is(err, hosttest.ErrEnd) {
			return ended
		} else if testutil.Must(a.t, err); m.Type == pdu.TypeC2HTermReq {
			a.end()
			f := (*pdu.TermReq)(m.Raw).Fault()
			said := f.Error()
			if at := fmt.Sprintf(" at byte %d", f.FEI); f.FEI != 0 && !strings.HasSuffix(said, at) {
				said += at
			}
			return said
		}
	}
}
