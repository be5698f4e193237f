package doctor

import (
	"os"
	"strings"
	"testing"
)

// TestAlertCountsTheSame: the alert for lost packets counts what doctor counts.
func TestAlertCountsTheSame(t *testing.T) {
	rules, err := os.ReadFile("../../packaging/prometheus/nvmf-target.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	if want := `{counter=~"` + strings.Join(lostPackets, "|") + `"}`; strings.Count(
		string(rules), want) != 1 {
		t.Errorf("NvmfRDMAPacketsLost is not about %s", want)
	}
}
