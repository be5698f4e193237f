package inventory

import (
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// answers simulates a SAS drive: it has log pages by number and rejects all else as an illegal
// request.
type answers map[uint8]string

func (a answers) read(cdb, data []byte) (sys.SCSIResult, error) {
	page, ok := a[cdb[2]&0x3F]
	if cdb[0] != 0x4D || len(cdb) != 10 || cdb[2]>>6 != 1 ||
		int(cdb[7])<<8|int(cdb[8]) != len(data) || !ok {
		sense := make([]byte, 18)
		sense[0], sense[2], sense[12] = 0x70, 5, 0x24
		return sys.SCSIResult{Status: 2, Sense: sense}, nil
	}
	if page == "missing" {
		return sys.SCSIResult{}, errors.New("no such device")
	}
	b, err := hex.DecodeString(strings.ReplaceAll(page, " ", ""))
	if err != nil {
		return sys.SCSIResult{}, err
	}
	return sys.SCSIResult{N: copy(data, b)}, nil
}

func TestSCSI(t *testing.T) {
	// SPC-4: a page has a header of four bytes (code, subpage, length), as has each parameter
	// (code, control, length).
	const good, temperature = "2f00 0008 0000 03 04 0000 1fff",
		"0d00 000c 0000 03 02 001f 0001 03 02 003c"
	for name, tc := range map[string]struct {
		pages answers
		want  Health
		err   string
	}{
		"good": {
			answers{0x2F: good, 0x0D: temperature},
			Health{State: Good, Celsius: 31, Hours: -1, Used: -1},
			"",
		},
		"no temperature": {
			answers{0x2F: good},
			Health{State: Good, Celsius: 31, Hours: -1, Used: -1},
			"",
		},
		"unknown": {answers{
			0x2F: "2f00 0008 0000 03 04 0000 ffff",
			0x0D: "0d00 0006 0000 03 02 00ff",
		}, Health{State: Good, Hours: -1, Used: -1}, ""},
		"hot": {
			answers{
				0x2F: good,
				0x0D: "0d00 000c 0000 03 02 0044 0001 03 02 003c",
			},
			Health{
				State: Warning, Notes: []string{"hotter than its 60 °C"}, Celsius: 68,
				Hours: -1, Used: -1,
			},
			"",
		},
		"hours": {
			answers{
				0x2F: good,
				0x15: "1500 0028 0000 03 0c 0000 1c21 0008 0001 0000 0001 0001 03 14 0000",
			},
			Health{State: Good, Celsius: 31, Hours: 120, Used: -1},
			"",
		},
		"wear": {
			answers{0x2F: good, 0x11: "1100 0008 0001 03 04 0000 0009"},
			Health{State: Good, Celsius: 31, Hours: -1, Used: 9},
			"",
		},
		"worn out": {
			answers{0x2F: good, 0x11: "1100 0008 0001 03 04 0000 0066"},
			Health{State: Warning, Notes: []string{"worn out"}, Celsius: 31, Hours: -1, Used: 102},
			"",
		},
		"failing": {
			answers{0x2F: "2f00 0008 0000 03 04 5d10 2600"},
			Health{
				State: Failing, Notes: []string{"predicts its failure (5D/10h)"}, Celsius: 38,
				Hours: -1, Used: -1,
			},
			"",
		},
		"warning": {
			answers{0x2F: "2f00 0006 0000 03 02 0b01"},
			Health{State: Warning, Notes: []string{"warns (0B/01h)"}, Hours: -1, Used: -1},
			"",
		},
		"vendor's parameter": {
			answers{0x2F: "2f00 000e 0000 03 04 0000 20ff 8000 03 02 5d00"},
			Health{State: Good, Celsius: 32, Hours: -1, Used: -1},
			"",
		},
		"no page": {
			answers{},
			Health{},
			"it does not report its health (sense 70 00 05",
		},
		"missing":      {answers{0x2F: "missing"}, Health{}, "log page 2Fh: no such device"},
		"another page": {answers{0x2F: temperature}, Health{}, "another page"},
		"cut off": {
			answers{0x2F: "2f00 0008 0000 03 08 0000 1fff"},
			Health{},
			"cut off",
		},
		"short": {answers{0x2F: "2f00"}, Health{}, "another page"},
	} {
		h, err := scsiHealth(tc.pages.read)
		if tc.err != "" {
			testutil.Fails(t, err, tc.err, "%s", name)
			continue
		}
		testutil.True(t, err == nil && h.State == tc.want.State && slices.Equal(h.Notes,
			tc.want.Notes) && h.Celsius == tc.want.Celsius && h.Hours == tc.want.Hours &&
			h.Used == tc.want.Used, "%s: %+v, %v, want %+v", name, h, err, tc.want)
	}
}

// TestAttention: a drive with a unit attention, as after a reset, is asked once more, but not
// forever.
func TestAttention(t *testing.T) {
	for attentions, ok := range map[int]bool{0: true, 1: true, 3: true, 1000: false} {
		left := attentions
		h, err := scsiHealth(func(cdb, data []byte) (sys.SCSIResult, error) {
			if left--; left >= 0 {
				return sys.SCSIResult{Status: 2, Sense: []byte{0x72, 6, 0x2A, 1}}, nil
			}
			return answers{0x2F: "2f00 0008 0000 03 04 0000 1fff"}.read(cdb, data)
		})
		testutil.True(t, (err == nil) == ok && (!ok || h.State == Good) && (ok || left >= 900),
			"%d attentions: %+v, %v, asked %d times", attentions, h, err, attentions-left)
	}
}

// TestNotSCSI: files that take no SCSI commands return an error.
func TestNotSCSI(t *testing.T) {
	testutil.Fails(t, testutil.Err(askSCSI("/dev/null")), "log page 2Fh: inappropriate ioctl", "")
	testutil.True(t, testutil.Err(askSCSI("/dev/no-such-disk")) != nil,
		"asked a disk that is not there")
}

func FuzzSCSI(f *testing.F) {
	f.Add([]byte("\x2f\x00\x00\x08\x00\x00\x03\x04\x00\x00\x1f\xff"))
	f.Fuzz(func(t *testing.T, page []byte) {
		_, _ = scsiHealth(func(_, data []byte) (sys.SCSIResult, error) {
			return sys.SCSIResult{N: copy(data, page)}, nil
		})
	})
}
