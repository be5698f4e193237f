package iwarp

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/mpa"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// The region that the peer of TestHostile may write, not read.
const openRegion, openSize = 1 << 20, 4096

// hostileOps are the operations of testdata/hostile.txt.
var hostileOps = map[string]header{
	"SEND": {op: opSend}, "SEND-solicited": {op: opSendSolicited},
	"SEND-invalidate": {op: opSendInvalidate}, "WRITE": {op: opWrite},
	"READ":     {op: opReadRequest, queue: queueRead, stag: 7, size: 100},
	"RESPONSE": {op: opReadResponse}, "TERMINATE": {op: opTerminate, queue: queueTerminate},
}

// fpdus makes the FPDUs of a row of testdata/hostile.txt, which describes them.
func (x *attacker) fpdus(text string, key uint32) (all []byte) {
	x.t.Helper()
	for one := range strings.SplitSeq(text, "; ") {
		words := strings.Fields(one)
		h, known := hostileOps[words[0]]
		testutil.MustTrue(x.t, known, "unknown operation %s", words[0])
		h.last, h.msn = true, 1
		if h.op == opWrite || h.op == opSendInvalidate {
			h.stag = key
		}
		if h.op == opWrite {
			h.to = x.at(openRegion)
		}
		n, set := 0, map[int]byte{}
		for _, word := range words[1:] {
			name, value, _ := strings.Cut(word, "=")
			v, err := strconv.ParseInt(cmp.Or(value, "0"), 0, 64)
			testutil.MustEqual(x.t, err, nil, "%s", one)
			switch at, isByte := strings.CutPrefix(name, "b"); name {
			case "n":
				n = int(v)
			case "msn":
				h.msn = uint32(v)
			case "mo":
				h.mo = uint32(v)
			case "queue":
				h.queue = uint32(v)
			case "key":
				h.stag ^= uint32(v)
			case "to":
				h.to += uint64(v)
			case "address":
				h.to = uint64(v)
			case "more":
				h.last = false
			case "local":
				m := x.region(openRegion, openSize, verbs.AccessLocalWrite)
				x.t.Cleanup(func() { testutil.Check(x.t, m.Dereg()) })
				h.stag = m.RKey()
			case "from-open":
				h.source, h.sourceTo = key, x.at(openRegion)
			case "from-all":
				h.source, h.sourceTo = x.mr.RKey(), x.at(0)
			default:
				i, err := strconv.Atoi(at)
				testutil.MustTrue(x.t, isByte && err == nil, "unknown change %s", word)
				set[i] = byte(v)
			}
		}
		b := frame(h, strings.Repeat("x", n), false)
		for i, v := range set {
			b[i] = v
		}
		all = append(all, b...)
	}
	return all
}

