package admin

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestChangedNamespacesOverflow: more than 1024 changes make the list FFFFFFFFh.
func TestChangedNamespacesOverflow(t *testing.T) {
	var l ChangedNamespaces
	for i := range uint32(nvme.NamespacesPerList) {
		l.Add(2000 - i)
		l.Add(2000 - i)
	}
	testutil.True(t, !l.overflow && len(l.nsids) == nvme.NamespacesPerList &&
		l.nsids[0] == 2000-nvme.NamespacesPerList+1, "overflow %v, %d entries", l.overflow,
		len(l.nsids))
	l.Add(1)
	testutil.True(t, l.overflow, "no overflow")
	ids, _ := targettest.ParseNamespaceList(l.Page())
	testutil.True(t, len(ids) == 1 && ids[0] == nvme.ChangedNamespacesOverflow, "list %v", ids)
}
