package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestFeatureGone: a command for a feature may wait for memory while the controller is enabled
// anew and no longer has the feature.
func TestFeatureGone(t *testing.T) {
	dev := &changing{Device: ramDevice(t, 1<<20, 512)}
	dev.i = dev.Device.Info()
	dev.i.VolatileCache = true
	r, h := joined(t, 1, 0, subsystemOf(testSub, dev))
	get := getFeatureInto(nvme.FeatureVolatileWriteCache, 0, make([]byte, 16))
	set := setFeature(nvme.FeatureVolatileWriteCache, 1)
	get.Late, set.Late = true, true
	r.send(h.admin, get)
	r.send(h.admin, set)
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux&^nvme.CCEnable)))
	dev.set(func(i *backend.Info) { i.VolatileCache = false })
	r.w.Settle()
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	for _, c := range []*fabrictest.Command{get, set} {
		h.admin.Arrive(c)
		r.until("the command completes", func() bool { return c.Done })
		testutil.Equal(t, c.CQE.Status()&^nvme.More, invalidField, "")
	}
}

func getFeatureInto(fid nvme.FID, v uint32, data []byte) *fabrictest.Command {
	c := getFeature(fid, nvme.FeatureCurrent, v)
	c.Data = data
	return c
}

func withNSID(c *fabrictest.Command, nsid uint32) *fabrictest.Command {
	c.SQE.SetNSID(nsid)
	return c
}
