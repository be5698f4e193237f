package auth

import (
	"crypto/rand"
	"encoding/binary"
	"sync/atomic"
)

// exchange is the state of one run of the protocol that both sides share.
type exchange struct {
	hostNQN, subNQN string
	tid             uint16
	hash            Hash
	group           Group
	concatenation   Concatenation
	exponent        []byte // private, nil with GroupNull
	session         []byte // KS, the hash of the common secret; nil with GroupNull
}

// wipe clears the secrets.
func (x *exchange) wipe() {
	clear(x.exponent)
	clear(x.session)
	x.exponent, x.session = nil, nil
}

// agree computes the session key from the public value of the other side.
func (x *exchange) agree(public []byte) error {
	if x.group == GroupNull {
		return nil
	}
	secret, err := x.group.secret(x.exponent, public)
	if err != nil {
		return err
	}
	x.session = x.hash.sum(secret)
	clear(secret)
	return nil
}

// hostResponse returns R1, the response to the challenge of the controller, and controllerResponse
// R2, the response to that of the host (Base section 8.3.4.5).
func (x *exchange) hostResponse(k *Key, challenge []byte, seq uint32) []byte {
	return x.response(k.transformed(x.hostNQN), challenge, seq, "HostHost", x.hostNQN, x.subNQN)
}

func (x *exchange) controllerResponse(k *Key, challenge []byte, seq uint32) []byte {
	return x.response(k.transformed(x.subNQN), challenge, seq, "Controller", x.subNQN, x.hostNQN)
}

func (x *exchange) response(key, challenge []byte, seq uint32, role, own, other string) []byte {
	defer clear(key)
	if x.session != nil { // the augmented challenge
		challenge = x.hash.hmac(x.session, challenge)
	}
	text := binary.LittleEndian.AppendUint32(nil, seq)
	text = binary.LittleEndian.AppendUint16(text, x.tid)
	text = append(text, byte(x.concatenation)) // SC_C
	text = append(text, role+own+"\x00"+other...)
	return x.hash.hmac(key, challenge, text)
}

func (x *exchange) newChallenge() []byte {
	c := make([]byte, x.hash.Size())
	rand.Read(c) // never fails
	return c
}

// lastSequence is the last sequence number of a challenge. The first one is random.
var lastSequence atomic.Uint32

func init() {
	var b [4]byte
	rand.Read(b[:]) // never fails
	lastSequence.Store(binary.LittleEndian.Uint32(b[:]))
}

// nextSequence returns a sequence number that is not 0.
func nextSequence() uint32 {
	for {
		if n := lastSequence.Add(1); n != 0 {
			return n
		}
	}
}
