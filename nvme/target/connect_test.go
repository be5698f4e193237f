package target

import (
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Statuses of package association.
const (
	malformedStatus = nvme.ConnectInvalidParameters | nvme.DNR
	refusedStatus   = nvme.ConnectInvalidParameters
)

// wantRefusal checks that the last refusal has the expected and the received value, and a hint for
// operators.
func (r *harness) wantRefusal() {
	r.t.Helper()
	last, n := r.recorder.Refusals()[0], r.recorder.Kinds()[event.ConnectRefused]
	if r.refusals++; n != r.refusals {
		r.t.Errorf("%d refusals are recorded, want %d", n, r.refusals)
		r.refusals = n
	}
	for key, value := range map[string]string{
		"expected": last.Expected, "received": last.Received, "hint": last.Hint,
	} {
		if value == "" || value == "<nil>" {
			r.t.Errorf("%q without %s: %+v", last.Message, key, last)
		}
	}
}

func fabricsCommand(t nvme.FabricsType) nvme.SQE {
	c := command(nvme.FabricsOpcode, 0, nil)
	c.SQE[4] = byte(t)
	return c.SQE
}
