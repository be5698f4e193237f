package testutil

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// ownNetwork is set in a process started by OwnNetwork.
const ownNetwork = "NVMF_TEST_OWN_NETWORK"

// OwnNetwork reports whether this process has its own network namespace, with the interface br0 and
// the rights of root. If not, it runs the test in a process that has, and the caller must return.
func OwnNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv(ownNetwork) != "" {
		out, err := exec.Command("ip", "link", "add", "br0", "type", "bridge").CombinedOutput()
		if err != nil {
			t.Skipf("needs the program ip, and bridges: %v: %s", err, out)
		}
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), ownNetwork+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, os.ErrPermission):
		t.Skipf("needs a network namespace of its own: %v", err)
	case err != nil:
		t.Errorf("%v:\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("%s", out)
	}
	return false
}

// IP makes the program ip carry out commands such as "link set br0 up".
func IP(t *testing.T, commands ...string) {
	t.Helper()
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ip: %v: %s", err, out)
	}
}
