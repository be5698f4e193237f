package reactor

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testutil"
)

func TestListsOneCPU(t *testing.T) {
	name := filepath.Join(t.TempDir(), "online")
	if got, want := listsOneCPU(name), runtime.NumCPU() == 1; got != want {
		t.Errorf("without the list: %t, want %t", got, want)
	}
	for list, want := range map[string]bool{
		"0\n": true, "17\n": true, "0-1\n": false,
		"0,2\n": false, "0-3,5\n": false,
	} {
		testutil.Must(t, os.WriteFile(name, []byte(list), 0o600))
		if got := listsOneCPU(name); got != want {
			t.Errorf("CPUs %q: %t, want %t", list, got, want)
		}
	}
}
