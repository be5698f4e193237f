package app

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/engine"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// live is a server with a configuration that changes.
type live struct {
	t   *testing.T
	s   *Server
	dir string
}

const listenAny = "{transport: tcp, address: 127.0.0.1, port: 0}"

func newLive(t *testing.T, listeners, subsystems string) *live {
	t.Helper()
	l := &live{t: t, dir: t.TempDir()}
	l.s = started(t, Options{Config: l.parse(listeners, subsystems), Retry: time.Millisecond})
	return l
}

// parse makes a configuration; %DIR% is the test's directory.
func (l *live) parse(listeners, subsystems string) *config.Config {
	l.t.Helper()
	text := "listeners: [" + listeners + "]\nreactors: {count: 2, memory: 8MiB}\nsubsystems:\n" +
		strings.ReplaceAll(subsystems, "%DIR%", l.dir)
	return parsed(l.t, text)
}

func (l *live) apply(listeners, subsystems string) []config.Change {
	l.t.Helper()
	changes := testutil.Value(l.s.Apply(l.parse(listeners, subsystems)))(l.t)
	return changes
}

func (l *live) connect(nqn, hostNQN string, at int) (*host.Controller, error) {
	ctx := testutil.Context(l.t)
	o := hostOptions(nqn)
	o.HostNQN = hostNQN
	c, err := host.Connect(ctx, host.TCP{Addr: l.s.Addrs()[at].AddrPort}, o)
	if err == nil {
		l.t.Cleanup(c.Close)
	}
	return c, err
}

// first returns the text at the beginning of a namespace.
func (l *live) first(c *host.Controller, nsid uint32) string {
	l.t.Helper()
	ctx := testutil.Context(l.t)
	q := testutil.Value(c.OpenQueue(ctx, uint16(nsid), 16))(l.t)
	defer q.Close()
	b, err := c.Map(4096)
	if err == nil {
		err = hosttest.Read(ctx, q, nsid, 0, 1, b[:512])
	}
	testutil.Must(l.t, err)
	return strings.TrimRight(string(b[:512]), "\x00")
}

func (l *live) file(name string) {
	content := make([]byte, 64<<10)
	copy(content, name)
	testutil.Must(l.t, os.WriteFile(filepath.Join(l.dir, name), content, 0o600))
}

const (
	hostA = "nqn.2026-11.io.nvmf-target:a"
	hostB = "nqn.2026-11.io.nvmf-target:b"
)

func sub(keys string, namespaces ...string) string {
	return fmt.Sprintf("  - {nqn: %s, %s, namespaces: [%s]}\n", testNQN, keys,
		strings.Join(namespaces, ", "))
}

func onFile(nsid int, name string) string {
	return fmt.Sprintf("{nsid: %d, backend: file, path: %%DIR%%/%s, size: 64KiB}", nsid, name)
}

// TestApplyAtOnce: concurrent changes, and a stop, wait for each other.
func TestApplyAtOnce(t *testing.T) {
	l := newLive(t, listenAny, sub("allow_any_host: true", "{nsid: 1, backend: ram, size: 1MiB}"))
	var wg sync.WaitGroup
	for i := range 4 {
		c := l.parse(listenAny, sub("allow_any_host: true", "{nsid: 1, backend: ram, size: 1MiB}",
			fmt.Sprintf("{nsid: %d, backend: ram, size: 1MiB}", i+2)))
		wg.Go(func() {
			for {
				if _, err := l.s.Apply(c); err != nil {
					testutil.Is(t, err, engine.ErrStopped, "")
					return
				}
			}
		})
	}
	ctx := testutil.Context(t)
	testutil.Check(t, l.s.Stop(ctx))
	wg.Wait()
}

// TestFileKeys: each key outside lists that needs no restart can be changed.
func TestFileKeys(t *testing.T) {
	for _, s := range allSections() {
		if strings.Contains(s.Path, "[]") || s.Restart {
			continue
		}
		for _, k := range s.Keys {
			name := strings.TrimPrefix(s.Path+"."+k.Name, ".")
			setter := new(Server).settings().Of(name)
			testutil.True(t, setter != nil || k.Restart, "%s cannot be changed", name)
		}
	}
}

