package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// described is a device of 1 MiB with blocks of 512 bytes whose description change edits.
func described(t *testing.T, change func(*backend.Info)) *recorder {
	return &recorder{Device: ramDevice(t, 1<<20, 512), info: change}
}

// subsystemOf has a namespace on each device, from NSID 1 on.
func subsystemOf(nqn string, devs ...backend.Device) subsystems.Config {
	c := subsystems.Config{NQN: nqn, AllowAnyHost: true}
	for i, d := range devs {
		c.Namespaces = append(c.Namespaces, namespaces.Config{NSID: uint32(i + 1), Device: d})
	}
	return c
}

// on selects the subsystem that a host connects to.
func on(nqn string) func(*connectArgs) { return func(a *connectArgs) { a.sub = nqn } }

func (h *host) controller() *nvme.IdentifyController {
	h.r.t.Helper()
	id, err := nvme.Parse[nvme.IdentifyController](h.r.ok(h.admin,
		identifyCommand(nvme.CNSController, 0)).Data)
	h.r.must(err)
	return id
}

func (h *host) namespace(nsid uint32) *nvme.IdentifyNamespace {
	h.r.t.Helper()
	id, err := nvme.Parse[nvme.IdentifyNamespace](h.r.ok(h.admin,
		identifyCommand(nvme.CNSNamespace, nsid)).Data)
	h.r.must(err)
	return id
}
