package app

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/ram"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// faultyLive is a server with namespaces in memory, and a function that opens their storage.
type faultyLive struct {
	*live
	open atomic.Pointer[func(n *config.Namespace) (backend.Device, error)]
}

var errOpen = errors.New("no storage today")

// counted is storage that counts how often it is closed.
type counted struct {
	*backendtest.Faulty
	blockSize int
	closed    atomic.Int32
}

func (d *counted) Close() error {
	d.closed.Add(1)
	return d.Faulty.Close()
}

func (d *counted) Info() backend.Info {
	i := d.Faulty.Info()
	if d.blockSize != 0 {
		i.BlockSize = d.blockSize
	}
	return i
}

func newCounted(t *testing.T) *counted {
	t.Helper()
	dev := testutil.Value(ram.Open(ram.Config{Size: 1 << 20, BlockSize: 512}))(t)
	return &counted{Faulty: backendtest.NewFaulty(dev)}
}

func newFaultyLive(t *testing.T, listeners, subsystems string) *faultyLive {
	t.Helper()
	l := &faultyLive{live: &live{t: t, dir: t.TempDir()}}
	l.opens(func(*config.Namespace) (backend.Device, error) { return newCounted(t), nil })
	open := func(n *config.Namespace) (backend.Device, error) { return (*l.open.Load())(n) }
	l.s = started(t, Options{
		Config: l.parse(listeners, subsystems), Retry: time.Millisecond, OpenDevice: open,
	})
	return l
}

func (l *faultyLive) opens(open func(n *config.Namespace) (backend.Device, error)) {
	l.open.Store(&open)
}