// ana returns the state of the only group of a subsystem as seen by a host.
func (l *live) ana(c *host.Controller) string {
	l.t.Helper()
	ctx := testutil.Context(l.t)
	b := testutil.Value(hosttest.GetLog(ctx, c, nvme.LogANA, nvme.NSIDAll, 0, 1024, 0, false))(l.t)
	_, groups, err := targettest.ParseANALog(b)
	testutil.MustTrue(l.t, err == nil && len(groups) == 1, "%+v %v", groups, err)
	return fmt.Sprintf("%d %v", groups[0].AGID, groups[0].ANAS)
}

// TestANAWhileApplying: a change of the configuration that takes long delays no failover.
func TestANAWhileApplying(t *testing.T) {
	l := newLive(t, listenAny, sub(anyHosts, inRAM))
	defer l.s.engine.Hold()()
	done := make(chan error, 1)
	go func() {
		_, err := l.s.listeners.SetANA(control.ANASet{Group: 1, State: "inaccessible"})
		done <- err
	}()
	testutil.Check(t, testutil.Receive(t, "a state is set during the change", done))
}

// TestANATransition: a transition ends after the time that hosts know.
func TestANATransition(t *testing.T) {
	for limit, ends := range map[time.Duration]bool{time.Hour: false, time.Millisecond: true} {
		l := &live{t: t, dir: t.TempDir()}
		l.s = started(t, Options{
			Config: l.parse(listenAny, sub(anyHosts, inRAM)), ANATransition: limit,
		})
		c := testutil.Value(l.connect(testNQN, hostA, 0))(t)
		set := func(state string) {
			t.Helper()
			testutil.Value(l.s.listeners.SetANA(control.ANASet{Group: 1, State: state}))(t)
		}
		set("change")
		if !ends {
			testutil.Equal(t, l.ana(c), "1 change", "the state")
		} else {
			testutil.Until(t, "the transition ends",
				func() bool { return l.ana(c) == "1 inaccessible" })
		}
		set("configured")
		testutil.Equal(t, l.ana(c), "1 optimized", "the state")
	}
}

// TestWatchedChanges: clients, scrapers and the service manager get answers in the middle of
// changes.
func TestWatchedChanges(t *testing.T) {
	t.Parallel()
	l := newLive(t, listenAny, sub(anyHosts, inRAM))
	l.file("x")
	l.file("y")
	metrics := fmt.Sprintf("%s]\nmetrics: {listen: '127.0.0.1:%d'}\n#", listenAny,
		testutil.FreePort(t))
	waiting := listenAny + ", {transport: tcp, address: 192.0.2.1, port: 4420}"
	configs := [][2]string{
		{listenAny, sub(anyHosts, inRAM, onFile(2, "x"), strings.Replace(inMount, "2", "4", 1))},
		{metrics, sub("hosts: ["+hostA+"]", inRAM, onFile(2, "y"))},
		{waiting, sub(anyHosts, inRAM, onFile(3, "x"), onFile(2, "z"))},
		{waiting, sub(anyHosts, onFile(1, "y"))},
	}
	var end atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end.Store(true)
	for _, ask := range []func() string{
		func() string { return fmt.Sprint(l.s.listeners.States()) },
		func() string { return fmt.Sprint(l.s.namespaceStates(), l.s.subsystemStates()) },
		func() string { return fmt.Sprint(l.s.status(), l.s.target.Controllers()) },
		func() string { return l.s.announcement().text(reachable) },
		func() string { return fmt.Sprint(l.s.Plan(l.s.current())) },
		func() string { return fmt.Sprint(l.s.target.Stats()) },
	} {
		wg.Go(func() {
			for !end.Load() {
				_ = ask()
			}
		})
	}
	rounds := testutil.Rounds(1, 4)
	for range rounds {
		for _, c := range configs {
			l.apply(c[0], c[1])
		}
	}
}

const testSecret = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"

// testSecrets are the keys of sequences.
var testSecrets = []string{
	testSecret,
	"DHHC-1:00:dYaw096krZ260qdUC32Qt6MOOJ29Txf41rRRmsWeFd44CmkR:",
	"DHHC-1:00:AcRa6V6AE/2EyOl+dzVY52vag0nwBrNtSp8o3w+afpRQGr+p:",
}

