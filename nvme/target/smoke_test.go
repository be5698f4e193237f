package target

import (
	"bytes"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestConnectReadWrite follows the first commands of a Linux host.
func TestConnectReadWrite(t *testing.T) {
	r, h := joined(t, 2, 2, ramSubsystem(t, 2))
	testutil.MustTrue(t, h.csts().RDY(), "not ready")
	want := bytes.Repeat([]byte("0123456789abcdef"), 64)
	r.ok(h.io[0], rw(nvme.NVMWrite, 1, 7, 2, want))
	got := r.ok(h.io[1], rw(nvme.NVMRead, 1, 7, 2, make([]byte, 1024)))
	testutil.True(t, bytes.Equal(got.Data, want), "data differs")
	r.ok(h.io[0], command(nvme.NVMFlush, 1, nil))
	id, err := nvme.Parse[nvme.IdentifyController](r.ok(h.admin,
		identifyCommand(nvme.CNSController, 0)).Data)
	testutil.True(t, err == nil && id.CNTLID == h.cntlid, "identify: %v, CNTLID %d, want %d", err,
		id.CNTLID, h.cntlid)
	testutil.Equal(t, len(r.target.Controllers()), 1, "controllers")
}
