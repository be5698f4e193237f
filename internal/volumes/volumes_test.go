package volumes

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/ram"
	"github.com/nvmf-target/nvmf-target/backend/rbd"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/target"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// TestDisks: a client does not wait longer for a disk than it wants.
func TestDisks(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wait := make(chan struct{})
	defer close(wait)
	disks := Disks(func() *config.Config {
		<-wait
		return nil
	})
	testutil.Fails(t, testutil.Err(disks(ctx)), "takes long", "")
}

// TestWrappedStorage: operations go through all wrappers to the storage below them.
func TestWrappedStorage(t *testing.T) {
	c := testutil.Value(config.Parse("test.yaml", []byte(`
listeners: [{transport: tcp, address: 127.0.0.1}]
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:test
    allow_any_host: true
    namespaces:
      - nsid: 1
        backend: delay
        latency: 1ms
        of:
          backend: delay
          jitter: 1ms
          of:
            backend: error
            error: offline
            operations: [flush]
            of: {backend: ram, size: 16MiB, block_size: 4096}
`), nil, Backends))(t)
	n := All(c)[0]
	dev := testutil.Value(Open(n.Namespace, c.Disks, slog.New(slog.DiscardHandler)))(t)
	client := backendtest.NewClient(t, dev, 1<<20)
	client.Do(client.Write(0, client.Memory(0, 4096)))
	flush := &backend.IO{Op: backend.OpFlush}
	client.Submit(flush)
	client.Wait(1)
	testutil.True(t, errors.Is(flush.Err, backend.ErrOffline), "flush: %v, want %v", flush.Err,
		backend.ErrOffline)
	i := dev.Info()
	testutil.True(t, i.Size == 16<<20 && i.BlockSize == 4096, "got %+v", i)
	client.Close()
	testutil.Check(t, dev.Close())
}

// TestGatewayFindings: doctor reports a cluster that a gateway cannot use, also without images.
func TestGatewayFindings(t *testing.T) {
	c := testutil.Value(config.Parse("test.yaml", []byte(`
listeners: [{transport: tcp, address: 127.0.0.1}]
subsystems: [{nqn: nqn.2026-11.io.nvmf-target:test, allow_any_host: true}]
group: {name: a, pool: state, conf: /nowhere/ceph.conf, user: gate, ana_groups: [1]}
`), nil, Backends))(t)
	list := Findings(c)
	testutil.MustEqual(t, len(list), 1, "findings")
	f := list[0]
	testutil.True(t, f.Severity == doctor.Warning && f.Fix != "" &&
		strings.HasPrefix(f.Found, "the cluster of the section group "), "%+v", f)
}

// inGroup is the configuration of a namespace of a group.
const inGroup = `
listeners: [{transport: tcp, address: 127.0.0.1}]
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:test
    allow_any_host: true
    namespaces: [{nsid: 1, backend: rbd, image: a/b, ana_group: 7, read_only: true,
                  ceph: {conf: /nowhere/ceph.conf}}]
`

// TestReadOnlyShares: images of a group have its promises, also if they are read-only.
func TestReadOnlyShares(t *testing.T) {
	shares := false
	vs := &Volumes{Config: Config{
		Gates: map[uint32]*rbd.Gate{7: {}},
		Share: func(_ string, _ uint32, shared bool, group uint32) rbd.Companion {
			shares = shared && group == 7
			return nil
		},
	}}
	c := testutil.Value(config.Parse("test.yaml", []byte(inGroup), nil, Backends))(t)
	_, err := vs.openDevice(All(c)[0])
	testutil.True(t, err != nil && shares, "it is not shared: %v", err)
}

// TestPlaceIsNoted: where the promises of a namespace of a group are is noted when a change has
// succeeded, and not by one that fails.
func TestPlaceIsNoted(t *testing.T) {
	s := testutil.Value(state.Open(t.TempDir()))(t)
	defer func() { testutil.Check(t, s.Close()) }()
	vs := New(Config{
		State: s, Log: slog.New(slog.DiscardHandler), Pool: "nvme",
		Target:    target.New(target.Options{Log: slog.New(slog.DiscardHandler)}),
		Gates:     map[uint32]*rbd.Gate{7: {}},
		Patiently: func(fn func() error) error { return fn() },
		Await:     func(<-chan struct{}) error { return nil },
		Open: func(*config.Namespace) (backend.Device, error) {
			return nil, errors.New("a fault")
		},
	})
	c := testutil.Value(config.Parse("test.yaml", []byte(inGroup), nil, Backends))(t)
	name := state.Name{NQN: All(c)[0].NQN, NSID: 1}
	change := vs.Begin(c)
	testutil.Fails(t, change.Open(All(c)), "a fault", "open")
	testutil.Check(t, change.Abort())
	testutil.Check(t, s.Check(name, ""))
	vs.Begin(c).Commit()
	testutil.Fails(t, s.Check(name, ""), "of pool nvme", "outside of the group")
}

// TestSizesInWholeBlocks: the sizes that a hint proposes can be used.
func TestSizesInWholeBlocks(t *testing.T) {
	for size, want := range map[int64]string{
		1024: "", 1000: "Use 512 or 1024.", 7: "Use 512.",
		math.MaxInt64: "Use 9223372036854775296.",
	} {
		got, block := "", 512
		wholeBlocks(&size, &block)(func(_, _, hint string) { got = hint })
		testutil.Equal(t, got, want, "%d", size)
	}
}

