package app

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

const (
	inRAM    = "{nsid: 1, backend: ram, size: 1MiB}"
	inMount  = "{nsid: 2, backend: file, path: %DIR%/mount/disk, size: 64KiB}"
	anyHosts = "allow_any_host: true"
)

func (l *live) mkdir(name string) {
	l.t.Helper()
	testutil.Must(l.t, os.Mkdir(filepath.Join(l.dir, name), 0o700))
}

func (l *live) wantUp(up <-chan uint32) {
	l.t.Helper()
	testutil.Receive(l.t, "the namespace is served", up)
}

// TestAppearsAtStart: storage may appear before everything else has been started.
func TestAppearsAtStart(t *testing.T) {
	network := verbstest.New(verbstest.Options{Async: true})
	t.Cleanup(network.Close)
	network.AddHost("target", verbstest.RoCE("rxe0", netip.MustParseAddr("127.0.0.1")))
	l := &live{t: t, dir: t.TempDir()}
	up := make(chan uint32, 1)
	stack := &listenStack{Provider: network.Provider("target")}
	stack.onListen = func() {
		l.mkdir("mount")
		l.wantUp(up)
	}
	l.s = started(t, Options{
		Config: l.parse(onRDMA("tos: 4"), sub(anyHosts, inRAM, inMount)), Verbs: stack,
		Retry: time.Millisecond, NamespaceUp: func(_ string, nsid uint32) { up <- nsid },
	})
}

// TestBlockedCallback: a program that handles the callback only after a change, or a stop, delays
// neither.
func TestBlockedCallback(t *testing.T) {
	l := &live{t: t, dir: t.TempDir()}
	called, told, end := make(chan bool, 2), make(chan struct{}), make(chan bool)
	l.s = newServer(t, Options{
		Config: l.parse(listenAny, sub(anyHosts, inRAM, inMount)), Retry: time.Millisecond,
		NamespaceUp: func(string, uint32) {
			called <- true
			<-end
			close(told)
		},
	})
	t.Cleanup(func() { <-told })
	t.Cleanup(func() { close(end) })
	testutil.Must(t, l.s.Start())
	l.mkdir("mount")
	<-called
	wanted, applied := l.parse(listenAny, sub(anyHosts, inRAM)), make(chan error, 1)
	go func() {
		_, err := l.s.Apply(wanted)
		applied <- err
	}()
	testutil.Check(t, testutil.Receive(t, "the change does not wait for the callback", applied))
}

// TestEmptyDevice: a block device without a medium, such as a loop device without a file, counts as
// missing.
func TestEmptyDevice(t *testing.T) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no loop device: %v", err)
	}
	t.Cleanup(func() { _ = control.Close() })
	n := 1000 + os.Getpid()%100000 // losetup --find does not choose it
	if err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_ADD, n); err != nil {
		t.Skipf("no loop device: %v", err)
	}
	device, backing := fmt.Sprintf("/dev/loop%d", n), filepath.Join(t.TempDir(), "backing")
	t.Cleanup(func() { // after the server has closed it
		_ = exec.Command("losetup", "--detach", device).Run()
		_ = unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_REMOVE, n)
	})
	testutil.Must(t, os.WriteFile(backing, make([]byte, 1<<20), 0o600))
	text := strings.Replace(validFile, "backend: ram, size: 16MiB", "backend: block, path: "+
		device, 1)
	out, err := warnings(t, text)
	testutil.True(t, err == nil && strings.Contains(out, "the namespace is pending"),
		"check: %v, %s", err, out)
	c := parsed(t, text)
	up := make(chan uint32, 1)
	started(t, Options{
		Config: c, Retry: time.Millisecond,
		NamespaceUp: func(_ string, nsid uint32) { up <- nsid },
	})
	if out, err := exec.Command("losetup", device, backing).CombinedOutput(); err != nil {
		t.Skipf("no loop device: %v: %s", err, out)
	}
	testutil.Receive(t, "the namespace is up", up)
}

