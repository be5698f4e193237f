package auth

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/big"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// pair returns a host and a controller that use group g.
func pair(t testing.TB, g Group) (*Host, *Controller, *Policy) {
	k, o := with(t, SHA256), mustKey(t, countingKey)
	return &Host{HostNQN: hostNQN, SubNQN: subNQN, Key: k, ControllerKey: o},
		NewController(hostNQN, subNQN, NoConcatenation),
		&Policy{Keys: []*Key{k}, ControllerKey: o, Groups: []Group{g}}
}

// upTo runs an exchange until the controller waits for message number n, 0 to 2, and returns that
// message.
func upTo(t testing.TB, n int, h *Host, c *Controller, p *Policy) []byte {
	t.Helper()
	m := h.Negotiate(0x0102)
	var err error
	for i := range n {
		if c.Sent(m, p); i == 0 {
			m, err = h.Challenged(c.Message())
		} else {
			m, err = h.Succeeded(c.Message())
		}
		c.Read()
		testutil.Must(t, err)
	}
	return slices.Clone(m)
}

// TestGolden has the bytes of the messages without random parts.
func TestGolden(t *testing.T) {
	const failure1, failure2 = "00f1000002010107", "00f0000002010101"
	n := negotiate{tid: 0x0102, hashes: AllHashes, groups: AllGroups[:2]}
	for want, m := range map[string][]byte{
		"0000000002010001" + "01000302" + "010203": n.bytes()[:15],
		"0001": n.bytes()[8+groupsOffset:][:2],
		"01010000020104000102" + "0200" + "44332211" + "aabbccddeeff": (&challenge{
			tid: 0x0102, hash: SHA256, group: FFDHE3072, seq: 0x11223344,
			value: []byte{0xAA, 0xBB, 0xCC, 0xDD}, public: []byte{0xEE, 0xFF},
		}).bytes(),
		"01020000020102000100" + "0100" + "44332211" + "aabb" + "ccdd" + "ee": (&reply{
			tid: 0x0102, response: []byte{0xAA, 0xBB}, seq: 0x11223344, value: []byte{0xCC, 0xDD},
			public: []byte{0xEE},
		}).bytes(),
		"01030000020102000100000000000000" + "aabb": success1(0x0102, 2, []byte{0xAA, 0xBB}),
		"01030000020102000000000000000000" + "0000": success1(0x0102, 2, nil),
		"01040000020100000000000000000000":          success2(0x0102),
		failure1:                                    failure(kindFailure1, 0x0102, 7),
		failure2:                                    failure(kindFailure2, 0x0102, 1),
	} {
		testutil.Equal(t, hex.EncodeToString(m), want, "")
	}
	if n := len(n.bytes()); n != 72 {
		t.Errorf("AUTH_Negotiate has %d bytes", n)
	}
}

