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

// TestFeatureData: what features return as data, and what queues were granted.
func TestFeatureData(t *testing.T) {
	sub := ramSubsystem(t, 1)
	sub.MaxIOQueues = 8
	r := newHarness(t, 1, sub)
	h := r.connectHost(0)
	r.ok(h.admin, setFeature(nvme.FeatureNumberOfQueues, 0x00010001))
	id := getFeature(nvme.FeatureHostIdentifier, 0, 1)
	id.Data = bytes.Repeat([]byte{0xAA}, 4096)
	r.ok(h.admin, id)
	if !bytes.Equal(id.Data[:16], testHostID[:]) || !bytes.Equal(id.Data[16:], make([]byte, 4080)) {
		t.Errorf("host identifier % x", id.Data[:32])
	}
	// with its data, too (M11)
	r.status(h.admin, withData(setFeature(nvme.FeatureHostIdentifier, 1), 16), sequenceError)
	h.connectIO(0)
	h.connectIO(0)
	r.status(h.admin, setFeature(nvme.FeatureNumberOfQueues, 0), sequenceError)
	r.status(r.dial(0), h.ioArgs(3).command(), nvme.ConnectInvalidParameters) // two were granted
}
