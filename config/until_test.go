package config

import (
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestUntil: a key counts until the end of a day, or until a time.
func TestUntil(t *testing.T) {
	for word, want := range map[string]string{
		"2027-01-31":                "2027-02-01T00:00:00Z",
		"2027-12-31":                "2028-01-01T00:00:00Z",
		"2027-01-31T18:00:00+01:00": "2027-01-31T17:00:00Z",
	} {
		text := strings.Replace(minimal, "listeners:", `hosts:
- nqn: nqn.2026-11.io.example:a
  dhchap_key: "DHHC-1:00:dYaw096krZ260qdUC32Qt6MOOJ29Txf41rRRmsWeFd44CmkR:"
  dhchap_old_key: "DHHC-1:00:AcRa6V6AE/2EyOl+dzVY52vag0nwBrNtSp8o3w+afpRQGr+p:"
  old_keys_until: `+word+`
  keys_until: `+word+`
listeners:`, 1)
		c := testutil.Value(parse(t, text))(t)
		for _, got := range []time.Time{c.Hosts[0].OldUntil, c.Hosts[0].Until} {
			testutil.Equal(t, got.UTC().Format(time.RFC3339), want, "%s: %v", word, got)
		}
	}
}
