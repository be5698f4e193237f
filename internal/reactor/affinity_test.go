package reactor

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestListsOneCPU(t *testing.T) {
	name := filepath.Join(t.TempDir(), "online")
	testutil.Equal(t, listsOneCPU(name), runtime.NumCPU() == 1, "without the list")
	for list, want := range map[string]bool{
		"0\n": true, "17\n": true, "0-1\n": false,
		"0,2\n": false, "0-3,5\n": false,
	} {
		testutil.Must(t, os.WriteFile(name, []byte(list), 0o600))
		testutil.Equal(t, listsOneCPU(name), want, "CPUs %q", list)
	}
}
