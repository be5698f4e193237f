package admin

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestRegisters: a reset and a shutdown are complete when the I/O queues have ended, and a refused
// write changes nothing.
func TestRegisters(t *testing.T) {
	var r Registers
	write := func(v nvme.CC, want Change, refused bool) {
		t.Helper()
		before := r.CC
		got, st := r.Write(v)
		testutil.Equal(t, got, want, "changes by %#x", uint32(v))
		testutil.True(t, st.OK() != refused && (!refused || r.CC == before), "status %v", st)
	}
	enable, shutdown := nvme.CCLinux, nvme.CC(1<<14)
	write(enable|1<<1, 0, true)
	write(enable|1<<7, 0, true) // MPS
	write(enable, Enabled, false)
	testutil.True(t, r.CSTS.RDY(), "CSTS %#x after it was enabled", r.CSTS)
	write(enable, 0, false)
	write(enable|shutdown, Shutdown, false)
	testutil.Equal(t, r.CSTS.SHST(), 1, "SHST of a shutdown")
	testutil.True(t, r.QueuesEnded() && r.CSTS.SHST() == 2 && r.CSTS.RDY(), "CSTS %#x", r.CSTS)
	write(enable, 0, false)
	write(enable|shutdown, 0, false) // only a reset clears SHST
	write(0, Reset, false)
	testutil.True(t, r.CSTS.RDY() && r.CSTS.SHST() == 0, "CSTS %#x of a reset", r.CSTS)
	write(enable, 0, true) // it is not complete
	testutil.True(t, !r.QueuesEnded() && r.CSTS == 0, "CSTS %#x", r.CSTS)
	write(enable, Enabled, false)
	write(shutdown, Reset|Shutdown, false)
	testutil.True(t, r.QueuesEnded() && !r.CSTS.RDY(), "CSTS %#x: ready after a reset", r.CSTS)
	write(0, 0, false)
	write(enable|shutdown, Enabled|Shutdown, false)
	testutil.True(t, r.CSTS.RDY() && r.CSTS.SHST() == 1, "CSTS %#x of a shutdown at once", r.CSTS)
}