// TestHostileMessages changes each message of the host: the exchange fails with the reason of the
// specification, and no later message changes that.
func TestHostileMessages(t *testing.T) {
	p2048 := groups[FFDHE2048].modulus().Nat().Bytes(groups[FFDHE2048].modulus())
	less := func(n int64) []byte {
		return new(big.Int).Sub(new(big.Int).SetBytes(p2048), big.NewInt(n)).Bytes()
	}
	set := func(i int, v ...byte) func([]byte) []byte {
		return func(m []byte) []byte { return slices.Replace(m, i, i+len(v), v...) }
	}
	public := func(v []byte) func([]byte) []byte {
		return func(m []byte) []byte { return append(m[:len(m)-256], v...) }
	}
	always := func(v []byte) func([]byte) []byte { return func([]byte) []byte { return v } }
	cut := func(m []byte) []byte { return m[:len(m)-1] }
	more := func(m []byte) []byte { return append(m, 0) }
	again := (&Host{}).Negotiate(0x0102)
	for _, tc := range []struct {
		name   string
		step   int
		change func([]byte) []byte
		want   Reason
	}{
		{"empty", 0, always(nil), IncorrectPayload},
		{"5 bytes", 0, func(m []byte) []byte { return m[:5] }, IncorrectPayload},
		{"only a header", 0, func(m []byte) []byte { return m[:7] }, IncorrectPayload},
		{"truncated", 0, cut, IncorrectPayload},
		{"longer", 0, more, IncorrectPayload},
		{"AUTH_TYPE", 0, set(0, 1), IncorrectMessage},
		{"AUTH_ID", 0, set(1, 9), IncorrectMessage},
		{"concatenation", 0, set(6, 1), ConcatenationMismatch},
		{"no protocols", 0, set(7, 0), IncorrectPayload},
		{"255 protocols", 0, set(7, 255), IncorrectPayload},
		{"other protocol", 0, set(8, 2), ProtocolNotUsable},
		{"no hashes", 0, set(10, 0), HashNotUsable},
		{"31 hashes", 0, set(10, 31), IncorrectPayload},
		{"255 groups", 0, set(11, 255), IncorrectPayload},
		{"no groups", 0, set(11, 0), GroupNotUsable},
		{"unknown hashes", 0, set(12, 0, 4, 255), HashNotUsable},
		{"reply at first", 0, always(newMessage(kindReply, 258, 80)), IncorrectMessage},
		{"failure at first", 0, always(failure(kindFailure2, 0x0102, 1)), IncorrectMessage},

		{"truncated", 1, cut, IncorrectPayload},
		{"only a header", 1, func(m []byte) []byte { return m[:headerSize] }, IncorrectPayload},
		{"longer", 1, more, IncorrectPayload},
		{"transaction", 1, set(4, 3), IncorrectPayload},
		{"hash length 0", 1, set(6, 0), IncorrectPayload},
		{"hash length 255", 1, set(6, 255), IncorrectPayload},
		{"CVALID", 1, set(8, 2), IncorrectPayload},
		{"no public value", 1, set(10, 0, 0), IncorrectPayload},
		{"long public value", 1, set(10, 0xFF, 0xFF), IncorrectPayload},
		{"response", 1, set(headerSize, 1, 2, 3), AuthenticationFailed},
		{"public value 0", 1, public(make([]byte, 256)), IncorrectPayload},
		{"public value 1", 1, public(append(make([]byte, 255), 1)), IncorrectPayload},
		{"public value p-1", 1, public(less(1)), IncorrectPayload},
		{"public value p", 1, public(p2048), IncorrectPayload},
		{"public value above p", 1, public(bytes.Repeat([]byte{0xFF}, 256)), IncorrectPayload},
		{"public value of another", 1, public(less(2)), AuthenticationFailed},
		{"negotiate again", 1, always(again), IncorrectMessage},
		{"success2 early", 1, always(success2(0x0102)), IncorrectMessage},
		{"AUTH_Failure2", 1, always(failure(kindFailure2, 0x0102, GroupNotUsable)), GroupNotUsable},
		{"short AUTH_Failure2", 1, always(failure(kindFailure2, 0x0102, 4)[:7]), IncorrectPayload},

		{"transaction", 2, set(4, 3), IncorrectPayload},
		{"truncated", 2, cut, IncorrectPayload},
		{"negotiate again", 2, always(again), IncorrectMessage},
		{"reply again", 2, always(newMessage(kindReply, 0x0102, 400)), IncorrectMessage},
		{"AUTH_Failure2", 2, always(failure(kindFailure2, 0x0102, 1)), AuthenticationFailed},
	} {
		h, c, p := pair(t, FFDHE2048)
		m := tc.change(upTo(t, tc.step, h, c, p))
		c.Sent(m, p)
		testutil.True(t, c.State() == Failed && c.Reason() == tc.want, "%s as message %d: %v",
			tc.name, tc.step, c.Reason())
		if f := c.Message(); len(f) != 8 || kind(f) != kindFailure1 {
			t.Errorf("%s as message %d: the host reads %x", tc.name, tc.step, f)
		}
		c.Read()
		testutil.True(t, exchangeAll(h, c, p) != nil && c.State() == Failed,
			"%s as message %d: an exchange succeeds after it", tc.name, tc.step)
		testutil.True(t, c.x.exponent == nil && c.x.session == nil,
			"%s as message %d: secrets are left", tc.name, tc.step)
	}
}

// TestOrder reads when there is nothing to read, and sends when there is something to read.
func TestOrder(t *testing.T) {
	for n := range 3 {
		h, c, p := pair(t, GroupNull)
		upTo(t, n, h, c, p)
		if m := c.Message(); kind(m) != kindFailure1 || c.Reason() != IncorrectMessage {
			t.Errorf("message %d: the host reads %x", n, m)
		}
	}
	h, c, p := pair(t, GroupNull)
	m := upTo(t, 0, h, c, p)
	c.Sent(m, p)
	c.Sent(m, p)
	testutil.True(t, c.Reason() == IncorrectMessage, "AUTH_Negotiate is taken twice")
}

// TestReplay sends the reply of another exchange.
func TestReplay(t *testing.T) {
	h, c, p := pair(t, GroupNull)
	old := upTo(t, 1, h, c, p)
	h, c, p = pair(t, GroupNull)
	upTo(t, 1, h, c, p)
	if c.Sent(old, p); c.State() != Failed || c.Reason() != AuthenticationFailed {
		t.Error("a reply counts twice")
	}
}

// TestReflection sends the controller's challenge back to it. It is refused; a challenge that
// differs in one bit is answered.
func TestReflection(t *testing.T) {
	for _, flip := range []byte{0, 1} {
		h, c, p := pair(t, GroupNull)
		m := upTo(t, 1, h, c, p)
		h.value = slices.Clone(c.value)
		h.value[31] ^= flip
		copy(m[headerSize+32:], h.value)
		c.Sent(m, p)
		if flip == 0 {
			if f := c.Message(); c.State() != Failed || c.Reason() != AuthenticationFailed ||
				len(f) != 8 {
				t.Errorf("the controller answers its own challenge: %v, %x", c.Reason(), f)
			}
			continue
		}
		testutil.Equal(t, testutil.Err(h.Succeeded(c.Message())), nil,
			"a challenge that differs in one bit")
	}
}

