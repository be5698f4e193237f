package cmwire

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestGolden: the bytes of records, which have the sizes of include/linux/nvme-rdma.h.
func TestGolden(t *testing.T) {
	tests := []struct {
		name string
		got  []byte
		want string
	}{
		{
			"request, admin queue of Linux", Bytes(Req{HRQSize: 32, HSQSize: 31}),
			"0000 0000 2000 1f00 0000" + strings.Repeat("00", 22),
		},
		{
			"request, I/O queue",
			Bytes(Req{0, 0x0102, 0x0304, 0x0506, 0x0708, [22]byte{}}),
			"0000 0201 0403 0605 0807" + strings.Repeat("00", 22),
		},
		{"accept", Bytes(Rep{CRQSize: 0x0180}), "0000 8001" + strings.Repeat("00", 28)},
		{"reject", Bytes(Rej{Status: InvalidCNTLID}), "0000 0900"},
	}
	for _, tt := range tests {
		if got := hex.EncodeToString(tt.got); got != strings.ReplaceAll(tt.want, " ", "") {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestParseReq(t *testing.T) {
	full := testutil.Unhex(t, "0000 0200 8000 7f00 0500"+strings.Repeat("00", 22))
	r, ok := ParseReq(append(full, make([]byte, 24)...)) // padded, as RoCE does
	testutil.True(t, ok && r.RecFmt == 0 && r.QID == 2 && r.HRQSize == 128 &&
		r.HSQSize == 127 && r.CNTLID == 5, "%x: %v", r, ok)
	for _, n := range []int{0, 1, 8, 31} {
		if _, ok := ParseReq(full[:n]); ok {
			t.Errorf("%d bytes were taken", n)
		}
	}
	_, ok = ParseReq(make([]byte, 56))
	testutil.True(t, !ok, "padding alone was taken")
}

func TestParseAnswers(t *testing.T) {
	r, ok := Parse[Rep](testutil.Unhex(t, "0000 2000"+strings.Repeat("00", 192)))
	testutil.True(t, ok && r.CRQSize == 32 && r.RecFmt == 0, "accept: %x %v", r, ok)
	_, ok = Parse[Rep](make([]byte, 31))
	testutil.True(t, !ok, "a short accept was taken")
	if r, ok := Parse[Rej](testutil.Unhex(t, "0000 0600 ffff")); !ok || r.Status != NoResources ||
		r.RecFmt != 0 {
		t.Errorf("reject: %x %v", r, ok)
	}
	_, ok = Parse[Rej](make([]byte, 3))
	testutil.True(t, !ok, "a short reject was taken")
}

func TestCheck(t *testing.T) {
	limits := Limits{MaxQID: 64, MaxAdminDepth: 32, MaxDepth: 128, MaxCNTLID: 0xFFEF}
	make := func(qid, hrq, hsq, cntlid uint16) Req {
		return Req{QID: qid, HRQSize: hrq, HSQSize: hsq, CNTLID: cntlid}
	}
	format1 := make(1, 128, 127, 1)
	format1.RecFmt = 1
	tests := []struct {
		name string
		req  Req
		want Status
	}{
		{"Linux admin queue", make(0, 32, 31, 0), Accepted},
		{"Linux I/O queue", make(1, 128, 127, 1), Accepted},
		{"I/O queue without controller ID, as old hosts", make(64, 128, 127, 0), Accepted},
		{"fewer receives than commands", make(1, 1, 127, 1), Accepted},
		{"many receives", make(1, 0xFFFF, 1, 0xFFEF), Accepted},
		{"record format", format1, InvalidRecFmt},
		{"queue ID", make(65, 128, 127, 1), InvalidQID},
		{"queue ID FFFFh", make(0xFFFF, 128, 127, 1), InvalidQID},
		{"admin queue too deep", make(0, 32, 32, 0), InvalidHSQSize},
		{"I/O queue too deep", make(1, 128, 128, 1), InvalidHSQSize},
		{"HSQSIZE FFFFh", make(1, 128, 0xFFFF, 1), InvalidHSQSize},
		{"HSQSIZE 0", make(1, 128, 0, 1), InvalidHSQSize},
		{"HRQSIZE 0", make(1, 0, 127, 1), InvalidHRQSize},
		{"controller ID on the admin queue", make(0, 32, 31, 1), InvalidCNTLID},
		{"controller ID FFF0h", make(1, 128, 127, 0xFFF0), InvalidCNTLID},
	}
	for _, tt := range tests {
		got, accepted := tt.req.Check(&limits), tt.want == Accepted
		testutil.True(t, got.Status == tt.want && (got.Expected == "") == accepted &&
			(got.Received == "") == accepted, "%s: %+v, want %v", tt.name, got, tt.want)
	}
}

func TestStatusString(t *testing.T) {
	for s, want := range map[Status]string{
		InvalidLength: "invalid private data length (1)",
		InvalidCNTLID: "invalid controller ID (9)", 10: "reserved status (10)",
	} {
		testutil.Equal(t, s.Error(), want, "")
	}
	for s := Accepted; s < statusCount; s++ {
		testutil.True(t, statusNames[s] != "", "status %d has no name", s)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 56))
	f.Add(Bytes(Req{QID: 1, HRQSize: 128, HSQSize: 127, CNTLID: 5}))
	limits := Limits{MaxQID: 64, MaxAdminDepth: 32, MaxDepth: 128, MaxCNTLID: 0xFFEF}
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, ok := ParseReq(b); ok {
			if r.Check(&limits).Status == Accepted {
				again := Bytes(r)
				testutil.MustEqual(t, [10]byte(again), [10]byte(b), "%x reads back as %x", b, again)
				testutil.MustTrue(t, int(r.HSQSize)+1 <= 128 && r.HSQSize != 0 &&
					r.HRQSize != 0 && r.QID <= 64, "%x was accepted", r)
			}
		} else if len(b) >= ReqSize && [ReqSize]byte(b[:ReqSize]) != [ReqSize]byte{} {
			t.Fatalf("%x was refused", b)
		}
		_, ok := Parse[Rep](b)
		testutil.MustTrue(t, ok == (len(b) >= RepSize), "accept")
		_, ok = Parse[Rej](b)
		testutil.MustTrue(t, ok == (len(b) >= RejSize), "reject")
	})
}