// TestHostile sends FPDUs that are wrong. The peer is told, the connection ends, memory does not
// change, and the connection beside it works.
func TestHostile(t *testing.T) {
	for _, row := range testutil.Rows(t, "hostile") {
		var name, fpdus, want string
		var recv verbs.WCStatus
		row.Scan(&name, &fpdus, &want, testutil.Named(&recv, map[string]verbs.WCStatus{
			"success": verbs.WCSuccess, "flushed": verbs.WCWRFlushErr,
			"length": verbs.WCLocLenErr, "request": verbs.WCRemInvReqErr,
		}))
		run := func(t *testing.T, write func(*attacker, []byte)) {
			x := newAttacker(t, mpa.Peer{ResponderResources: 2, InitiatorDepth: 2})
			x.victim.recv(5, 2<<20, 100)
			m := x.region(openRegion, openSize, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
			defer func() { testutil.Check(t, m.Dereg()) }()
			write(x, x.fpdus(fpdus, m.RKey()))
			testutil.Equal(t, x.terminated(), want, "reason")
			x.victim.want(5, recv)
			testutil.True(t, !bytes.Contains(x.buf[:2<<20], []byte("x")), "memory was written")
			x.neighbour()
		}
		t.Run(name, func(t *testing.T) { run(t, (*attacker).write) })
		if name != "more READs than agreed" { // slowly they are no more
			t.Run(name+", slowly", func(t *testing.T) { run(t, (*attacker).writeSlowly) })
		}
	}
}

// TestWrongResponses answers a READ wrongly.
func TestWrongResponses(t *testing.T) {
	for name, change := range map[string]func(h *header) string{
		"another key":     func(h *header) string { h.stag++; return "xxxx" },
		"another address": func(h *header) string { h.to++; return "xxxx" },
		"too long":        func(*header) string { return "xxxxx" },
		"too short":       func(*header) string { return "xxx" },
		"no end":          func(h *header) string { h.last = false; return "xxxx" },
	} {
		t.Run(name, func(t *testing.T) {
			x := newAttacker(t, mpa.Peer{Active: true, ResponderResources: 2, InitiatorDepth: 2})
			x.victim.rdma(6, verbs.WRRDMARead, 0, 4, 100)
			h := header{op: opReadResponse, last: true, stag: x.victim.stag}
			payload := change(&h)
			x.write(frame(h, payload, false))
			x.victim.want(6, verbs.WCWRFlushErr)
			testutil.Equal(t, x.victim.ends, 1, "ends of the connection")
			testutil.True(t, !bytes.Contains(x.buf, []byte("x")), "memory was written")
			x.neighbour()
		})
	}
	t.Run("twice", func(t *testing.T) {
		x := newAttacker(t, mpa.Peer{Active: true, ResponderResources: 2, InitiatorDepth: 2})
		x.victim.rdma(6, verbs.WRRDMARead, 0, 4, 100)
		h := header{op: opReadResponse, last: true, stag: x.victim.stag}
		x.write(frame(h, "once", false))
		x.victim.want(6, verbs.WCSuccess)
		x.write(frame(h, "more", false))
		testutil.Equal(t, x.terminated(), fmt.Sprintf("%04x", uint16(badSTag)), "reason")
		testutil.Equal(t, string(x.buf[:4]), "once", "memory")
		x.neighbour()
	})
}

// TestChecksum changes one byte of an FPDU with a CRC.
func TestChecksum(t *testing.T) {
	whole := frame(header{op: opSend, last: true, msn: 1}, "hello", true)
	for i := range whole {
		x := newAttacker(t, mpa.Peer{CRC: true})
		x.victim.recv(5, 2<<20, 100)
		b := bytes.Clone(whole)
		b[i] ^= 4
		x.write(append(b, make([]byte, 64)...)) // a longer length waits for more
		x.step()
		if i < lengthSize && x.victim.ends == 0 {
			continue
		}
		testutil.Equal(t, x.victim.ends, 1, "ends of the connection, byte %d", i)
		wc := x.victim.wait()
		testutil.True(t, wc.Status != verbs.WCSuccess, "byte %d: %+v", i, wc)
		x.neighbour()
	}
	x := newAttacker(t, mpa.Peer{CRC: true})
	x.victim.recv(5, 2<<20, 100)
	for i := range whole { // and slowly
		x.write(whole[i : i+1])
		x.victim.poll()
	}
	wc := x.victim.want(5, verbs.WCSuccess)
	testutil.Equal(t, string(x.buf[2<<20:2<<20+int(wc.ByteLen)]), "hello", "message")
}

// TestStalled has a peer that asks for data and does not receive it.
func TestStalled(t *testing.T) {
	x := newAttacker(t, mpa.Peer{ResponderResources: 2})
	x.write(frame(header{
		op: opReadRequest, last: true, queue: queueRead, msn: 1, stag: 7, size: bufSize,
		source: x.mr.RKey(), sourceTo: x.at(0),
	}, "", false))
	x.step()
	testutil.True(t, x.st.Blocked.Load() > 0, "the socket took everything")
	sent := x.st.SentFPDUs.Load()
	x.step()
	testutil.Equal(t, x.st.SentFPDUs.Load(), sent, "FPDUs sent to a full socket")
	x.neighbour()
	// An error in the middle of an FPDU, when there is room again: a Terminate would be payload.
	testutil.Value(io.ReadFull(x.socket, make([]byte, 64<<10)))(t)
	x.write(make([]byte, 8))
	x.step()
	testutil.Equal(t, x.victim.ends, 1, "ends of the connection")
	testutil.Equal(t, x.st.SentTerminates.Load(), 0, "Terminates")
	x.neighbour()
}

// TestPassiveWaits: the passive side sends nothing before the first message of the active one.
func TestPassiveWaits(t *testing.T) {
	for _, rtr := range []struct {
		kind mpa.RTR
		b    []byte
	}{
		{mpa.NoRTR, frame(header{op: opWrite, last: true}, "", false)},
		{mpa.RTRWrite, frame(header{op: opWrite, last: true}, "", false)},
		{mpa.RTRRead, frame(header{op: opReadRequest, last: true, queue: 1, msn: 1}, "", false)},
	} {
		x := newAttacker(t, mpa.Peer{RTR: rtr.kind, ResponderResources: 1})
		x.victim.send(9, 0, 8)
		x.step()
		testutil.Equal(t, x.st.SentFPDUs.Load(), 0, "FPDUs")
		x.write(rtr.b)
		x.victim.want(9, verbs.WCSuccess)
		testutil.Equal(t, x.victim.ready, 1, "calls of First")
		x.victim.recv(5, 2<<20, 100) // the RTR has taken none
		x.write(frame(header{op: opSend, last: true, msn: 1}, "hi", false))
		testutil.Equal(t, x.victim.want(5, verbs.WCSuccess).ByteLen, 2, "bytes")
	}
}

var zeroes [2 << 20]byte

// FuzzStream sends any bytes, in pieces, to a queue pair with work outstanding. Only memory that
// the peer may write changes.
func FuzzStream(f *testing.F) {
	for i, c := range []struct {
		h       header
		payload string
	}{
		{header{op: opSend, last: true, msn: 1}, "hello"},
		{header{op: opSendSolicitedInvalidate, last: true, msn: 1}, "x"},
		{header{op: opReadResponse, last: true}, "hello"},
		{header{op: opReadRequest, last: true, queue: queueRead, msn: 1}, ""},
		{header{op: opTerminate, last: true, queue: queueTerminate, msn: 1}, "abcd"},
	} {
		f.Add(frame(c.h, c.payload, i%2 == 1), byte(3*i), i%2 == 1)
	}
	f.Add(make([]byte, 64), byte(2), false)
	f.Fuzz(func(t *testing.T, data []byte, piece byte, crc bool) {
		if len(data) > 4096 {
			return
		}
		x := newAttacker(t, mpa.Peer{CRC: crc, ResponderResources: 2, InitiatorDepth: 2})
		for i := range 3 {
			x.victim.recv(uint64(i), 2<<20+1000*i, 1000)
		}
		x.victim.rdma(9, verbs.WRRDMARead, 3<<20, 1000, 0)
		for len(data) > 0 {
			n := min(len(data), int(piece)+1)
			if _, err := x.socket.Write(data[:n]); err != nil {
				break
			}
			data = data[n:]
			x.victim.poll()
		}
		x.step()
		testutil.True(t, bytes.Equal(x.buf[:2<<20], zeroes[:]), "memory was written")
		x.neighbour()
	})
}