// TestHostileController changes the messages that the host reads.
func TestHostileController(t *testing.T) {
	for _, tc := range []struct {
		name   string
		offset int
		v      byte
		want   Reason
	}{
		{"kind", 1, 3, IncorrectMessage},
		{"transaction", 4, 9, IncorrectMessage},
		{"hash length", 6, 31, HashNotUsable},
		{"hash", 8, 4, HashNotUsable},
		{"group", 9, 6, GroupNotUsable},
		{"size of the public value", 10, 1, IncorrectPayload},
	} {
		h, c, p := pair(t, GroupNull)
		c.Sent(h.Negotiate(1), p)
		m := slices.Clone(c.Message())
		m[tc.offset] = tc.v
		if send, err := h.Challenged(m); err != tc.want || kind(send) != kindFailure2 {
			t.Errorf("%s: %v, %x", tc.name, err, send)
		}
	}
	h, c, p := pair(t, GroupNull)
	c.Sent(h.Negotiate(1), p)
	h.Groups = []Group{FFDHE2048}
	if send, err := h.Challenged(c.Message()); err != GroupNotUsable || kind(send) != kindFailure2 {
		t.Errorf("the host takes a group that it has not offered: %v, %x", err, send)
	}
	h.Groups, h.Hashes = nil, []Hash{SHA512}
	if send, err := h.Challenged(c.Message()); err != HashNotUsable || kind(send) != kindFailure2 {
		t.Errorf("the host takes a hash that it has not offered: %v, %x", err, send)
	}
	h, c, p = pair(t, GroupNull)
	h.ControllerKey = nil
	upTo(t, 1, h, c, p)
	testutil.Check(t, testutil.Err(h.Succeeded(success1(0x0102, 32, nil))))
	h, c, p = pair(t, GroupNull)
	upTo(t, 1, h, c, p)
	testutil.True(t, testutil.Err(h.Succeeded(success1(0x0102, 32, nil))) != nil,
		"a controller without a response is taken for the right one")
	h, _, _ = pair(t, GroupNull)
	h.Negotiate(0x0102)
	_, err := h.Succeeded(success1(0x0102, 0, nil))
	testutil.True(t, err == IncorrectMessage, "success before a challenge: %v", err)
}

// Bits of the input of FuzzMessages besides the step.
const (
	fuzzGroup   = 0x80 // a real group
	fuzzConcat  = 0x40 // concatenation, which needs one
	fuzzChanges = 0x20 // the bytes are changes of the right message
)

// FuzzMessages sends anything at any step, and reads: only the right response of the host
// authenticates.
func FuzzMessages(f *testing.F) {
	begin := func(t testing.TB, n byte) (*Host, *Controller, *Policy, []byte) {
		h, c, p := pair(t, GroupNull)
		if n&(fuzzGroup|fuzzConcat) != 0 {
			p.Groups = []Group{FFDHE2048}
		}
		if n&fuzzConcat != 0 {
			h.Concatenation, c.offers = NewPSK, NewPSK
		}
		return h, c, p, upTo(t, int(n&3)%3, h, c, p)
	}
	for n := range byte(3) {
		for _, bits := range []byte{0, fuzzGroup, fuzzConcat} {
			_, _, _, m := begin(f, n|bits)
			f.Add(n|bits, m)
			f.Add(n|bits|fuzzChanges, []byte{})
			f.Add(n|bits|fuzzChanges, []byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0xFF, 0xFF})
		}
	}
	f.Fuzz(func(t *testing.T, n byte, m []byte) {
		h, c, p, good := begin(t, n)
		if n&fuzzChanges != 0 {
			changes := m
			m = slices.Clone(good)
			for i := range min(len(m), len(changes)) {
				m[i] ^= changes[i]
			}
		}
		right := false
		switch size := SHA256.Size(); int(n&3) % 3 {
		case 1: // R1 and the public value
			right = len(m) == len(good) &&
				bytes.Equal(m[headerSize:][:size], good[headerSize:][:size]) &&
				bytes.Equal(m[headerSize+2*size:], good[headerSize+2*size:])
		case 2:
			right = len(m) == headerSize && kind(m) == kindSuccess2 && m[4] == 2 && m[5] == 1
		}
		c.Sent(m, p)
		c.Message()
		c.Read()
		psk, _ := c.TakePSK()
		testutil.True(t, c.State() != Authenticated || right, "authenticated by %x", m)
		testutil.True(t, psk == nil || right && n&fuzzConcat != 0, "a PSK is made of %x", m)
		testutil.True(t, c.State() != Failed || c.psk == nil && c.x.session == nil &&
			c.x.exponent == nil, "secrets are left of %x", m)
		_, _ = h.Challenged(m)
		_, _ = h.Succeeded(m)
	})
}

// FuzzParseKey parses any text. A valid key is formatted unchanged.
func FuzzParseKey(f *testing.F) {
	f.Add(exampleKey)
	f.Fuzz(func(t *testing.T, text string) {
		k, err := ParseKey(text)
		if err != nil {
			return
		}
		o, err := ParseKey(k.Reveal())
		testutil.True(t, err == nil && o.Equal(k), "%q does not come back: %v", text, err)
	})
}

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
