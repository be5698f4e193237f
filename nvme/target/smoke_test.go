package target

import (
	"bytes"
	"testing"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestConnectReadWrite follows the first commands of a Linux host.
func TestConnectReadWrite(t *testing.T) {
	r := newHarness(t, 2, ramSubsystem(t, 2))
	h := r.connectHost(2)
	if !h.csts().RDY() {
		t.Fatal("not ready")
	}
	want := bytes.Repeat([]byte("0123456789abcdef"), 64)
	r.ok(h.io[0], rw(nvme.NVMWrite, 1, 7, 2, want))
	got := r.ok(h.io[1], rw(nvme.NVMRead, 1, 7, 2, make([]byte, 1024)))
	if !bytes.Equal(got.Data, want) {
		t.Error("data differs")
	}
	r.ok(h.io[0], command(nvme.NVMFlush, 1, nil))
	id, err := nvme.Parse[nvme.IdentifyController](r.ok(h.admin,
		identifyCommand(nvme.CNSController, 0)).Data)
	if err != nil || id.CNTLID != h.cntlid {
		t.Errorf("identify: %v, CNTLID %d, want %d", err, id.CNTLID, h.cntlid)
	}
	if n := len(r.target.Controllers()); n != 1 {
		t.Errorf("%d controllers", n)
	}
}
