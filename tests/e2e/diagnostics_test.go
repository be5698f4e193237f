package e2e

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestDiagnostics: a self-test reads, and can be aborted. Telemetry has the queues of the
// association, which are on several reactors.
func TestDiagnostics(t *testing.T) {
	eachTransport(t, nil, func(t *testing.T, h *Env, v Variant) {
		c := h.Dial(v)
		ctx := testutil.Context(t)
		for qid := range uint16(2) {
			h.Open(c, qid+1, 32)
		}
		selfTest := func(code nvme.SelfTestCode) {
			t.Helper()
			op := new(host.Op)
			op.SQE.SetOpcode(nvme.AdminSelfTest)
			op.SQE.SetNSID(nvme.NSIDAll)
			op.SQE.SetCDW(10, uint32(code))
			cqe, err := c.Admin(ctx, op)
			if h.Must(err); !cqe.Status().OK() {
				t.Fatal(cqe.Status())
			}
		}
		log := func() *nvme.SelfTestLog {
			t.Helper()
			b := testutil.Value(
				hosttest.GetLog(ctx, c, nvme.LogSelfTest, 0, 0, nvme.SelfTestLogSize, 0,
					false))(h.T)
			l := testutil.Value(nvme.Parse[nvme.SelfTestLog](b))(h.T)
			return l
		}
		selfTest(nvme.SelfTestExtended)
		h.Until("the self-test has read", func() bool { return log().Completion > 0 })
		selfTest(nvme.SelfTestAbort)
		if l := log(); l.Operation != 0 || l.Results[0].DSTS != 0x21 {
			t.Errorf("operation %d, %+v", l.Operation, l.Results[0])
		}
		b := testutil.Value(hosttest.GetLog(ctx, c, nvme.LogTelemetryHost, 0, 0,
			nvme.TelemetryBlock, nvme.TelemetryCreate, true))(h.T)
		size := targettest.TelemetrySize(b) - nvme.TelemetryBlock
		b = testutil.Value(
			hosttest.GetLog(ctx, c, nvme.LogTelemetryHost, 0, nvme.TelemetryBlock, size, 0,
				false))(h.T)
		var got struct {
			Host        string
			Connections []struct{ QID uint16 }
			Namespaces  []struct{ NSID uint32 }
		}
		h.Must(json.Unmarshal(bytes.TrimRight(b, "\n"), &got))
		queues := []uint16{}
		for _, q := range got.Connections {
			queues = append(queues, q.QID)
		}
		if got.Host == "" || len(got.Namespaces) != 2 || !slices.Equal(queues, []uint16{0, 1, 2}) {
			t.Errorf("%s", b)
		}
	})
}
