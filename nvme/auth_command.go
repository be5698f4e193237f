package nvme

import "encoding/binary"

// AuthSQE is an Authentication Send or Authentication Receive command (Base sections 6.2 and 6.1).
type AuthSQE SQE

// Auth views s as an Authentication Send or Receive command.
func (s *SQE) Auth() *AuthSQE { return (*AuthSQE)(s) }

// Protocol reports whether the security protocol is that of NVMe, E9h, with SPSP0 and SPSP1 set to
// 1: in-band authentication.
func (s *AuthSQE) Protocol() bool { return s[41] == 1 && s[42] == 1 && s[43] == 0xE9 }

// Length is TL or AL: the bytes that the host sends, or has room for.
func (s *AuthSQE) Length() uint32 { return binary.LittleEndian.Uint32(s[44:]) }

// Set makes a FabricsAuthSend or FabricsAuthReceive; the caller sets SGL and CID.
func (s *AuthSQE) Set(t FabricsType, length uint32) {
	s[0], s[4] = byte(FabricsOpcode), byte(t)
	s[41], s[42], s[43] = 1, 1, 0xE9
	binary.LittleEndian.PutUint32(s[44:], length)
}
