package doctor

import (
	"os"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestAlertCountsTheSame: the alert for lost packets uses the counters of doctor.
func TestAlertCountsTheSame(t *testing.T) {
	rules := testutil.Value(os.ReadFile("../../packaging/prometheus/nvmf-target.rules.yml"))(t)
	if want := `{counter=~"` + strings.Join(lostPackets, "|") + `"}`; strings.Count(
		string(rules), want) != 1 {
		t.Errorf("NvmfRDMAPacketsLost is not about %s", want)
	}
}
