package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestClusterFails: cluster.sh has the exit code of the kernel that it boots.
func TestClusterFails(t *testing.T) {
	dir := t.TempDir()
	programs := map[string]string{
		"build-kernel.sh": "#!/bin/bash\necho kernel\n",
		"boot.sh": "#!/bin/bash\nwhile [ $1 != -o ]; do shift; done\n" +
			"mkdir $2; echo kill 5000 >$2/stalls; exit 3\n",
	}
	for _, name := range []string{"cluster.sh", "common.sh"} {
		programs[name] = string(testutil.Value(os.ReadFile(name))(t))
	}
	for name, text := range programs {
		testutil.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	cmd := exec.Command(filepath.Join(dir, "cluster.sh"), "failover", "TARGET_BIN=/bin/true")
	cmd.Env = append(os.Environ(), "NVMF_LAB_CACHE="+dir)
	out, _ := cmd.CombinedOutput()
	testutil.True(t, cmd.ProcessState.ExitCode() == 3 && strings.HasSuffix(string(out), "FAILED\n"),
		"exit code %d: %s", cmd.ProcessState.ExitCode(), out)
}
