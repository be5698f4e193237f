package app_test

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/mpa"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/listeners"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// manager keeps descriptors like systemd.
type manager struct {
	t  *testing.T
	mu sync.Mutex
	// kept has the descriptors by name.
	kept map[string]int
}

func newManager(t *testing.T) *manager {
	m := &manager{t: t, kept: map[string]int{}}
	t.Cleanup(func() {
		for _, fd := range m.kept {
			_ = unix.Close(fd)
		}
	})
	return m
}

func (m *manager) notify(state string, fds ...int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	what, name, _ := strings.Cut(state, "\nFDNAME=")
	fd, there := m.kept[name]
	switch {
	case strings.Contains(name, ":"):
		m.t.Errorf("systemd refuses the name %q", name)
	case what == "FDSTORE=1" && len(fds) == 1 && !there:
		d, err := unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0)
		m.kept[name] = d
		return err
	case what == "FDSTOREREMOVE=1" && len(fds) == 0 && there:
		delete(m.kept, name)
		return unix.Close(fd)
	default:
		m.t.Errorf("notified %q with %d descriptors, kept: %v", state, len(fds), there)
	}
	return nil
}

// sockets returns the sockets with which the next program starts.
func (m *manager) sockets() *listeners.Sockets {
	m.mu.Lock()
	defer m.mu.Unlock()
	var files []*os.File
	for name, fd := range m.kept {
		d := testutil.Value(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0))(m.t)
		files = append(files, os.NewFile(uintptr(d), name))
	}
	return listeners.NewSockets(slog.Default(), files, m.notify)
}

func (m *manager) wantKept(n int) {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	testutil.Equal(m.t, len(m.kept), n, "sockets are kept")
}

// TestRestart: before the target stops, hosts are asked to reset their controllers. A host that
// connects while there is no target is served by the next one, also with TLS or authentication. If
// a listener is gone, no host can connect.
func TestRestart(t *testing.T) {
	tcp := restartCase{transport: "tcp", options: func(*listeners.Sockets) app.Options {
		return app.Options{}
	}, host: func(at netip.AddrPort) host.Transport { return host.TCP{Addr: at} }}
	t.Run("no key", func(t *testing.T) { tcp.test(t) })
	hosts := func(key, text string) string {
		testutil.Secret(t, text)
		return fmt.Sprintf("hosts: [{nqn: %s, %s: %q}]", hostOptions("").HostNQN, key, text)
	}
	t.Run("authentication", func(t *testing.T) {
		key := testutil.Value(auth.NewKey(32, auth.SHA256))(t)
		c := tcp
		c.hosts, c.key = hosts("dhchap_key", key.Reveal()), key
		c.test(t)
	})
	t.Run("TLS", func(t *testing.T) {
		needTLS(t)
		key := testutil.Value(auth.NewTLSKey(auth.SHA256))(t)
		c := tcp
		c.listener, c.hosts = ", tls: required", hosts("tls_key", key.Reveal())
		c.host = func(at netip.AddrPort) host.Transport {
			return host.TCP{Addr: at, PSK: func(string, string) (*auth.TLSPSK, error) {
				psks, err := key.PSKs(hostOptions("").HostNQN, testNQN)
				return &psks[0], err
			}}
		}
		c.test(t)
	})
	t.Run("RoCE", testRestartRoCE)
	t.Run("iWARP", func(t *testing.T) {
		network := verbstest.New(verbstest.Options{})
		t.Cleanup(network.Close)
		network.AddHost("target") // has no device
		open := func(o soft.Options) *soft.Provider {
			p := soft.New(o)
			t.Cleanup(func() { testutil.Check(t, p.Close()) })
			return p
		}
		p := open(soft.Options{IWARP: true, Background: true})
		restartCase{
			transport: "rdma", listener: ", stack: soft-iwarp",
			options: func(s *listeners.Sockets) app.Options {
				stacks := map[bool]*soft.Provider{false: open(soft.Options{}), true: open(
					soft.Options{IWARP: true, Engines: 2, MPA: mpa.Options{Sockets: s}})}
				return app.Options{
					Verbs: network.Provider("target"),
					Soft:  func(_ int, iwarp bool) *soft.Provider { return stacks[iwarp] },
				}
			},
			host: func(at netip.AddrPort) host.Transport {
				return host.RDMA{Provider: p, Addr: at}
			},
		}.test(t)
	})
}

