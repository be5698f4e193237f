package auth

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// MaxMessage is the largest accepted message in bytes. The largest message of the protocol, a reply
// with ffdhe8192, needs 1168. Linux has receive buffers of this size.
const MaxMessage = 4096

// kind is AUTH_TYPE and AUTH_ID, the first two bytes of a message (Base section 8.3.4.5).
type kind [2]byte

var (
	kindNegotiate = kind{0, 0x00}
	kindChallenge = kind{1, 0x01}
	kindReply     = kind{1, 0x02}
	kindSuccess1  = kind{1, 0x03}
	kindSuccess2  = kind{1, 0x04}
	kindFailure2  = kind{0, 0xF0}
	kindFailure1  = kind{0, 0xF1}
)

// Reason is the reason code explanation of AUTH_Failure1 and AUTH_Failure2; the reason code is
// always Authentication Failure (Base section 8.3.4.5).
type Reason uint8

// The reasons.
const (
	AuthenticationFailed Reason = 1 + iota
	ProtocolNotUsable
	ConcatenationMismatch
	HashNotUsable
	GroupNotUsable
	IncorrectPayload
	IncorrectMessage
)

var reasons = [...]string{
	AuthenticationFailed:  "authentication failed",
	ProtocolNotUsable:     "authentication protocol not usable",
	ConcatenationMismatch: "secure channel concatenation mismatch",
	HashNotUsable:         "hash function not usable",
	GroupNotUsable:        "DH group not usable",
	IncorrectPayload:      "incorrect payload",
	IncorrectMessage:      "incorrect protocol message",
}

// Error returns the name of the reason.
func (r Reason) Error() string {
	if r == 0 || int(r) >= len(reasons) {
		return fmt.Sprintf("reason code explanation %02Xh", uint8(r))
	}
	return reasons[r]
}

const (
	failureCode  = 1  // Authentication Failure
	headerSize   = 16 // of all messages but AUTH_Negotiate and the failures
	protocolSize = 64 // of a protocol descriptor
	groupsOffset = 34 // in it
	maxIDs       = 30 // of hash functions, and of groups
	chapID       = 1  // AUTHID of DH-HMAC-CHAP
)

func newMessage(k kind, tid uint16, size int) []byte {
	b := make([]byte, size)
	copy(b, k[:])
	binary.LittleEndian.PutUint16(b[4:], tid)
	return b
}

// header parses the common beginning of all messages; ok is false if b is too short.
func header(b []byte) (k kind, tid uint16, ok bool) {
	if len(b) < 6 {
		return k, 0, false
	}
	return kind(b), binary.LittleEndian.Uint16(b[4:]), true
}

// negotiate is AUTH_Negotiate. Only the descriptor of DH-HMAC-CHAP matters.
type negotiate struct {
	tid           uint16
	concatenation Concatenation
	hashes        []Hash
	groups        []Group
}

func (m *negotiate) bytes() []byte {
	b := newMessage(kindNegotiate, m.tid, 8+protocolSize)
	b[6], b[7] = byte(m.concatenation), 1
	d := b[8:]
	d[0], d[2], d[3] = chapID, byte(len(m.hashes)), byte(len(m.groups))
	for i, h := range m.hashes {
		d[4+i] = byte(h)
	}
	for i, g := range m.groups {
		d[groupsOffset+i] = byte(g)
	}
	return b
}

func parseNegotiate(b []byte) (m negotiate, r Reason) {
	if len(b) < 8 || b[7] == 0 || len(b) != 8+int(b[7])*protocolSize {
		return m, IncorrectPayload
	}
	_, m.tid, _ = header(b)
	m.concatenation = Concatenation(b[6])
	for d := range slices.Chunk(b[8:], protocolSize) {
		if d[0] != chapID {
			continue
		}
		if d[2] > maxIDs || d[3] > maxIDs {
			return m, IncorrectPayload
		}
		for _, id := range d[4:][:d[2]] {
			m.hashes = append(m.hashes, Hash(id))
		}
		for _, id := range d[groupsOffset:][:d[3]] {
			m.groups = append(m.groups, Group(id))
		}
		return m, 0
	}
	return m, ProtocolNotUsable
}