// TestAccessComesLast: a host has access without a key only after all else has changed.
func TestAccessComesLast(t *testing.T) {
	const both = "hosts: [" + hostA + ", " + hostB + "]"
	l := newLive(t, listenAny, sub(both+", security: auth", inRAM))
	looked := false
	l.s.engine.Settings["log.slow_io"] = &engine.Setter{Set: func(*config.Config) error {
		looked = testutil.Err(l.connect(testNQN, hostB, 0)) != nil
		return nil
	}}
	l.apply(listenAny, sub(both, inRAM)+"log: {slow_io: 1s}\n")
	testutil.True(t, looked, "the host had access too early, or nobody has looked")
	testutil.Check(t, testutil.Err(l.connect(testNQN, hostB, 0)))
}

// TestFinalComesLast: a subsystem is gone for good only after all else has changed.
func TestFinalComesLast(t *testing.T) {
	one := sub(anyHosts, inRAM)
	l := newLive(t, listenAny, one+strings.Replace(one, testNQN, testNQN+"-more", 1))
	why := func() string { return fmt.Sprint(testutil.Err(l.connect(testNQN+"-more", hostA, 0))) }
	during := ""
	l.s.engine.Settings["log.slow_io"] = &engine.Setter{Set: func(*config.Config) error {
		during = why()
		return nil
	}}
	l.apply(listenAny, one+"log: {slow_io: 1s}\n")
	after := why()
	testutil.True(t, strings.Contains(during, "Connect Invalid Parameters") &&
		!strings.Contains(during, "DNR") && strings.Contains(after, "DNR"), "%q, then %q", during,
		after)
}

// TestHangup: SIGHUP applies the file. If it is broken (C11), nothing changes and the log has the
// reason. In any case connected hosts stay connected.
func TestHangup(t *testing.T) {
	file := writeConfig(t, validFile)
	log := new(testutil.Log)
	s := started(t, Options{Log: log.Logger(), Load: loader(file)})
	ctx := testutil.Context(t)
	transport := host.TCP{Addr: s.Addrs()[0].AddrPort}
	before := testutil.Value(host.Connect(ctx, transport, hostOptions(testNQN)))(t)
	defer before.Close()
	signals, hangups, ended := make(chan os.Signal), make(chan os.Signal), make(chan error, 1)
	go func() {
		p := &program{server: s, log: log.Logger(), out: io.Discard}
		ended <- p.run(signals, hangups, nil, nil)
	}()
	hangup := func(text, done string) {
		t.Helper()
		testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
		hangups <- syscall.SIGHUP
		testutil.Until(t, "the log says: "+done, func() bool {
			return strings.Contains(log.String(), done) || len(ended) > 0
		})
		if len(ended) > 0 {
			t.Fatalf("the program ended: %v", <-ended)
		}
		testutil.Equal(t, before.Err(), nil, "a host lost its connection")
		writeAndRead(t, transport)
	}
	hangup("subsystems: [\n", "the configuration was not changed")
	const more = testNQN + "-more"
	hangup(strings.Replace(validFile, "reactors:", `  - nqn: `+more+`
    allow_any_host: true
    namespaces: [{nsid: 1, backend: ram, size: 16MiB}]
reactors:`, 1), "the configuration was applied")
	c2 := testutil.Value(host.Connect(ctx, transport, hostOptions(more)))(t)
	c2.Close()
	signals <- syscall.SIGTERM
	testutil.Equal(t, <-ended, nil, "after SIGTERM")
}

// TestReloadsTakeTurns: a reload reads the file while no other one applies an earlier reading, so
// that the last one to end has read the file last.
func TestReloadsTakeTurns(t *testing.T) {
	var s *Server
	c := parse(t, anyPort)
	var free []bool
	s = newServer(t, Options{Config: c, Load: func(...config.Option) (*config.Config, error) {
		release, ok := s.engine.TryHold()
		if ok {
			release()
		}
		free = append(free, ok)
		return c, nil
	}})
	testutil.Must(t, s.Start())
	testutil.Check(t, testutil.Err(s.Reload()))
	testutil.True(t, len(free) != 0 && !free[len(free)-1], "another reload can begin: %v", free)
}

// TestManyHangups: several SIGHUPs that come before a reload cause one.
func TestManyHangups(t *testing.T) {
	hangups, end := catchHangups()
	defer end()
	seen := make(chan os.Signal, 16)
	signal.Notify(seen, syscall.SIGHUP)
	defer signal.Stop(seen)
	for range 10 {
		testutil.Must(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
		<-seen
	}
	testutil.Receive(t, "SIGHUP", hangups)
	select {
	case <-hangups:
		t.Error("another one waits")
	default:
	}
}