// hungStore has reservations that cannot be removed before it is closed.
type hungStore chan struct{}

func (*hungStore) Load(string, uint32) *reservation.State { return &reservation.State{PTPL: true} }

func (h *hungStore) Save(string, uint32, *reservation.State) error { <-*h; return nil }

// TestForgetLate: the end of a change does not wait for ever for a store of reservations, but a
// namespace with the same name does.
func TestForgetLate(t *testing.T) {
	late, patient := errors.New("it takes long"), false
	var store hungStore
	log := slog.New(slog.DiscardHandler)
	vs := New(Config{
		Target: target.New(target.Options{Log: log, Reservations: &store}), Log: log,
		Await: func(c <-chan struct{}) error {
			if patient {
				testutil.Receive(t, "the end of the promises", c)
				return nil
			}
			return late
		},
	})
	parse := func(image string) *Namespace {
		text := strings.Replace(inGroup, "a/b", image, 1)
		return All(testutil.Value(config.Parse("test.yaml", []byte(text), nil, Backends))(t))[0]
	}
	n, next, gone := parse("a/b"), parse("a/c"), make(chan struct{})
	close(gone)
	dev := testutil.Value(ram.Open(ram.Config{Size: 1 << 20, BlockSize: 512}))(t)
	for _, r := range []*removed{
		{volume: &volume{Namespace: n, dev: dev}, gone: gone},
		{volume: &volume{Namespace: n}, closed: true}, // it was pending
	} {
		store, patient = make(hungStore), false
		(&Change{vs: vs, next: &config.Config{}, removed: []*removed{r}}).Commit()
		testutil.Is(t, vs.awaitRetired(next), late, "the next one")
		close(store)
		patient = true
		testutil.Check(t, vs.awaitRetired(next))
	}
	vs.Stop()
}

// lost is storage that has lost writes, until it is opened again.
type lost struct{ backend.Device }

func (d lost) Info() backend.Info {
	i := d.Device.Info()
	i.Degraded = true
	return i
}

// TestUndoKeepsLosses: a change that is undone does not let lost writes be forgotten, whether it
// has modified or removed the namespace. Neither does the next one, whether or not the storage can
// be opened again at once, nor a resize.
func TestUndoKeepsLosses(t *testing.T) {
	parse := func(path string) *config.Config {
		return testutil.Value(config.Parse("test.yaml", []byte(`
listeners: [{transport: tcp, address: 127.0.0.1}]
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:test
    allow_any_host: true
    namespaces: [{nsid: 1, backend: file, path: `+path+`, size: 1MiB}]
`), nil, Backends))(t)
	}
	dir := t.TempDir() // each of these is there
	before, next := parse(dir), parse(dir+"/..")
	store := testutil.Value(state.Open(t.TempDir()))(t)
	defer func() { testutil.Check(t, store.Close()) }()
	tg := target.New(target.Options{Log: slog.New(slog.DiscardHandler)})
	n, open := All(before)[0], func() backend.Device {
		return testutil.Value(ram.Open(ram.Config{Size: 1 << 20, BlockSize: 512}))(t)
	}
	testutil.Must(t, tg.AddSubsystem(subsystems.Config{NQN: n.NQN, AllowAnyHost: true}))
	fails, up := 0, make(chan struct{}, 1)
	vs := New(Config{
		Target: tg, State: store, Log: slog.New(slog.DiscardHandler), Retry: 1,
		Open: func(*config.Namespace) (backend.Device, error) {
			if fails > 0 {
				fails--
				return nil, backend.ErrOffline
			}
			return open(), nil
		},
		Up:        func(string, uint32) { up <- struct{}{} },
		Current:   func() *config.Config { return before },
		Patiently: func(fn func() error) error { return fn() },
		Await:     func(c <-chan struct{}) error { <-c; return nil },
	})
	changes := config.Diff(before.Settings(), next.Settings())
	testutil.MustEqual(t, len(changes), 1, "changes")
	for what, change := range map[string]func(*Change) (func() error, error){
		"modified": func(c *Change) (func() error, error) {
			return c.Modify(n.Name(), changes[0].Keys)
		},
		"removed": func(c *Change) (func() error, error) {
			undo, err := c.Remove(n.Name())
			r := c.removed[0]
			<-r.gone
			testutil.Check(t, r.dev.Close()) // as release does
			r.closed = true
			return undo, err
		},
	} {
		testutil.Must(t, vs.add(n, lost{open()}))
		for _, later := range []bool{false, false, true} {
			undo := testutil.Value(change(vs.Begin(next)))(t)
			if later {
				fails = 2 // the storage before, and the one after the change
				_ = undo()
				testutil.Receive(t, "the namespace is served", up)
			} else {
				testutil.Must(t, undo())
			}
			testutil.MustTrue(t, tg.Degraded(n.NQN, n.NSID), "%s: the lost writes are forgotten",
				what)
			testutil.Fails(t, vs.MayResize(n.Name(), 2<<20, false, true), "degraded", "")
		}
		testutil.Must(t, vs.drop(n.Name()))
	}
	vs.Stop()
	testutil.Check(t, tg.Close())
}
