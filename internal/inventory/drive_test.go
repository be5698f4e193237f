package inventory

import (
	"os"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

func TestDriveOf(t *testing.T) {
	m := machine(t, "testdata/machine.txt")
	for number, want := range map[string]struct {
		id     string
		counts bool
	}{
		"8:1": {"sda", false}, "8:16": {"sdb", false}, // without a serial number
		"65:160": {"sas ST1200MM0129 WFK0ABCD", false},
		"259:0":  {"nvme INTEL SSDPE2KX040T8 BTLJ0000000000000A", true},
	} {
		d := m.DriveOf(number)
		if d == nil {
			t.Errorf("%s has no drive", number)
			continue
		}
		testutil.True(t, d.ID() == want.id && d.Counts() == want.counts, "%s: %q, counts %t",
			number, d.ID(), d.Counts())
		was := *d.d
		was.Name = "another" // after it was offline
		path, err := (&Drive{m, &was}).device()
		testutil.True(t, was.Serial == "" || path == "/dev/"+d.d.Name && err == nil,
			"%s: is back at %q, %v", number, path, err)
		was.Serial = "none"
		testutil.Is(t, testutil.Err((&Drive{m, &was}).SMART()), os.ErrNotExist,
			"%s: the health of a drive that is not there", number)
	}
	d := m.DriveOf("7:0")
	testutil.True(t, d == nil, "a loop device is on %+v", d)
}

func TestSMARTOfHealth(t *testing.T) {
	for _, tc := range []struct {
		h    Health
		want nvme.SMARTLog
	}{
		{
			Health{State: Good, Celsius: 30, PowerOnHours: 70000, UsedPercent: 3},
			nvme.SMARTLog{
				AvailableSpare: 100, Temperature: 303,
				PowerOnHours: nvme.MakeUint128(70000), PercentageUsed: 3,
			},
		},
		{
			Health{State: Warning, PowerOnHours: -1, UsedPercent: -1},
			nvme.SMARTLog{AvailableSpare: 100},
		},
		{
			Health{State: Failing, Celsius: -5, PowerOnHours: -1, UsedPercent: 300},
			nvme.SMARTLog{
				AvailableSpare: 100, Temperature: 268, PercentageUsed: 255,
				CriticalWarning: nvme.SMARTReliability,
			},
		},
	} {
		got := smart(&tc.h)
		testutil.True(t, *got == tc.want, "%+v: %+v", tc.h, got)
	}
}