// testRestartRoCE: the request of a host waits for the next target, so the host need not repeat it.
func testRestartRoCE(t *testing.T) {
	network := verbstest.New(verbstest.Options{})
	t.Cleanup(network.Close)
	network.AddHost("target") // has no device
	port := testutil.FreePort(t)
	stack := func(addr string, sockets wire.Sockets) *soft.Provider {
		return soft.New(soft.Options{Background: sockets == nil, Network: wire.NewUDP(
			wire.UDPOptions{
				IPv4: netip.MustParseAddr(addr), Port: port, Sockets: sockets,
				IPv6: netip.MustParseAddr("2001:db8::1"), // no interface has it
			})})
	}
	p, before := stack("127.0.0.2", nil), soft.New(soft.Options{})
	t.Cleanup(func() { testutil.Check(t, errors.Join(p.Close(), before.Close())) })
	count := func(counter string) (n uint64) {
		for _, c := range p.Counters() {
			if c.Counter == counter {
				n += c.Value
			}
		}
		return n
	}
	restartCase{
		transport: "rdma", listener: ", stack: soft", kept: 1,
		options: func(s *listeners.Sockets) app.Options {
			testutil.Check(t, before.Close()) // as the end of its process does
			roce := stack("127.0.0.1", s)
			before, s.Requests = roce, roce.TakeRequests
			return app.Options{
				Verbs: network.Provider("target"),
				Soft: func(_ int, iwarp bool) *soft.Provider {
					if iwarp {
						return soft.New(soft.Options{IWARP: true})
					}
					return roce
				},
			}
		},
		host: func(at netip.AddrPort) host.Transport { return host.RDMA{Provider: p, Addr: at} },
		waits: func() {
			sent := count("cm_sent")
			testutil.Until(t, "the request", func() bool { return count("cm_sent") > sent })
		},
	}.test(t)
	testutil.Equal(t, count("cm_repeated"), 0, "repeated messages")
}

// TestRestartWithoutRoCE: the kept socket of a listener of RoCE is only opened for another one.
// Otherwise it would hold the UDP port, which rdma_rxe may need.
func TestRestartWithoutRoCE(t *testing.T) {
	t.Cleanup(runtime.GC) // closes the sockets that no program takes
	for listener, want := range map[string]bool{
		"{transport: rdma, address: 127.0.0.1, stack: soft}":       false,
		"{transport: rdma, address: 127.0.0.1}":                    false,
		"{transport: rdma, address: 127.0.0.1, stack: device}":     true,
		"{transport: rdma, address: 127.0.0.1, stack: soft-iwarp}": true,
		"{transport: tcp, address: 127.0.0.1}":                     true,
	} {
		m, at := newManager(t), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"),
			testutil.FreePort(t))
		u := testutil.Value(net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at)))(t)
		f := testutil.Value(u.File())(t)
		testutil.Check(t, errors.Join(u.Close(), m.notify("FDSTORE=1\nFDNAME="+
			"udp-"+strings.ReplaceAll(at.String(), ":", "_"), int(f.Fd())), f.Close()))
		s := m.sockets()
		p := app.SoftProvider(soft.Options{Network: wire.NewUDP(wire.UDPOptions{
			IPv4: at.Addr(), IPv6: netip.MustParseAddr("2001:db8::1"), Port: at.Port(), Sockets: s,
		})}, s, parse(t, listener).Listeners)
		testutil.Equal(t, s.KeptUDP(), want, "%s: socket left", listener)
		testutil.Check(t, p.Close())
		if !want {
			s.DropUDP(at)
		}
	}
}

type restartCase struct {
	transport       string
	listener, hosts string // added to the configuration
	options         func(*listeners.Sockets) app.Options
	host            func(at netip.AddrPort) host.Transport
	key             *auth.Key
	kept            int    // sockets, whatever listeners there are; 0: one for each listener
	waits           func() // returns when the host waits for the target; nil: returns at once
}

