package target

import (
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
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
