package iwarp

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/mpa"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestHostile sends FPDUs that are wrong. The peer is told, the connection ends, memory does not
// change, and the connection beside it works.
func TestHostile(t *testing.T) {
	const open, size = 1 << 20, 4096 // a region that the peer may write, not read
	send := header{op: opSend, last: true, msn: 1}
	request := header{
		op: opReadRequest, last: true, queue: queueRead, msn: 1, stag: 7, size: 100,
	}
	for _, c := range []struct {
		name string
		make func(x *attacker, key uint32) []byte
		want reason
		recv verbs.WCStatus // of the receive
	}{
		{"length 0", func(*attacker, uint32) []byte { return make([]byte, 8) }, badLength, 0},
		{"length of half a header", func(*attacker, uint32) []byte {
			return append([]byte{0, 10}, frame(send, "", false)[2:]...)
		}, badLength, 0},
		{"unknown key", func(x *attacker, key uint32) []byte {
			h := header{op: opWrite, last: true, stag: key ^ 1, to: x.at(open)}
			return frame(h, "x", false)
		}, badSTag, 0},
		{"local key", func(x *attacker, _ uint32) []byte {
			m := x.region(open, size, verbs.AccessLocalWrite)
			x.t.Cleanup(func() { testutil.Check(x.t, m.Dereg()) })
			h := header{op: opWrite, last: true, stag: m.RKey(), to: x.at(open)}
			return frame(h, "x", false)
		}, badSTag, 0},
		{"beyond the region", func(x *attacker, key uint32) []byte {
			h := header{op: opWrite, last: true, stag: key, to: x.at(open + size - 1)}
			return frame(h, "xx", false)
		}, badSTag, 0},
		{"end of the address space", func(_ *attacker, key uint32) []byte {
			return frame(header{op: opWrite, last: true, stag: key, to: 1<<64 - 1}, "xx", false)
		}, badSTag, 0},
		{"message number 0", func(*attacker, uint32) []byte {
			return frame(header{op: opSend, last: true}, "x", false)
		}, badMSN, 0},
		{"gap of message numbers", func(*attacker, uint32) []byte {
			return frame(header{op: opSend, last: true, msn: 2}, "x", false)
		}, badMSN, 0},
		{"offset of the first segment", func(*attacker, uint32) []byte {
			return frame(header{op: opSend, last: true, msn: 1, mo: 1}, "x", false)
		}, badOffset, 0},
		{"gap of offsets", func(*attacker, uint32) []byte {
			return append(frame(header{op: opSend, msn: 1}, "xxxx", false),
				frame(header{op: opSend, last: true, msn: 1, mo: 5}, "x", false)...)
		}, badOffset, verbs.WCWRFlushErr},
		{"another operation within", func(*attacker, uint32) []byte {
			return append(frame(header{op: opSend, msn: 1}, "xxxx", false),
				frame(header{op: opSendSolicited, last: true, msn: 1, mo: 4}, "x", false)...)
		}, badOpcode, verbs.WCWRFlushErr},
		{"queue of READs", func(*attacker, uint32) []byte {
			return frame(header{op: opSend, last: true, queue: queueRead, msn: 1}, "x", false)
		}, badQueue, 0},
		{"no receive", func(*attacker, uint32) []byte {
			next := header{op: opSend, last: true, msn: 2}
			return append(frame(send, "x", false), frame(next, "x", false)...)
		}, noBuffer, verbs.WCSuccess},
		{"longer than its receive", func(*attacker, uint32) []byte {
			return frame(send, strings.Repeat("x", 101), false)
		}, tooLong, verbs.WCLocLenErr},
		{"unknown operation", func(*attacker, uint32) []byte {
			b := frame(send, "x", false)
			b[3] |= 15
			return b
		}, badOpcode, 0},
		{"tagged SEND", func(*attacker, uint32) []byte {
			b := frame(send, "x", false)
			b[2] |= 0x80
			return b
		}, badOpcode, 0},
		{"DDP version", func(*attacker, uint32) []byte {
			b := frame(send, "x", false)
			b[2] &^= 3
			return b
		}, badUntaggedVersion, 0},
		{"DDP version of a WRITE", func(*attacker, uint32) []byte {
			b := frame(header{op: opWrite, last: true}, "x", false)
			b[2] &^= 3
			return b
		}, badTaggedVersion, 0},
		{"RDMAP version", func(*attacker, uint32) []byte {
			b := frame(send, "x", false)
			b[3] &^= 0xc0
			return b
		}, badRDMAPVersion, 0},
		{"READ without a right", func(x *attacker, key uint32) []byte {
			h := request
			h.source, h.sourceTo = key, x.at(open)
			return frame(h, "", false)
		}, badSourceSTag, 0},
		{"READ with payload", func(*attacker, uint32) []byte {
			return frame(request, "xxxx", false)
		}, badLength, 0},
		{"READ out of turn", func(*attacker, uint32) []byte {
			h := request
			h.msn = 2
			return frame(h, "", false)
		}, badMSN, 0},
		{"more READs than agreed", func(x *attacker, _ uint32) (b []byte) {
			for i := range 3 {
				h := request
				h.msn, h.source, h.sourceTo = uint32(i+1), x.mr.RKey(), x.at(0)
				b = append(b, frame(h, "", false)...)
			}
			return b
		}, noBuffer, 0},
		{"response without a READ", func(*attacker, uint32) []byte {
			return frame(header{op: opReadResponse, last: true}, "x", false)
		}, badSTag, 0},
		{"invalidation of an unknown key", func(_ *attacker, key uint32) []byte {
			h := send
			h.op, h.stag = opSendInvalidate, key^1
			return frame(h, "x", false)
		}, badInvalidate, verbs.WCRemInvReqErr},
		{"Terminate on another queue", func(*attacker, uint32) []byte {
			return frame(header{op: opTerminate, last: true, msn: 1}, "xxxx", false)
		}, badQueue, 0},
		{"long Terminate", func(*attacker, uint32) []byte {
			h := header{op: opTerminate, last: true, queue: queueTerminate, msn: 1}
			return frame(h, strings.Repeat("x", 1000), false)
		}, badLength, 0},
	} {
		run := func(t *testing.T, write func(*attacker, []byte)) {
			x := newAttacker(t, mpa.Peer{ResponderResources: 2, InitiatorDepth: 2})
			x.victim.recv(5, 2<<20, 100)
			m := x.region(open, size, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
			defer func() { testutil.Check(t, m.Dereg()) }()
			write(x, c.make(x, m.RKey()))
			testutil.Equal(t, x.terminated(), fmt.Sprintf("%04x", uint16(c.want)), "reason")
			status := c.recv
			if status == 0 && c.want != noBuffer || c.name == "more READs than agreed" {
				status = verbs.WCWRFlushErr
			}
			x.victim.want(5, status)
			testutil.True(t, !bytes.Contains(x.buf[:2<<20], []byte("x")), "memory was written")
			x.neighbour()
		}
		t.Run(c.name, func(t *testing.T) { run(t, (*attacker).write) })
		if c.name != "more READs than agreed" { // slowly they are no more
			t.Run(c.name+", slowly", func(t *testing.T) { run(t, (*attacker).writeSlowly) })
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
