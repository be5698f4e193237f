package namespaces

import (
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/marks"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
)

// thin is a device of one block that has taken so much space.
type thin int64

func (thin) Info() backend.Info { return backend.Info{BlockSize: 512, Size: 512, Thin: true} }

func (thin) OpenChannel(backend.Reactor) (backend.Channel, error) { return nil, errors.New("no") }

func (thin) Close() error { return nil }

func (d thin) Space() (allocated, free int64, err error) { return int64(d), -1, nil }

// TestSpaceOfDevice: the space is that of the device that the namespace has, also after an exchange
// that has failed and left another one.
func TestSpaceOfDevice(t *testing.T) {
	var told []Notice
	ns := &Namespace{Marks: marks.New(nil, "a", 1), Protected: new(Protected)}
	testutil.Must(t, ns.Init("a", Config{NSID: 1, Device: thin(1)}, &Common{Log: slog.Default()},
		func(n Notice, _ func(string) bool) { told = append(told, n) }))
	ns.Start()
	failed := errors.New("failed")
	err := ns.Update(Config{NSID: 1, ANAGroup: 2}, func(backend.Device) (backend.Device, error) {
		return thin(2), failed
	})
	testutil.Is(t, err, failed, "")
	space := ns.Thin()
	admin.AwaitAll([]admin.Asker{space})
	s, _, err := space.Peek()
	testutil.Must(t, err)
	testutil.Equal(t, s.Allocated, 2, "space of the device")
	testutil.True(t, !slices.Contains(told, Regroups), "nothing else changes: %v", told)
}
