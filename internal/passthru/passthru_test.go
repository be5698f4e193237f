package passthru

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// fake answers one command as a drive does.
type fake struct {
	answer []byte
	status uint16
	errno  syscall.Errno
	seen   sys.NVMeCommand
}

func (f *fake) Ioctl(request uintptr, c *sys.NVMeCommand, data []byte) (uint16, syscall.Errno) {
	if request != sys.NVMeAdmin {
		return 0, unix.ENOTTY
	}
	f.seen = *c
	copy(data, f.answer)
	return f.status, f.errno
}

func TestSMART(t *testing.T) {
	want := nvme.SMARTLog{Temperature: 310, PowerOnHours: nvme.MakeUint128(7)}
	f := &fake{answer: want.Append(nil)}
	l, err := SMART(f)
	if err != nil || *l != want {
		t.Fatalf("%+v, %v", l, err)
	}
	if c := f.seen; c.Opcode != 2 || c.NSID != 0xFFFFFFFF || c.CDW10 != [6]uint32{127<<16 | 2} || c.TimeoutMillis != timeoutMillis {
		t.Errorf("%+v", c)
	}
	f.answer[511] = 1 // of a later revision
	if l, err := SMART(f); err != nil || *l != want {
		t.Errorf("a reserved byte: %+v, %v", l, err)
	}
	f.status = uint16(nvme.InvalidLogPage | nvme.DNR)
	if _, err := SMART(f); !errors.Is(err, nvme.InvalidLogPage) {
		t.Errorf("a refusal of the drive: %v", err)
	}
	f.errno = unix.EACCES
	if _, err := SMART(f); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a refusal of the kernel: %v", err)
	}
}

func TestIdentify(t *testing.T) {
	f := &fake{answer: []byte("answer")}
	b, err := Identify(f, nvme.CNSCommandSetNamespace, 9, nvme.CSINVM)
	if err != nil || len(b) != nvme.IdentifyDataSize || string(b[:6]) != "answer" {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	if c := f.seen; c.Opcode != 6 || c.NSID != 9 || c.CDW10 != [6]uint32{5} {
		t.Errorf("%+v", c)
	}
}

// TestElsewhere is an open file that is no drive.
func TestElsewhere(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := SMART(FD(f.Fd())); !errors.Is(err, unix.ENOTTY) {
		t.Error(err)
	}
}
