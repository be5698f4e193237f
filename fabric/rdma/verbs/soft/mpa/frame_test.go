package mpa

import (
	"bytes"
	"io"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// TestFrame is the request of the kernel's siw, with a depth of 32 in both directions.
func TestFrame(t *testing.T) {
	want := []byte("MPA ID Req Frame\x10\x02\x00\x06\x00\x20\x40\x10hi")
	f := &frame{revision: 2, flags: flagEnhanced, ird: 32, ord: rtrRead | 16, private: []byte("hi")}
	testutil.Equal(t, string(f.encode(requestKey)), string(want), "frame")
	got := testutil.Value(readFrame(bytes.NewReader(want), requestKey))(t)
	testutil.Equal(t, string(got.encode(requestKey)), string(want), "frame read back")
	ird, ord := got.depths()
	testutil.True(t, ird == 32 && ord == 16 && got.rtr() == NoRTR, "%d, %d, %v", ird, ord,
		got.rtr())

	old := []byte("MPA ID Rep Frame\x40\x01\x00\x02no")
	got = testutil.Value(readFrame(bytes.NewReader(old), replyKey))(t)
	ird, ord = got.depths()
	testutil.True(t, ird == 1 && ord == 1 && got.is(flagCRC) && string(got.private) == "no",
		"%+v", got)
}

// TestRTR chooses a WRITE or a READ, also if only a zero-length SEND is offered. A reply must
// choose one that was offered.
func TestRTR(t *testing.T) {
	const zeroSend = 0x4000 // RFC 6581, section 9.2
	for _, c := range []struct {
		ird, ord uint16
		want     RTR
	}{
		{0, rtrWrite, NoRTR},
		{peerToPeer, rtrWrite | rtrRead, RTRWrite},
		{peerToPeer | zeroSend, rtrRead, RTRRead},
		{peerToPeer | zeroSend, 0, RTRWrite},
		{peerToPeer, 0, RTRWrite},
	} {
		f := frame{revision: 2, flags: flagEnhanced, ird: c.ird, ord: c.ord}
		testutil.Equal(t, f.rtr(), c.want, "RTR of %#x, %#x", c.ird, c.ord)
		reply := frame{revision: 2, flags: flagEnhanced}
		reply.setRTR(c.want)
		testutil.Equal(t, reply.rtr(), c.want, "RTR of the reply")
	}
	offer := frame{revision: 2, flags: flagEnhanced, ird: peerToPeer, ord: rtrWrite | rtrRead}
	for _, ird := range []uint16{peerToPeer | zeroSend, peerToPeer, 0} {
		reply := frame{revision: 2, flags: flagEnhanced, ird: ird}
		testutil.True(t, !offer.agrees(&reply), "agrees with a reply of %#x", ird)
	}
}

// TestBadFrames: none of them makes us wait for the private data, or hold more than it may have.
func TestBadFrames(t *testing.T) {
	for _, c := range []string{
		"MPA ID Req Frame\x00\x01\xff\xff", "MPA ID Req Frame\x00\x01\x02\x01",
		"MPA ID Req Frame\x00\x03\x00\x00", "MPA ID Req Frame\x00\x00\x00\x00",
		"MPA ID Rep Frame\x00\x01\x00\x00", "MPA ID Req Frame\x10\x02\x00\x03abc",
	} {
		r := bytes.NewReader([]byte(c + "more"))
		testutil.Is(t, testutil.Err(readFrame(r, requestKey)), errFrame, "%q", c)
		testutil.True(t, r.Len() >= 4, "%q: it has read on", c)
	}
}

// FuzzFrame reads any bytes.
func FuzzFrame(f *testing.F) {
	f.Add([]byte("MPA ID Req Frame\x10\x02\x00\x06\x00\x20\x40\x10hi"))
	f.Add([]byte("MPA ID Req Frame\x00\x01\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		q, err := readFrame(r, requestKey)
		if err != nil {
			return
		}
		read := b[:len(b)-r.Len()]
		again := testutil.Value(readFrame(bytes.NewReader(q.encode(requestKey)), requestKey))(t)
		testutil.True(t, again.flags == q.flags && again.revision == q.revision &&
			again.ird == q.ird && again.ord == q.ord && bytes.Equal(again.private, q.private),
			"%+v read back as %+v", q, again)
		testutil.True(t, len(read) <= headerSize+maxPrivate && len(q.private) <= maxPrivate,
			"%d bytes read", len(read))
		q.rtr()
		_ = q.agrees(again)
		_, err = readFrame(bytes.NewReader(read[:len(read)-1]), requestKey)
		testutil.True(t, err == io.EOF || err == io.ErrUnexpectedEOF, "a byte less: %v", err)
	})
}
