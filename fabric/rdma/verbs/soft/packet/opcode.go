package packet

import "fmt"

// An Opcode is the operation and position of a packet (section 9.2). The upper three
// bits are the transport: RC is 000, UD is 011, and 100 is CNP.
type Opcode uint8

// Opcodes of the reliable connection (RC) transport.
const (
	SendFirst          Opcode = 0x00
	SendMiddle         Opcode = 0x01
	SendLast           Opcode = 0x02
	SendLastImm        Opcode = 0x03
	SendOnly           Opcode = 0x04
	SendOnlyImm        Opcode = 0x05
	WriteFirst         Opcode = 0x06
	WriteMiddle        Opcode = 0x07
	WriteLast          Opcode = 0x08
	WriteLastImm       Opcode = 0x09
	WriteOnly          Opcode = 0x0a
	WriteOnlyImm       Opcode = 0x0b
	ReadRequest        Opcode = 0x0c
	ReadResponseFirst  Opcode = 0x0d
	ReadResponseMiddle Opcode = 0x0e
	ReadResponseLast   Opcode = 0x0f
	ReadResponseOnly   Opcode = 0x10
	Acknowledge        Opcode = 0x11
	AtomicAcknowledge  Opcode = 0x12
	CompareSwap        Opcode = 0x13
	FetchAdd           Opcode = 0x14
	SendLastInvalidate Opcode = 0x16
	SendOnlyInvalidate Opcode = 0x17
)

// Opcodes of other transports.
const (
	UDSendOnly    Opcode = 0x64
	UDSendOnlyImm Opcode = 0x65
	// CNP is the congestion notification packet (section A17.9.3).
	CNP Opcode = 0x81
)

// A Kind is the operation of an opcode.
type Kind uint8

// Kinds of opcodes.
const (
	// KindOther is every opcode without a kind of its own: atomics, messages with immediate data,
	// reserved opcodes and other transports. Header.Parse takes only the BTH of them apart.
	KindOther        Kind = iota
	KindSend              // requests: SEND, SEND_WITH_INV
	KindWrite             // RDMA WRITE
	KindRead              // RDMA READ request
	KindReadResponse      // responses: data of a READ
	KindAck               // ACK and NAK
	KindDatagram          // SEND of the UD transport
	KindCNP
)

// shape describes the packets of an opcode.
type shape struct {
	kind                   Kind
	first, last            bool
	reth, aeth, ieth, deth bool
	payload                bool
	size                   uint8 // of BTH and the extended headers
	name                   string
}

var shapes = func() (t [256]shape) {
	for op, s := range map[Opcode]shape{
		SendFirst:  {kind: KindSend, first: true, payload: true, name: "SEND first"},
		SendMiddle: {kind: KindSend, payload: true, name: "SEND middle"},
		SendLast:   {kind: KindSend, last: true, payload: true, name: "SEND last"},
		SendOnly: {
			kind: KindSend, first: true, last: true, payload: true, name: "SEND only",
		},
		SendLastInvalidate: {
			kind: KindSend, last: true, ieth: true, payload: true,
			name: "SEND last with invalidate",
		},
		SendOnlyInvalidate: {
			kind: KindSend, first: true, last: true, ieth: true, payload: true,
			name: "SEND only with invalidate",
		},
		WriteFirst:  {kind: KindWrite, first: true, reth: true, payload: true, name: "WRITE first"},
		WriteMiddle: {kind: KindWrite, payload: true, name: "WRITE middle"},
		WriteLast:   {kind: KindWrite, last: true, payload: true, name: "WRITE last"},
		WriteOnly: {
			kind: KindWrite, first: true, last: true, reth: true, payload: true, name: "WRITE only",
		},
		ReadRequest: {kind: KindRead, first: true, last: true, reth: true, name: "READ request"},
		ReadResponseFirst: {
			kind: KindReadResponse, first: true, aeth: true, payload: true,
			name: "READ response first",
		},
		ReadResponseMiddle: {kind: KindReadResponse, payload: true, name: "READ response middle"},
		ReadResponseLast: {
			kind: KindReadResponse, last: true, aeth: true, payload: true,
			name: "READ response last",
		},
		ReadResponseOnly: {
			kind: KindReadResponse, first: true, last: true, aeth: true, payload: true,
			name: "READ response only",
		},
		Acknowledge: {kind: KindAck, first: true, last: true, aeth: true, name: "ACK"},
		UDSendOnly: {
			kind: KindDatagram, first: true, last: true, deth: true, payload: true,
			name: "UD SEND only",
		},
		CNP: {kind: KindCNP, first: true, last: true, payload: true, name: "CNP"},
	} {
		s.size = BTHSize
		if s.reth {
			s.size += RETHSize
		}
		if s.aeth {
			s.size += AETHSize
		}
		if s.ieth {
			s.size += IETHSize
		}
		if s.deth {
			s.size += DETHSize
		}
		t[op] = s
	}
	return t
}()

// Kind returns the operation.
func (o Opcode) Kind() Kind { return shapes[o].kind }

// First reports whether a message begins with the packet: first or only.
func (o Opcode) First() bool { return shapes[o].first }

// Last reports whether a message ends with the packet: last or only.
func (o Opcode) Last() bool { return shapes[o].last }

// Invalidates reports whether the packet has an IETH.
func (o Opcode) Invalidates() bool { return shapes[o].ieth }

// RC reports whether the opcode is one of the reliable connection transport.
func (o Opcode) RC() bool { return o>>5 == 0 }

// Response reports whether the packet goes from responder to requester. A response has the PSN of
// the request that it answers.
func (o Opcode) Response() bool {
	return o.RC() && o >= ReadResponseFirst && o <= AtomicAcknowledge
}

// HeaderSize is the length of BTH and the extended headers of the opcode; 0 for KindOther.
func (o Opcode) HeaderSize() int { return int(shapes[o].size) }

func (o Opcode) String() string {
	if s := shapes[o].name; s != "" {
		return s
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}
