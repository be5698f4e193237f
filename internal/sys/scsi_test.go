package sys

import (
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestSCSIHeaders compares this package with scsi/sg.h.
func TestSCSIHeaders(t *testing.T) {
	var r scsiRequest
	testutil.HeadersAgree(t, []string{"scsi/sg.h"}, map[string]int{
		"SG_IO": sgIO, "SG_DXFER_FROM_DEV": sgFromDevice,
		"sizeof(sg_io_hdr_t)":                    int(unsafe.Sizeof(r)),
		"offsetof(sg_io_hdr_t, dxfer_direction)": int(unsafe.Offsetof(r.direction)),
		"offsetof(sg_io_hdr_t, mx_sb_len)":       int(unsafe.Offsetof(r.senseMax)),
		"offsetof(sg_io_hdr_t, dxfer_len)":       int(unsafe.Offsetof(r.dataLen)),
		"offsetof(sg_io_hdr_t, dxferp)":          int(unsafe.Offsetof(r.data)),
		"offsetof(sg_io_hdr_t, cmdp)":            int(unsafe.Offsetof(r.cdb)),
		"offsetof(sg_io_hdr_t, sbp)":             int(unsafe.Offsetof(r.sense)),
		"offsetof(sg_io_hdr_t, timeout)":         int(unsafe.Offsetof(r.timeoutMillis)),
		"offsetof(sg_io_hdr_t, status)":          int(unsafe.Offsetof(r.status)),
		"offsetof(sg_io_hdr_t, sb_len_wr)":       int(unsafe.Offsetof(r.senseLen)),
		"offsetof(sg_io_hdr_t, host_status)":     int(unsafe.Offsetof(r.hostStatus)),
		"offsetof(sg_io_hdr_t, driver_status)":   int(unsafe.Offsetof(r.driverStats)),
		"offsetof(sg_io_hdr_t, resid)":           int(unsafe.Offsetof(r.residue)),
	})
}

func TestSCSIReadElsewhere(t *testing.T) {
	f := testutil.Value(os.Open(os.DevNull))(t)
	defer f.Close()
	_, e := SCSIRead(int(f.Fd()), make([]byte, 6), make([]byte, 36))
	testutil.True(t, e == unix.ENOTTY, "a command for /dev/null: %v", e)
}
