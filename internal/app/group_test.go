package app

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestPrivateImages: a gateway writes to no image outside of the groups that it shares.
func TestPrivateImages(t *testing.T) {
	parse := func(namespace string) error {
		return testutil.Err(Parse("test.yaml", []byte(`
listeners: [{transport: tcp, address: 10.0.0.1}]
group: {name: a, pool: nvme, ana_groups: [2]}
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:a
    allow_any_host: true
    namespaces: [{nsid: 1, backend: rbd, image: nvme/a`+namespace+`}]
`), nil))
	}
	testutil.Check(t, parse(", ana_group: 2"))
	testutil.Check(t, parse(", read_only: true"))
	testutil.Fails(t, parse(""), "subsystems[0].namespaces[0]: several gateways could write to "+
		"the image, since ANA group 1 is not one of group.ana_groups. Add it there", "")
}
