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
	want := `{counter=~"` + strings.Join(lostPackets, "|") + `"}`
	testutil.True(t, strings.Count(string(rules), want) == 1, "NvmfRDMAPacketsLost is not about %s",
		want)
}
