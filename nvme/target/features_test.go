package target

import (
	"bytes"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

func getFeatureInto(fid nvme.FID, v uint32, data []byte) *fabrictest.Command {
	c := getFeature(fid, nvme.FeatureCurrent, v)
	c.Data = data
	return c
}

func withNSID(c *fabrictest.Command, nsid uint32) *fabrictest.Command {
	c.SQE.SetNSID(nsid)
	return c
}

// TestFeatures: values, selections and refusals (M09 to M11).
func TestFeatures(t *testing.T) {
	sub := ramSubsystem(t, 1)
	sub.MaxIOQueues = 8
	r := newHarness(t, 1, sub)
	h := r.connectHost(0)
	for _, tc := range []struct {
		name   string
		c      *fabrictest.Command
		want   nvme.Status
		result uint32
	}{
		{"queues FFFFh", setFeature(nvme.FeatureNumberOfQueues, 0xFFFF0001), invalidField, 0},
		{"queues FFFFh too", setFeature(nvme.FeatureNumberOfQueues, 0x0001FFFF), invalidField, 0},
		{
			"many queues", setFeature(nvme.FeatureNumberOfQueues, 0xFFFEFFFE), nvme.Success,
			0x00070007,
		},
		{
			"two queues", setFeature(nvme.FeatureNumberOfQueues, 0x00010001), nvme.Success,
			0x00010001,
		},
		{
			"queues now", getFeature(nvme.FeatureNumberOfQueues, nvme.FeatureCurrent, 0),
			nvme.Success,
			0x00010001,
		},
		{
			"queues by default", getFeature(nvme.FeatureNumberOfQueues, nvme.FeatureDefault, 0),
			nvme.Success, 0x00070007,
		},
		{
			"queues saved", getFeature(nvme.FeatureNumberOfQueues, nvme.FeatureSaved, 0),
			nvme.Success,
			0x00070007,
		},
		{
			"queues capabilities",
			getFeature(nvme.FeatureNumberOfQueues, nvme.FeatureCapabilities, 0),
			nvme.Success, 4,
		},
		{"SEL reserved", getFeature(nvme.FeatureNumberOfQueues, 4, 0), invalidField, 0},
		{"unknown", getFeature(0x77, 0, 0), invalidField, 0},
		{"set unknown", setFeature(0x77, 0), invalidField, 0},
		{"interrupt coalescing", getFeature(0x08, 0, 0), invalidField, 0},
		{"interrupt vectors", getFeature(0x09, 0, 0), invalidField, 0},
		{
			"events", setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventNamespaceChanged)),
			nvme.Success, 0,
		},
		{"events now", getFeature(nvme.FeatureAsyncEventConfig, 0, 0), nvme.Success, 0x100},
		{
			"events not offered",
			setFeature(nvme.FeatureAsyncEventConfig, 1<<9), invalidField,
			0,
		},
		// RAM has none
		{"write cache", setFeature(nvme.FeatureVolatileWriteCache, 1), invalidField, 0},
		{"power state 0", setFeature(nvme.FeaturePowerManagement, 0), nvme.Success, 0},
		{"power state 1", setFeature(nvme.FeaturePowerManagement, 1), invalidField, 0},
		{
			"error recovery", withNSID(setFeature(nvme.FeatureErrorRecovery, 0xABCD0003), 1),
			invalidField, 0, // DULBE
		},
		{
			"error recovery", withNSID(setFeature(nvme.FeatureErrorRecovery, 0xABCC0003), 1),
			nvme.Success, 0,
		},
		{
			"error recovery now", withNSID(getFeature(nvme.FeatureErrorRecovery, 0, 0), 1),
			nvme.Success, 3,
		},
		{
			"error recovery by default",
			withNSID(getFeature(nvme.FeatureErrorRecovery, nvme.FeatureDefault, 0), 1),
			nvme.Success, 0,
		},
		{
			"error recovery capabilities",
			withNSID(getFeature(nvme.FeatureErrorRecovery, nvme.FeatureCapabilities, 0), 1),
			nvme.Success, 6,
		},
		{
			"error recovery of none", getFeature(nvme.FeatureErrorRecovery, 0, 0),
			nvme.Success, 0,
		},
		{"set host ID", setFeature(nvme.FeatureHostIdentifier, 1), sequenceError, 0},
		{"host ID of 64 bits", getFeature(nvme.FeatureHostIdentifier, 0, 0), invalidField, 0},
		{"host ID without buffer", getFeature(nvme.FeatureHostIdentifier, 0, 1), invalidLength, 0},
		{"command sets 0", setFeature(nvme.FeatureCommandSetProfile, 0), nvme.Success, 0},
		{
			"command sets 1", setFeature(nvme.FeatureCommandSetProfile, 1),
			nvme.CommandSetsRejected | nvme.DNR, 0,
		},
		{
			"command sets 100h", setFeature(nvme.FeatureCommandSetProfile, 0x100),
			nvme.CommandSetsRejected | nvme.DNR, 0,
		},
		{"temperature", getFeature(nvme.FeatureTemperatureThreshold, 0, 0), nvme.Success, 0xFFFF},
	} {
		r.run(tc.name, func(t *testing.T) {
			r.status(h.admin, tc.c, tc.want)
			if got := tc.c.CQE.DW0(); got != tc.result {
				t.Errorf("result %#x, want %#x", got, tc.result)
			}
		})
	}
	save := setFeature(nvme.FeaturePowerManagement, 0)
	save.SQE[43] |= 0x80
	r.status(h.admin, save, nvme.FeatureNotSaveable|nvme.DNR)
	id := getFeature(nvme.FeatureHostIdentifier, 0, 1)
	id.Data = bytes.Repeat([]byte{0xAA}, 4096)
	r.ok(h.admin, id)
	if !bytes.Equal(id.Data[:16], testHostID[:]) || !bytes.Equal(id.Data[16:], make([]byte, 4080)) {
		t.Errorf("host identifier % x", id.Data[:32])
	}
	h.connectIO(0)
	h.connectIO(0)
	r.status(h.admin, setFeature(nvme.FeatureNumberOfQueues, 0), sequenceError)
	r.status(r.dial(0), h.ioArgs(3).command(), nvme.ConnectInvalidParameters) // two were granted
}
