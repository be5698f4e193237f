package sys

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
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
		testutil.Equal(t, nodeOfCPU(root, 3), want, "nodes %q", online)
		for _, cpu := range []int{-1, 4} {
			testutil.Equal(t, nodeOfCPU(root, cpu), NoNode,
				"nodes %q: CPU %d is on node", online, cpu)
		}
	}
	testutil.Equal(t, nodeOfCPU(filepath.Join(root, "nothing"), 3), NoNode,
		"a machine that does not tell")
	for text, want := range map[string]int{"1\n": 1, "0\n": 0, "-1\n": NoNode, "x": NoNode} {
		write("infiniband/mlx5_0/device/numa_node", text)
		testutil.Equal(t, nodeOfDevice(root, "infiniband", "mlx5_0"), want, "device with %q", text)
	}
	testutil.Equal(t, nodeOfDevice(root, "infiniband", "rxe0"), NoNode, "a device without a bus")
}
