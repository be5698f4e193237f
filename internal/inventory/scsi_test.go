package inventory

import (
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
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
	states := map[string]string{"": "", "Good": Good, "Warning": Warning, "Failing": Failing}
	for _, row := range testutil.Rows(t, "scsi") {
		var name, pages, state, note, wantErr string
		var want Health
		row.Scan(&name, &pages, &state, &want.Celsius, &want.PowerOnHours, &want.UsedPercent, &note,
			&wantErr)
		drive := answers{}
		for page := range strings.FieldsFuncSeq(pages, func(r rune) bool { return r == ';' }) {
			number, content, _ := strings.Cut(strings.TrimSpace(page), ": ")
			drive[uint8(testutil.Value(strconv.ParseUint(number, 0, 8))(t))] = content
		}
		if want.State = states[state]; note != "" {
			want.Notes = []string{note}
		}
		h, err := scsiHealth(drive.read)
		if wantErr != "" {
			testutil.Fails(t, err, wantErr, "%s", name)
			continue
		}
		testutil.True(t, err == nil && h.State == want.State && slices.Equal(h.Notes,
			want.Notes) && h.Celsius == want.Celsius && h.PowerOnHours == want.PowerOnHours &&
			h.UsedPercent == want.UsedPercent, "%s: %+v, %v, want %+v", name, h, err, want)
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
