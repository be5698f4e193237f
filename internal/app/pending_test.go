package app

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
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
	network := rdmaNetwork(t, "127.0.0.1")
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
