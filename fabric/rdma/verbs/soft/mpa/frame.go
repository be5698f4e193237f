package mpa

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A frame is an MPA Request or Reply (RFC 5044, section 7.1.1; RFC 6581, section 9).
type frame struct {
	revision uint8
	flags    uint16 // flag constants
	// ird and ord are the numbers of RDMA READs that the sender serves and issues at once, with the
	// control flags. They exist if flagEnhanced is set.
	ird, ord uint16
	private  []byte
}

// Bits of the flags. All but flagLarge are of RFC 5044 and RFC 6581.
const (
	flagMarkers  = 0x8000
	flagCRC      = 0x4000
	flagReject   = 0x2000
	flagEnhanced = 0x1000
	// flagLarge allows FPDUs larger than a TCP segment: a reserved bit that the kernel's siw uses
	// (MPA_RR_FLAG_GSO_EXP in drivers/infiniband/sw/siw/iwarp.h). They are cheaper in software.
	flagLarge = 0x0800
)

// Control flags in ird and ord (RFC 6581, section 9.2).
const (
	peerToPeer = 0x8000 // ird: an RTR message of the active side makes the connection ready
	rtrWrite   = 0x8000 // ord: it may be a zero-length RDMA WRITE
	rtrRead    = 0x4000 // ord: it may be a zero-length RDMA READ
	depthMask  = 0x3fff
)

const (
	keySize    = 16
	headerSize = keySize + 4
	// maxPrivate is the longest private data with ird and ord (RFC 5044, section 7.1.1).
	maxPrivate = 512
	// userPrivate is the largest length of the private data of a program, as in Linux.
	userPrivate = 255
	// maxRevision is the revision of the enhanced connection set-up.
	maxRevision = 2
)

const (
	requestKey = "MPA ID Req Frame"
	replyKey   = "MPA ID Rep Frame"
)

func (f *frame) is(flag uint16) bool { return f.flags&flag != 0 }

// encode returns the bytes of the frame.
func (f *frame) encode(key string) []byte {
	b := make([]byte, 0, headerSize+4+len(f.private))
	b = append(b, key...)
	b = binary.BigEndian.AppendUint16(b, f.flags|uint16(f.revision))
	n := len(f.private)
	if f.is(flagEnhanced) {
		n += 4
	}
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	if f.is(flagEnhanced) {
		b = binary.BigEndian.AppendUint16(b, f.ird)
		b = binary.BigEndian.AppendUint16(b, f.ord)
	}
	return append(b, f.private...)
}

var errFrame = errors.New("malformed MPA frame")

// readFrame reads a frame and nothing after it, with little memory for any length.
func readFrame(r io.Reader, key string) (*frame, error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	f := &frame{revision: head[keySize+1], flags: uint16(head[keySize]) << 8}
	n := binary.BigEndian.Uint16(head[keySize+2:])
	switch {
	case string(head[:keySize]) != key:
		return nil, fmt.Errorf("%w: no key", errFrame)
	case n > maxPrivate:
		return nil, fmt.Errorf("%w: %d bytes of private data", errFrame, n)
	case f.revision < 1 || f.revision > maxRevision:
		return nil, fmt.Errorf("%w: revision %d", errFrame, f.revision)
	}
	if f.revision == 1 {
		f.flags &^= flagEnhanced // a reserved bit there
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	if f.is(flagEnhanced) {
		if n < 4 {
			return nil, fmt.Errorf("%w: no IRD and ORD", errFrame)
		}
		f.ird, f.ord = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		b = b[4:]
	}
	f.private = b
	return f, nil
}

// RTR is the first message of a peer-to-peer connection: the active side can receive.
type RTR uint8

// The kinds of RTR messages.
const (
	NoRTR RTR = iota
	RTRWrite
	RTRRead
)

// rtr returns the kind that a frame offers, or has chosen: the cheapest of several. A zero-length
// SEND (0x4000 in ird) is not supported: no driver of Linux sends or chooses one, since it would
// take a receive. A peer that offers nothing else is asked for a WRITE, as siw does.
func (f *frame) rtr() RTR {
	switch {
	case !f.is(flagEnhanced) || f.ird&peerToPeer == 0:
		return NoRTR
	case f.ord&rtrWrite != 0:
		return RTRWrite
	case f.ord&rtrRead != 0:
		return RTRRead
	}
	return RTRWrite
}

// setRTR sets the control flags of a reply.
func (f *frame) setRTR(k RTR) {
	switch k {
	case RTRWrite:
		f.ird, f.ord = f.ird|peerToPeer, f.ord|rtrWrite
	case RTRRead:
		f.ird, f.ord = f.ird|peerToPeer, f.ord|rtrRead
	}
}

// depths returns the numbers of READs that the sender serves and issues. Revision 1 does not have
// them, and every device can do one.
func (f *frame) depths() (ird, ord uint8) {
	if !f.is(flagEnhanced) {
		return 1, 1
	}
	return uint8(min(f.ird&depthMask, 255)), uint8(min(f.ord&depthMask, 255))
}
