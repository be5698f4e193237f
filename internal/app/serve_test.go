package app

import (
	"bufio"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

func TestAnnouncement(t *testing.T) {
	addr := func(tr nvme.TransportType, s string) fabric.Addr {
		return fabric.Addr{Transport: tr, AddrPort: netip.MustParseAddrPort(s)}
	}
	subsystem := func(nqn string, r subsystems.Security) (s config.Subsystem) {
		s.NQN, s.Security = nqn, r
		return s
	}
	a := announcement{
		version: "v1.2.3",
		subsystems: []config.Subsystem{
			subsystem("nqn.2026-11.io.nvmf-target:disk0", 0),
			subsystem("nqn.2026-11.io.nvmf-target:it's $HOME", 0),
			subsystem("nqn.2026-11.io.nvmf-target:key", subsystems.SecurityAuth),
			subsystem("nqn.2026-11.io.nvmf-target:tls", subsystems.SecurityTLS),
		},
		namespaces: slices.Repeat(
			volumes.All(parse(t, "{transport: tcp, address: 127.0.0.1}")), 34),
		up: []fabric.Addr{
			addr(nvme.TransportTCP, "0.0.0.0:4420"),
			addr(nvme.TransportTCP, "192.0.2.1:4422"),
			addr(nvme.TransportRDMA, "[2001:db8::1]:4421"),
		},
		encrypted: map[fabric.Addr]bool{addr(nvme.TransportTCP, "192.0.2.1:4422"): true},
		waiting:   []string{"rdma 10.0.0.1:4420"},
		pending: volumes.All(parsed(t, strings.Replace(validFile, "backend: ram",
			"backend: file, path: /mnt/disk", 1))),
	}
	got := a.text(func(fabric.Addr) []netip.Addr {
		return []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.7")}
	})
	testutil.Golden(t, "testdata/announcement.golden", got)
}

// TestReachable: a wildcard is announced with addresses of this machine.
func TestReachable(t *testing.T) {
	list := reachable(fabric.Addr{
		Transport: nvme.TransportTCP,
		AddrPort:  netip.MustParseAddrPort("0.0.0.0:1"),
	})
	testutil.MustTrue(t, len(list) != 0, "no address")
	for _, ip := range list {
		l, err := net.Listen("tcp", net.JoinHostPort(ip.String(), "0"))
		if err != nil {
			t.Errorf("%v: %v", ip, err)
			continue
		}
		l.Close()
	}
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nvmf-target.yaml")
	testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

const validFile = `
listeners: [{transport: tcp, address: 127.0.0.1, port: 0}]
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:test
    allow_any_host: true
    namespaces: [{nsid: 1, backend: ram, size: 16MiB}]
reactors: {count: 1, memory: 8MiB}
`

// startServe starts a process that serves validFile, see main_test.go, and returns the lines that
// it prints. child.Env is added to the environment of this process. The child is killed after
// testTimeout.
func startServe(t *testing.T, child *exec.Cmd) *bufio.Scanner {
	t.Helper()
	child.Env = append(append(os.Environ(), serveFile+"="+writeConfig(t, validFile),
		"RUNTIME_DIRECTORY="+t.TempDir()), child.Env...) // of the control socket
	stdout := testutil.Value(child.StdoutPipe())(t)
	testutil.Must(t, child.Start())
	kill := time.AfterFunc(testTimeout, func() { _ = child.Process.Kill() })
	t.Cleanup(func() { kill.Stop() })
	return bufio.NewScanner(stdout)
}

// address returns the address that such a process announces first.
func address(t *testing.T, lines *bufio.Scanner) string {
	t.Helper()
	testutil.MustTrue(t, lines.Scan(), "the target does not start")
	_, addr, _ := strings.Cut(lines.Text(), " on tcp ")
	return addr
}

// TestSignals: a real process reports when it is ready, survives SIGHUP, and exits with code 0
// after SIGTERM or SIGINT.
func TestSignals(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			notified, socket := notifySocket(t)
			child := exec.Command(os.Args[0])
			child.Env = []string{"NOTIFY_SOCKET=" + socket, "WATCHDOG_USEC=20000"}
			stderr := testutil.Value(child.StderrPipe())(t)
			lines := startServe(t, child)
			var said []string
			for len(said) < 3 && lines.Scan() {
				said = append(said, lines.Text())
			}
			testutil.True(t, len(said) == 3 && strings.HasPrefix(said[0],
				"nvmf-target test serves 1 subsystem with 1 namespace on tcp 127.0.0.1:") &&
				said[1] == "  namespace 1 of "+testNQN+": ram" && strings.HasPrefix(said[2],
				"  nvme connect -t tcp -a 127.0.0.1 -s "), "printed %q", said)
			expectNotification(t, notified, "READY=1\nSTATUS="+said[0])
			expectNotification(t, notified, "WATCHDOG=1")
			_ = child.Process.Signal(syscall.SIGHUP)
			expectNotification(t, notified, "RELOADING=1\nMONOTONIC_USEC=")
			expectNotification(t, notified, "READY=1\nSTATUS="+said[0])
			_ = child.Process.Signal(sig)
			expectNotification(t, notified, "STOPPING=1\nSTATUS=draining")
			rest, _ := io.ReadAll(stderr)
			err := child.Wait()
			testutil.True(t, err == nil, "%v; the end of its log:\n%s", err, rest)
		})
	}
}

func notifySocket(t *testing.T) (*net.UnixConn, string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "notify")
	c := testutil.Value(
		net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"}))(t)
	t.Cleanup(func() { c.Close() })
	return c, name
}

// expectNotification waits for a notification. want is all of it or, up to a "=", its beginning.
// Signs of life in between are skipped.
func expectNotification(t *testing.T, c *net.UnixConn, want string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(testTimeout))
	b := make([]byte, 4096)
	for {
		n, err := c.Read(b)
		if got := string(b[:n]); err == nil && (got == want ||
			strings.HasSuffix(want, "=") && strings.HasPrefix(got, want)) {
			return
		} else if err != nil || got != "WATCHDOG=1" {
			t.Fatalf("notified %q, %v, want %q", got, err, want)
		}
	}
}

func TestServeReportsProblems(t *testing.T) {
	err := Serve("testdata/none.yaml", "test", io.Discard, io.Discard)
	testutil.Fails(t, err, "no such file", "")
}