type challenge struct {
	tid    uint16
	hash   Hash
	group  Group
	seq    uint32
	value  []byte // C1
	public []byte
}

func (m *challenge) bytes() []byte {
	b := newMessage(kindChallenge, m.tid, headerSize)
	b[6], b[8], b[9] = byte(len(m.value)), byte(m.hash), byte(m.group)
	binary.LittleEndian.PutUint16(b[10:], uint16(len(m.public)))
	binary.LittleEndian.PutUint32(b[12:], m.seq)
	return append(append(b, m.value...), m.public...)
}

// parseChallenge parses a challenge. Any bytes may follow it.
func parseChallenge(b []byte) (m challenge, r Reason) {
	if len(b) < headerSize {
		return m, IncorrectPayload
	}
	_, m.tid, _ = header(b)
	m.hash, m.group, m.seq = Hash(b[8]), Group(b[9]), binary.LittleEndian.Uint32(b[12:])
	size, public := int(b[6]), int(binary.LittleEndian.Uint16(b[10:]))
	switch rest := b[headerSize:]; {
	case !m.hash.known() || size != m.hash.Size():
		return m, HashNotUsable
	case !m.group.known():
		return m, GroupNotUsable
	case public != m.group.valueSize() || len(rest) < size+public || m.seq == 0:
		return m, IncorrectPayload
	default:
		m.value, m.public = rest[:size], rest[size:][:public]
	}
	return m, 0
}

type reply struct {
	tid      uint16
	response []byte // R1
	seq      uint32 // S2, 0 if the controller does not have to authenticate itself
	value    []byte // C2, nil if CVALID is 0
	public   []byte
}

func (m *reply) bytes() []byte {
	b := newMessage(kindReply, m.tid, headerSize)
	size := len(m.response)
	b[6] = byte(size)
	binary.LittleEndian.PutUint16(b[10:], uint16(len(m.public)))
	binary.LittleEndian.PutUint32(b[12:], m.seq)
	value := m.value
	if value == nil {
		value = make([]byte, size)
	} else {
		b[8] = 1
	}
	return slices.Concat(b, m.response, value, m.public)
}

func parseReply(b []byte, hash Hash, group Group) (m reply, r Reason) {
	if len(b) < headerSize {
		return m, IncorrectPayload
	}
	_, m.tid, _ = header(b)
	size, public := int(b[6]), int(binary.LittleEndian.Uint16(b[10:]))
	if size != hash.Size() || public != group.valueSize() || len(b) != headerSize+2*size+public ||
		b[8] > 1 {
		return m, IncorrectPayload
	}
	m.seq = binary.LittleEndian.Uint32(b[12:])
	rest := b[headerSize:]
	m.response, m.public = rest[:size], rest[2*size:]
	if b[8] == 1 {
		m.value = rest[size:][:size]
	}
	return m, 0
}

// success1 makes DH-HMAC-CHAP_Success1; size is that of a hash, response R2 or nil.
func success1(tid uint16, size int, response []byte) []byte {
	b := newMessage(kindSuccess1, tid, headerSize+size)
	b[6] = byte(size)
	if response != nil {
		b[8] = 1
		copy(b[headerSize:], response)
	}
	return b
}

// parseSuccess1 parses the response of a Success1, nil if it has none. Any bytes may follow it.
func parseSuccess1(b []byte, hash Hash) (response []byte, r Reason) {
	size := hash.Size()
	switch {
	case len(b) < headerSize || len(b) < headerSize+size && b[8] == 1:
		return nil, IncorrectPayload
	case int(b[6]) != size:
		return nil, HashNotUsable
	case b[8] == 1:
		return b[headerSize:][:size], 0
	}
	return nil, 0
}

func success2(tid uint16) []byte { return newMessage(kindSuccess2, tid, headerSize) }

// failure makes AUTH_Failure1 or AUTH_Failure2.
func failure(k kind, tid uint16, r Reason) []byte {
	b := newMessage(k, tid, 8)
	b[6], b[7] = failureCode, byte(r)
	return b
}

// parseFailure parses the reason of an AUTH_Failure1 or AUTH_Failure2.
func parseFailure(b []byte) Reason {
	if len(b) < 8 {
		return IncorrectPayload
	}
	return Reason(b[7])
}
