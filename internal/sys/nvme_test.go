package sys

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestNVMeHeaders compares what this package says of linux/nvme_ioctl.h with the header.
func TestNVMeHeaders(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	var c NVMeCommand
	source := "#include <stddef.h>\n#include <linux/types.h>\n#include <sys/ioctl.h>\n#include <linux/nvme_ioctl.h>\n"
	check := func(expression string, v uintptr) {
		source += fmt.Sprintf("_Static_assert((%s) == %du, \"%s\");\n", expression, v, expression)
	}
	for name, v := range map[string]uintptr{
		"NVME_IOCTL_ID": NVMeID, "NVME_IOCTL_ADMIN64_CMD": NVMeAdmin, "NVME_IOCTL_IO64_CMD": NVMeIO, "NVME_IOCTL_IO64_CMD_VEC": NVMeIOVec,
		"NVME_URING_CMD_IO": NVMeUring, "NVME_URING_CMD_IO_VEC": NVMeUringVec, "sizeof(struct nvme_passthru_cmd64)": unsafe.Sizeof(c),
	} {
		check(name, v)
	}
	for name, v := range map[string]uintptr{
		"opcode": unsafe.Offsetof(c.Opcode), "nsid": unsafe.Offsetof(c.NSID), "cdw2": unsafe.Offsetof(c.CDW2), "cdw3": unsafe.Offsetof(c.CDW3),
		"addr": unsafe.Offsetof(c.addr), "data_len": unsafe.Offsetof(c.dataLen), "cdw10": unsafe.Offsetof(c.CDW10),
		"cdw15": unsafe.Offsetof(c.CDW10) + 20, "timeout_ms": unsafe.Offsetof(c.TimeoutMillis),
	} {
		check("offsetof(struct nvme_passthru_cmd64, "+name+")", v)
		check("offsetof(struct nvme_uring_cmd, "+name+")", v)
	}
	cmd := exec.Command(cc, "-xc", "-c", "-o", filepath.Join(t.TempDir(), "o"), "-")
	cmd.Stdin = strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestNVMeIoctlElsewhere(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, e := NVMeIoctl(int(f.Fd()), NVMeAdmin, &NVMeCommand{Opcode: 6}); e != unix.ENOTTY {
		t.Errorf("a command for /dev/null: %v", e)
	}
	if _, e := NVMeNamespace(int(f.Fd())); e != unix.ENOTTY {
		t.Errorf("the namespace of /dev/null: %v", e)
	}
}
