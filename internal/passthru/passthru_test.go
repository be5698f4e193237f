package passthru_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/passthru"
	"github.com/nvmf-target/nvmf-target/internal/testing/passthrutest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

func TestSMART(t *testing.T) {
	d := passthrutest.New(1, 9)
	d.SMART = nvme.SMARTLog{Temperature: 310, PowerOnHours: nvme.MakeUint128(7)}
	l, err := passthru.SMART(d)
	testutil.MustTrue(t, err == nil && *l == d.SMART, "%+v, %v", l, err)
	var refusal error
	d.Fault = func(uintptr, *nvme.SQE) (nvme.Status, syscall.Errno) {
		switch err := refusal.(type) {
		case nvme.Status:
			return err | nvme.DNR, 0
		case syscall.Errno:
			return 0, err
		}
		return 0, 0
	}
	for _, refusal = range []error{nvme.InvalidLogPage, unix.EACCES} {
		testutil.Is(t, testutil.Err(passthru.SMART(d)), refusal, "")
	}
}

func TestIdentify(t *testing.T) {
	d := passthrutest.New(8, 12)
	b := testutil.Value(passthru.Identify(d, nvme.CNSNamespace, passthrutest.NSID, 0))(t)
	n, err := nvme.Parse[nvme.IdentifyNamespace](b)
	testutil.True(t, err == nil && n.NSZE == 8 && n.Format().LBADS == 12, "%+v, %v", n, err)
	if _, err := passthru.Identify(d, nvme.CNSCommandSetNamespace, passthrutest.NSID,
		nvme.CSINVM); !errors.Is(err, nvme.InvalidField) {
		t.Errorf("a structure that the drive does not have: %v", err)
	}
}

func TestFeature(t *testing.T) {
	d := passthrutest.New(8, 12)
	d.Features = map[uint8]uint32{5: 1 << 16}
	testutil.Equal(t, testutil.Value(passthru.Feature(d, passthrutest.NSID, 5))(t), 1<<16, "")
	testutil.Is(t, testutil.Err(passthru.Feature(d, passthrutest.NSID, 6)), nvme.InvalidField,
		"a feature that the drive does not have")
}

// TestElsewhere: commands to an open file that is not a drive fail.
func TestElsewhere(t *testing.T) {
	f := testutil.Value(os.Open(os.DevNull))(t)
	defer f.Close()
	testutil.Is(t, testutil.Err(passthru.SMART(passthru.FD(f.Fd()))), unix.ENOTTY, "")
}