func (r restartCase) test(t *testing.T) {
	m := newManager(t)
	wantKept := func(n int) {
		t.Helper()
		m.wantKept(cmp.Or(r.kept, n))
	}
	port, other := testutil.FreePort(t), testutil.FreePort(t)
	at := fmt.Sprintf("127.0.0.1:%d", port)
	const format = "{transport: %s, address: 127.0.0.1, port: %d%s}"
	listener := fmt.Sprintf(format, r.transport, port, r.listener)
	second := fmt.Sprintf(format, r.transport, other, r.listener)
	parse := func(t *testing.T, listeners string) *config.Config {
		return parse(t, listeners, r.hosts)
	}
	ctx := testutil.Context(t)
	connect := func() (*host.Controller, error) {
		o := hostOptions(testNQN)
		o.Key = r.key
		return host.Connect(ctx, r.host(netip.MustParseAddrPort(at)), o)
	}
	start := func(listeners string) *harness.Harness {
		s := m.sockets()
		o := r.options(s)
		o.Config, o.Sockets = parse(t, listeners), s
		return started(t, o)
	}
	first := start(listener + ", " + second)
	wantKept(2)
	c := testutil.Value(connect())(t)
	events := testutil.Value(hosttest.Events(ctx, c, nvme.EventNamespaceChanged))(t)
	stopped := make(chan error, 1)
	go func() { stopped <- first.Server.Stop(ctx) }()
	testutil.Equal(t, testutil.Receive(t, "an event", events), nvme.AsyncPersistentError, "event")
	again := make(chan *host.Controller, 1)
	c.Close() // as in a reset; the target accepts nobody
	go func() {
		c, err := connect()
		testutil.True(t, err == nil, "while there is no target: %v", err)
		again <- c
	}()
	if r.waits != nil {
		r.waits()
	}
	testutil.Check(t, testutil.Receive(t, "the end", stopped))
	wantKept(2)

	next := start(listener)
	if c := testutil.Receive(t, "the connection", again); c != nil {
		c.Close()
	}
	wantKept(1)
	if r.kept != 0 {
		return // the socket stays when listeners end
	}
	refused := func(at string) {
		t.Helper()
		if c, err := net.Dial("tcp", at); err == nil {
			c.Close()
			t.Errorf("%s: there is no listener, but it accepts", at)
		}
	}
	refused(fmt.Sprintf("127.0.0.1:%d", other))
	testutil.Value(next.Engine().Drain(control.ListenerID{All: true}, true))(t)
	refused(at)
	wantKept(0)
	testutil.Value(next.Engine().Drain(control.ListenerID{All: true}, false))(t)
	wantKept(1)
	testutil.Value(next.Apply(parse(t, second)))(t)
	refused(at)
	wantKept(1)
}

// TestRestartOfProcess is TestRestart with two processes, started like by systemd.
func TestRestartOfProcess(t *testing.T) {
	t.Parallel()
	notified, socket := notifySocket(t)
	port := testutil.FreePort(t)
	file := writeConfig(t, strings.Replace(validFile, "port: 0", fmt.Sprintf("port: %d", port), 1))
	env := []string{"NOTIFY_SOCKET=" + socket, "INVOCATION_ID=1", serveFile + "=" + file}
	child := exec.Command(os.Args[0])
	child.Env = env
	lines := startServe(t, child)
	kept := receiveDescriptor(t, notified, fmt.Sprintf("FDSTORE=1\nFDNAME=tcp-127.0.0.1_%d", port))
	defer kept.Close()
	address(t, lines)
	testutil.Must(t, child.Process.Signal(syscall.SIGKILL))
	_ = child.Wait()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	testutil.MustTrue(t, err == nil, "refused while there is no process: %v", err)
	defer c.Close()

	next := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0"`, os.Args[0])
	next.Env = append(env, "LISTEN_FDS=1", "LISTEN_FDNAMES="+filepath.Base(kept.Name()))
	next.ExtraFiles = []*os.File{kept}
	address(t, startServe(t, next))
	// An ICReq with an invalid PDU header is answered by a C2HTermReq.
	testutil.Check(t, testutil.Err(c.Write(make([]byte, 128))))
	n, err := c.Read(make([]byte, 128))
	testutil.True(t, n != 0, "nobody serves the connection: %v", err)
	_ = c.Close()
	_ = next.Process.Signal(syscall.SIGTERM)
	testutil.Check(t, next.Wait())
}

