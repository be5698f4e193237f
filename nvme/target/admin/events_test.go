package admin

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestChangedNamespacesOverflow: more than 1024 changes make the list FFFFFFFFh.
func TestChangedNamespacesOverflow(t *testing.T) {
	var l ChangedNamespaces
	for i := range uint32(nvme.NamespacesPerList) {
		l.Add(2000 - i)
		l.Add(2000 - i)
	}
	if l.overflow || len(l.nsids) != nvme.NamespacesPerList ||
		l.nsids[0] != 2000-nvme.NamespacesPerList+1 {
		t.Errorf("overflow %v, %d entries", l.overflow, len(l.nsids))
	}
	l.Add(1)
	if !l.overflow {
		t.Error("no overflow")
	}
	if ids, _ := nvme.ParseNamespaceList(l.Page()); len(ids) != 1 ||
		ids[0] != nvme.ChangedNamespacesOverflow {
		t.Errorf("list %v", ids)
	}
}
