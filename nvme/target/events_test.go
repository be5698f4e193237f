package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// TestANAEventOfManyNamespaces: the ANA log is made again once for all namespaces that are added
// together, because that takes longer the more there are.
func TestANAEventOfManyNamespaces(t *testing.T) {
	r, h := joined(t, 1, 0, ramSubsystem(t, 1))
	r.ok(h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventANAChanged)))
	event := r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	h.anaLog(false)
	c := r.target.find(testSub).lookup(h.cntlid)
	before := c.ANALog.Changes()
	for nsid := range uint32(3) {
		cfg := namespaces.Config{NSID: 10 + nsid, Device: ramDevice(t, 1<<20, 512)}
		r.must(r.target.AddNamespace(testSub, cfg))
		c.Notice(namespaces.Changed, cfg.NSID)
	}
	testutil.True(t, c.ANALog.Changes() == before, "the log is made again for each namespace")
	r.w.Settle()
	testutil.True(t, event.Done, "no event")
	h.wantANA(2, anaGroup(1, nvme.ANAStateOptimized, 2, 1, 10, 11, 12))
}
