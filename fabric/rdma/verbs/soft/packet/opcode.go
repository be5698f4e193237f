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
	SendOnly           Opcode = 0x04
	SendOnlyImm        Opcode = 0x05
	WriteFirst         Opcode = 0x06
	WriteMiddle        Opcode = 0x07
	WriteLast          Opcode = 0x08
	WriteOnly          Opcode = 0x0a
	ReadRequest        Opcode = 0x0c
	ReadResponseFirst  Opcode = 0x0d
	ReadResponseMiddle Opcode = 0x0e
	ReadResponseLast   Opcode = 0x0f
	ReadResponseOnly   Opcode = 0x10
	Acknowledge        Opcode = 0x11
	AtomicAcknowledge  Opcode = 0x12
	FetchAdd           Opcode = 0x14
	SendLastInvalidate Opcode = 0x16
	SendOnlyInvalidate Opcode = 0x17
)

// Opcodes of other transports.
const (
	UDSendOnly Opcode = 0x64
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
	name string
	kind Kind
	has  parts
	size uint8 // of BTH and the extended headers
}

// parts is the place of a packet in its message, and its contents besides BTH.
type parts uint8

const (
	first parts = 1 << iota
	last
	reth // and the other headers in the order of headerSizes
	aeth
	ieth
	deth
	payload
	only = first | last
)

var headerSizes = [...]uint8{RETHSize, AETHSize, IETHSize, DETHSize}

var shapes = func() (t [256]shape) {
	for op, s := range map[Opcode]shape{
		SendFirst:          {"SEND first", KindSend, first | payload, 0},
		SendMiddle:         {"SEND middle", KindSend, payload, 0},
		SendLast:           {"SEND last", KindSend, last | payload, 0},
		SendOnly:           {"SEND only", KindSend, only | payload, 0},
		SendLastInvalidate: {"SEND last with invalidate", KindSend, last | ieth | payload, 0},
		SendOnlyInvalidate: {"SEND only with invalidate", KindSend, only | ieth | payload, 0},
		WriteFirst:         {"WRITE first", KindWrite, first | reth | payload, 0},
		WriteMiddle:        {"WRITE middle", KindWrite, payload, 0},
		WriteLast:          {"WRITE last", KindWrite, last | payload, 0},
		WriteOnly:          {"WRITE only", KindWrite, only | reth | payload, 0},
		ReadRequest:        {"READ request", KindRead, only | reth, 0},
		ReadResponseFirst:  {"READ response first", KindReadResponse, first | aeth | payload, 0},
		ReadResponseMiddle: {"READ response middle", KindReadResponse, payload, 0},
		ReadResponseLast:   {"READ response last", KindReadResponse, last | aeth | payload, 0},
		ReadResponseOnly:   {"READ response only", KindReadResponse, only | aeth | payload, 0},
		Acknowledge:        {"ACK", KindAck, only | aeth, 0},
		UDSendOnly:         {"UD SEND only", KindDatagram, only | deth | payload, 0},
		CNP:                {"CNP", KindCNP, only | payload, 0},
	} {
		s.size = BTHSize
		for i, n := range headerSizes {
			if s.has&(reth<<i) != 0 {
				s.size += n
			}
		}
		t[op] = s
	}
	return t
}()

// Kind returns the operation.
func (o Opcode) Kind() Kind { return shapes[o].kind }

// First reports whether a message begins with the packet: first or only.
func (o Opcode) First() bool { return shapes[o].has&first != 0 }

// Last reports whether a message ends with the packet: last or only.
func (o Opcode) Last() bool { return shapes[o].has&last != 0 }

// Invalidates reports whether the packet has an IETH.
func (o Opcode) Invalidates() bool { return shapes[o].has&ieth != 0 }

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
