package inventory

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dswarbrick/smart/ata"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

func unhex(t *testing.T, file string) []byte {
	t.Helper()
	text := testutil.Value(os.ReadFile(file))(t)
	var b []byte
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		part := testutil.Value(hex.DecodeString(strings.Join(strings.Fields(line), "")))(t)
		b = append(b, part...)
	}
	return b
}

// TestATA passes the answer of a SATA drive through the parser and printer of the library, and then
// through ataHealth.
func TestATA(t *testing.T) {
	for file, want := range map[string]Health{
		"testdata/smart-good.hex": {State: Good, Celsius: 30, PowerOnHours: 21389, UsedPercent: -1},
		"testdata/smart-failing.hex": {
			State: Failing,
			Notes: []string{"8 reallocated sectors", "16 sectors cannot be read"}, Celsius: 38,
			PowerOnHours: 50123, UsedPercent: -1,
		},
	} {
		var page ata.SmartPage
		testutil.Must(t, binary.Read(bytes.NewReader(unhex(t, file)), binary.LittleEndian, &page))
		var out bytes.Buffer
		ata.PrintSMARTPage(page, attributes, &out)
		got, found := ataHealth(&out)
		testutil.True(t, found && got.State == want.State && slices.Equal(got.Notes, want.Notes) &&
			got.Celsius == want.Celsius && got.PowerOnHours == want.PowerOnHours &&
			got.UsedPercent == want.UsedPercent,
			"%s: %t %+v, want %+v", file, found, got, want)
	}
	if _, found := ataHealth(
		strings.NewReader("SCSI INQUIRY: ATA\n\nATA IDENTIFY data follows:\n")); found {
		t.Error("attributes where there are none")
	}
}

func TestNVMe(t *testing.T) {
	base := nvme.SMARTLog{
		Temperature: 273 + 41, AvailableSpare: 100, PercentageUsed: 3,
		PowerOnHours: nvme.MakeUint128(1234),
	}
	for name, tc := range map[string]struct {
		change func(*nvme.SMARTLog)
		want   string
	}{
		"good":      {func(*nvme.SMARTLog) {}, "{good [] 41 1234 3}"},
		"no sensor": {func(l *nvme.SMARTLog) { l.Temperature = 0 }, "{good [] 0 1234 3}"},
		"failing": {
			func(l *nvme.SMARTLog) {
				l.CriticalWarning = nvme.SMARTReliability | nvme.SMARTReadOnly | nvme.SMARTSpareLow
				l.AvailableSpare = 2
			}, "{failing [reliability degraded read-only 2% spare left] 41 1234 3}",
		},
		"errors": {
			func(l *nvme.SMARTLog) { l.MediaErrors = nvme.MakeUint128(7) },
			"{warning [7 media errors] 41 1234 3}",
		},
		"old": {
			func(l *nvme.SMARTLog) { l.PercentageUsed = 120 },
			"{warning [worn out] 41 1234 120}",
		},
	} {
		l := base
		tc.change(&l)
		testutil.Equal(t, fmt.Sprint(nvmeHealth(&l)), tc.want, "%s", name)
	}
	got := fmt.Sprint(unknown("only root may ask"))
	testutil.Equal(t, got, "{unknown [only root may ask] 0 -1 -1}", "unknown")
}

// TestAsk: missing devices are errors, and nothing panics.
func TestAsk(t *testing.T) {
	for _, d := range []observed.Disk{
		{Name: "none", Bus: "nvme"},
		{Name: "none", Bus: "sata"},
		{Name: "none", Bus: "sas"},
		{Name: "null", Bus: "nvme"},
		{Name: "null", Bus: "sata"},
	} {
		h := ask(&d)
		testutil.True(t, h.State == Unknown && len(h.Notes) == 1, "%+v: %+v", d, h)
	}
}
