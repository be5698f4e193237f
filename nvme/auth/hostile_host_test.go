package auth

import (
	"encoding/binary"
	"errors"
	"math/big"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestHostileChallenge: challenges that a host must not answer (Base section 8.3.4.5).
func TestHostileChallenge(t *testing.T) {
	m := groups[FFDHE2048].modulus()
	p := new(big.Int).SetBytes(m.Nat().Bytes(m))
	one, hash := big.NewInt(1), SHA256.Size()
	public := func(v *big.Int) func(m []byte) []byte {
		return func(m []byte) []byte {
			v.FillBytes(m[headerSize+hash:])
			return m
		}
	}
	number := func(at int, v uint16) func(m []byte) []byte {
		return func(m []byte) []byte {
			binary.LittleEndian.PutUint16(m[at:], v)
			return m
		}
	}
	for _, tc := range []struct {
		name   string
		change func(m []byte) []byte
		want   Reason
	}{
		{
			"S1 of 0", func(m []byte) []byte { return slices.Replace(m, 12, 16, 0, 0, 0, 0) },
			IncorrectPayload,
		},
		{"public value 0", public(new(big.Int)), IncorrectPayload},
		{"public value 1", public(one), IncorrectPayload},
		{"public value p-1", public(new(big.Int).Sub(p, one)), IncorrectPayload},
		{"public value p", public(p), IncorrectPayload},
		{"public value p+1", public(new(big.Int).Add(p, one)), IncorrectPayload},
		{"truncated", func(m []byte) []byte { return m[:len(m)-1] }, IncorrectPayload},
		{"only a header", func(m []byte) []byte { return m[:headerSize] }, IncorrectPayload},
		{"half a header", func(m []byte) []byte { return m[:headerSize-1] }, IncorrectPayload},
		{"empty", func([]byte) []byte { return nil }, IncorrectPayload},
		{"public value of 0 bytes", number(10, 0), IncorrectPayload},
		{"public value of 255 bytes", number(10, 255), IncorrectPayload},
		{"public value of 65535 bytes", number(10, 0xFFFF), IncorrectPayload},
		{"group of another size", func(m []byte) []byte {
			m[9] = byte(FFDHE3072)
			return m
		}, IncorrectPayload},
		{"transaction", number(4, 9), IncorrectMessage},
		{"success", func([]byte) []byte { return success1(0x0102, hash, nil) }, IncorrectMessage},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h, c, p := pair(t, FFDHE2048)
			c.Sent(h.Negotiate(0x0102), p)
			send, err := h.Challenged(tc.change(slices.Clone(c.Message())))
			r, _ := errors.AsType[Reason](err)
			testutil.True(t, r == tc.want, "%v, not %v", err, tc.want)
			testutil.True(t, len(send) == 8 && kind(send) == kindFailure2 &&
				Reason(send[7]) == tc.want, "the controller gets %x", send)
			testutil.True(t, h.x.exponent == nil && h.x.session == nil, "secrets are left")
			c.Read()
			if c.Sent(send, p); c.State() != Failed || c.Reason() != tc.want {
				t.Errorf("the controller: %v, %v", c.State(), c.Reason())
			}
		})
	}
}

// TestNoSequence: S2 is 0 if the controller does not have to authenticate itself: C2 is for a PSK,
// and without concatenation for nothing. The host has authenticated and gets no R2. A host that
// needs R2 refuses (Base section 8.3.4.5).
func TestNoSequence(t *testing.T) {
	h, c, p := pair(t, FFDHE2048)
	m := upTo(t, 1, h, c, p)
	testutil.MustEqual(t, m[8], 1, "CVALID is not set")
	clear(m[12:16])
	c.Sent(m, p)
	answer := slices.Clone(c.Message())
	testutil.True(t, kind(answer) == kindSuccess1 && answer[8] == 0, "the host reads %x", answer)
	c.Read()
	if _, _, both := c.Algorithms(); c.State() != Authenticated || both {
		t.Errorf("%v, in both directions: %v", c.State(), both)
	}
	testutil.Is(t, testutil.Err(h.Succeeded(answer)), AuthenticationFailed, "a host that wants R2")
}
