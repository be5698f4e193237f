package sys

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testutil"
)

func TestNodes(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(root, name)
		testutil.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		testutil.Must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	write("cpu/cpu3/node1/cpulist", "2-3\n")
	write("cpu/cpu3/topology/core_id", "1\n")
	for online, want := range map[string]int{"0\n": NoNode, "0-1\n": 1, "0,1\n": 1} {
		write("node/online", online)
		if got := nodeOfCPU(root, 3); got != want {
			t.Errorf("nodes %q: %d, want %d", online, got, want)
		}
		for _, cpu := range []int{-1, 4} {
			if got := nodeOfCPU(root, cpu); got != NoNode {
				t.Errorf("nodes %q: CPU %d is on node %d", online, cpu, got)
			}
		}
	}
	if got := nodeOfCPU(filepath.Join(root, "nothing"), 3); got != NoNode {
		t.Errorf("a machine that does not tell: %d", got)
	}
	for text, want := range map[string]int{"1\n": 1, "0\n": 0, "-1\n": NoNode, "x": NoNode} {
		write("infiniband/mlx5_0/device/numa_node", text)
		if got := nodeOfDevice(root, "infiniband", "mlx5_0"); got != want {
			t.Errorf("device with %q: %d, want %d", text, got, want)
		}
	}
	if got := nodeOfDevice(root, "infiniband", "rxe0"); got != NoNode {
		t.Errorf("a device without a bus: %d", got)
	}
}
