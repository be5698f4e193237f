package app

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
)

// TestControlDisks: a client sees the disks of this machine.
func TestControlDisks(t *testing.T) {
	_, c := controlled(t, Options{}, anyPort)
	testutil.Until(t, "the same list", func() bool { // the health of a disk may take some time
		want := testutil.Value(volumes.ListDisks(nil))(t)
		list, err := control.GetDisks.From(t.Context(), c)
		return err == nil && len(list) == len(want)
	})
}