// receiveDescriptor returns the descriptor that comes with a notification.
func receiveDescriptor(t *testing.T, c *net.UnixConn, want string) *os.File {
	t.Helper()
	b, oob := make([]byte, 4096), make([]byte, 128)
	for {
		n, m, _, _, err := c.ReadMsgUnix(b, oob)
		testutil.Must(t, err)
		if got := string(b[:n]); got != want {
			t.Logf("notified %q", got)
			continue
		}
		messages, err := unix.ParseSocketControlMessage(oob[:m])
		testutil.MustTrue(t, err == nil && len(messages) == 1, "%v %v", messages, err)
		fds, err := unix.ParseUnixRights(&messages[0])
		testutil.MustTrue(t, err == nil && len(fds) == 1, "%v %v", fds, err)
		unix.CloseOnExec(fds[0])
		return os.NewFile(uintptr(fds[0]), "kept")
	}
}

// TestSocketsThatDoNotListen: such a socket does not take the place of a listening one at the same
// address.
func TestSocketsThatDoNotListen(t *testing.T) {
	m, port := newManager(t), testutil.FreePort(t)
	listener := fmt.Sprintf("{transport: tcp, address: 127.0.0.1, port: %d, "+
		"on_unavailable: fail}", port)
	dead := testutil.Value(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	for _, err := range []error{
		unix.SetsockoptInt(dead, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(dead, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}}),
	} {
		testutil.Must(t, err)
	}
	first := started(t, app.Options{Config: parse(t, listener), Sockets: m.sockets()})
	first.Stop()
	files := []*os.File{os.NewFile(uintptr(dead), "dead")}
	for _, fd := range m.kept {
		d := testutil.Value(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0))(t)
		files = append(files, os.NewFile(uintptr(d), "kept"))
	}
	started(t, app.Options{
		Config: parse(t, listener), Sockets: listeners.NewSockets(slog.Default(), files, m.notify),
	})
	m.wantKept(1)
}

// TestMemoryOfProcesses: the next process gets the memory of the previous one.
func TestMemoryOfProcesses(t *testing.T) {
	m := newManager(t)
	for i := range byte(3) {
		b := m.sockets().Memory(100)
		testutil.MustEqual(t, len(b), 100, "bytes")
		testutil.Equal(t, b[99], i, "byte of the previous process")
		b[99]++
		testutil.Must(t, unix.Munmap(b))
		m.wantKept(1)
	}
}

// TestRestartElsewhere: a kept socket does not hold an address that something else has in the next
// configuration, which a start may need at once.
func TestRestartElsewhere(t *testing.T) {
	const needed = "{transport: tcp, address: 127.0.0.1, port: %d, on_unavailable: fail}"
	for _, row := range []struct{ name, before, listener, more string }{
		{"narrower", "0.0.0.0", needed, ""},
		{"wider", "127.0.0.1", strings.Replace(needed, "127.0.0.1", "0.0.0.0", 1), ""},
		{
			"metrics", "127.0.0.1", "{transport: tcp, address: 127.0.0.1, port: 0}",
			"metrics: {listen: '127.0.0.1:%d'}",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			m, port := newManager(t), testutil.FreePort(t)
			at := func(text string) string {
				return strings.ReplaceAll(text, "%d", fmt.Sprint(port))
			}
			before := strings.Replace(needed, "127.0.0.1", row.before, 1)
			first := started(t, app.Options{Config: parse(t, at(before)), Sockets: m.sockets()})
			first.Stop()
			m.wantKept(1)
			started(t, app.Options{
				Config: parse(t, at(row.listener), at(row.more)), Sockets: m.sockets(),
			})
		})
	}
}
