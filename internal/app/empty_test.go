package app

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestNoNamespaces: a subsystem may begin without namespaces, gain some, and lose the last one. A
// host connected meanwhile sees the current namespaces and stays connected. The control interface,
// metrics and the page have the subsystem as well.
func TestNoNamespaces(t *testing.T) {
	with := func(namespaces string) string {
		return servedFile + strings.Replace(validFile,
			"namespaces: [{nsid: 1, backend: ram, size: 16MiB}]", namespaces, 1)
	}
	const some = "namespaces: [{nsid: 3, backend: ram, size: 16MiB}]"
	for _, none := range []string{"namespaces: []", ""} {
		c := parsed(t, with(none))
		if w := c.Warnings(); len(w) != 1 || !strings.Contains(w.Error(), "find nothing") {
			t.Errorf("%q: %v", none, w)
		}
		file := writeConfig(t, with(none))
		socket := filepath.Join(t.TempDir(), "control.sock")
		s := started(t, Options{Load: loader(file), ControlSocket: socket})
		ctx := testutil.Context(t)
		transport := host.TCP{Addr: s.Addrs()[0].AddrPort}
		h := testutil.Value(host.Connect(ctx, transport, hostOptions(testNQN)))(t)
		defer h.Close()
		sees := func(text string, want ...uint32) {
			t.Helper()
			testutil.Must(t, os.WriteFile(file, []byte(with(text)), 0o600))
			testutil.Value(s.Reload())(t)
			got, err := hosttest.ActiveNamespaces(ctx, h)
			testutil.True(t, err == nil && slices.Equal(got, want), "%q: %v, %v", text, got, err)
			testutil.Check(t,
				testutil.Err(hosttest.GetLog(ctx, h, nvme.LogANA, nvme.NSIDAll, 0, 4096, 0, false)))
		}
		sees(none)
		sees(some, 3)
		sees(none)
		testutil.True(t, strings.Contains(readControl(t, socket), testNQN),
			"the control interface does not know the subsystem")
		readServed(t, s)
		testutil.Equal(t, h.Err(), nil, "the host was disconnected")
		sees(some, 3)
	}
}