// TestPrivateImages: a gateway writes to no image outside of the groups that it shares.
func TestPrivateImages(t *testing.T) {
	parse := func(namespace string) error {
		return testutil.Err(Parse("test.yaml", []byte(`
listeners: [{transport: tcp, address: 10.0.0.1}]
group: {name: a, pool: nvme, ana_groups: [2]}
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:a
    allow_any_host: true
    namespaces: [{nsid: 1, backend: rbd, image: nvme/a`+namespace+`}]
`), nil))
	}
	testutil.Check(t, parse(", ana_group: 2"))
	testutil.Check(t, parse(", read_only: true"))
	testutil.Fails(t, parse(""), "subsystems[0].namespaces[0]: several gateways could write to "+
		"the image, since ANA group 1 is not one of group.ana_groups. Add it there", "")
}

// oddNames are valid NQNs that need escaping somewhere: in paths, in file names, in YAML and JSON,
// in labels of metrics or in a shell.
var oddNames = []string{
	"hostnqn", "nqn.io-1", "nqn.2008-04.org.example.lan.host1", ".", "..", "a/../b", "//",
	"a b", " a ", "%2F", "%", "a?b#c", "a&b=c", `"quoted"`, `back\slash`, "<img src=x>", "${HOME}",
	"$${a}", "{x}", "-v", "--help", "123", "1e3", "0x1F", "null", "~", "true", "[a, b]", "{a: b}",
	"# no", "a: b", "- a", "*a", "&a", "!a", "süß", "名前", "\u202eabc", "\u2028", "\ufeffx", "'",
	"a'b", ";ls", "`ls`", "$(ls)", "\U0001F600", "::", "a::b", "subsystems", "nqn", "2026-11-26",
	strings.Repeat("x/", 111), strings.Repeat("ü", 111),
}

// TestOddNames: subsystems and hosts may have any name. They are created, kept across a restart,
// served, shown and deleted.
func TestOddNames(t *testing.T) {
	t.Parallel() // it mostly waits for storage
	o := newOrchestrated(t)
	o.stop()
	o.write("metrics: {listen: '127.0.0.1:0'}\n")
	o.start()
	for i, name := range oddNames {
		sub := control.Object{Subsystem: name}
		o.put(sub, "")
		if i%4 == 0 { // each takes longer than the one before
			o.put(control.Object{Subsystem: name, Host: oddNames[len(oddNames)-1-i]}, "")
			o.put(control.Object{Subsystem: name, NSID: 1}, `{"backend":"ram","size":"4KiB"}`)
		}
	}
	o.same()
	o.stop()
	o.start()
	list := testutil.Value(control.GetSubsystems.From(t.Context(), o.client))(o.t)
	var names []string
	for _, s := range list {
		names = append(names, s.NQN)
	}
	for _, name := range oddNames {
		testutil.True(t, slices.Contains(names, name), "there is no subsystem %q any more", name)
	}
	label := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	for i := 0; i < len(oddNames); i += 4 {
		sub, hostNQN := oddNames[i], oddNames[len(oddNames)-1-i]
		c, err := host.Connect(t.Context(), host.TCP{Addr: o.server.Addrs()[0].AddrPort},
			host.Options{HostNQN: hostNQN, HostID: [16]byte{1}, SubNQN: sub})
		if err != nil {
			t.Errorf("%q at %q: %v", hostNQN, sub, err)
			continue
		}
		text := scrapeText(t, o.server)
		c.Close()
		for key, value := range map[string]string{"subsystem": sub, "host": hostNQN} {
			want := key + `="` + label.Replace(value) + `"`
			testutil.True(t, strings.Contains(text, want), "no metric has %s", want)
		}
	}
	for _, name := range oddNames {
		o.delete(control.Object{Subsystem: name}, true)
	}
	files := o.files()
	testutil.True(t, len(files) == 0, "%q are left", files)
}
