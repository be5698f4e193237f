package sys

import (
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestNVMeHeaders compares this package with linux/nvme_ioctl.h.
func TestNVMeHeaders(t *testing.T) {
	var c NVMeCommand
	want := map[string]uintptr{
		"NVME_IOCTL_ID": NVMeID, "NVME_IOCTL_ADMIN64_CMD": NVMeAdmin, "NVME_IOCTL_IO64_CMD": NVMeIO,
		"NVME_IOCTL_IO64_CMD_VEC": NVMeIOVec,
		"NVME_URING_CMD_IO":       NVMeUring, "NVME_URING_CMD_IO_VEC": NVMeUringVec,
		"sizeof(struct nvme_passthru_cmd64)": unsafe.Sizeof(c),
	}
	for name, v := range map[string]uintptr{
		"opcode": unsafe.Offsetof(c.Opcode), "nsid": unsafe.Offsetof(c.NSID),
		"cdw2": unsafe.Offsetof(c.CDW2), "cdw3": unsafe.Offsetof(c.CDW3),
		"addr": unsafe.Offsetof(c.addr), "data_len": unsafe.Offsetof(c.dataLen),
		"cdw10": unsafe.Offsetof(c.CDW10),
		"cdw15": unsafe.Offsetof(c.CDW10) + 20, "timeout_ms": unsafe.Offsetof(c.TimeoutMillis),
	} {
		want["offsetof(struct nvme_passthru_cmd64, "+name+")"] = v
		want["offsetof(struct nvme_uring_cmd, "+name+")"] = v
	}
	testutil.HeadersAgree(t, []string{"linux/types.h", "sys/ioctl.h", "linux/nvme_ioctl.h"}, want)
}

func TestNVMeIoctlElsewhere(t *testing.T) {
	f := testutil.Value(os.Open(os.DevNull))(t)
	defer f.Close()
	_, e := NVMeIoctl(int(f.Fd()), NVMeAdmin, &NVMeCommand{Opcode: 6})
	testutil.True(t, e == unix.ENOTTY, "a command for /dev/null: %v", e)
	_, e = NVMeNamespace(int(f.Fd()))
	testutil.True(t, e == unix.ENOTTY, "the namespace of /dev/null: %v", e)
}
