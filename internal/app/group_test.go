package app_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/group"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestPrivateImages: a gateway writes to no image outside of the groups that it shares, and keeps
// none for as long as its cluster does not answer.
func TestPrivateImages(t *testing.T) {
	parse := func(namespace string) error {
		return testutil.Err(app.Parse("test.yaml", []byte(`
listeners: [{transport: tcp, address: 10.0.0.1}]
group: {name: a, pool: nvme, ana_groups: [2]}
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:a
    allow_any_host: true
    namespaces: [{nsid: 1, backend: rbd, image: nvme/a`+namespace+`}]
`), nil))
	}
	testutil.Check(t, parse(", ana_group: 2"))
	testutil.Check(t, parse(", read_only: true, io_timeout: 0s"))
	testutil.Fails(t, parse(", ana_group: 2, io_timeout: 0s"), "namespaces[0].io_timeout: the "+
		"group would stay here for as long as Ceph does not answer. Give it more", "")
	testutil.Fails(t, parse(""), "subsystems[0].namespaces[0]: several gateways could write to "+
		"the image, since ANA group 1 is not one of group.ana_groups. Add it there", "")
}

// TestSharedKeys: a gateway that shares its configuration needs a place for it, but no subsystems.
func TestSharedKeys(t *testing.T) {
	var environ []string
	parse := func(keys, more string) error {
		return testutil.Err(app.Parse("test.yaml", []byte(`
listeners: [{transport: tcp, address: 10.0.0.1}]
group: {name: a, pool: nvme, ana_groups: [2], shares_configuration: true`+keys+`}
`+more), environ))
	}
	testutil.Check(t, parse(", cntlid_min: 1, cntlid_max: 1", "managed: /nowhere"))
	err := parse("", "")
	testutil.Fails(t, err, "managed: is missing", "")
	testutil.True(t, !strings.Contains(err.Error(), "cntlid"), "%v", err)
	for given, missing := range map[string]string{"min": "max", "max": "min"} {
		testutil.Fails(t, parse(", cntlid_"+given+": 1", "managed: /nowhere"),
			"group.cntlid_"+missing+": is missing", "")
	}
	testutil.Fails(t, parse(", cntlid_min: 2, cntlid_max: 1", "managed: /nowhere"),
		"group.cntlid_max: is below group.cntlid_min", "")
	environ = []string{"NVMF_TARGET_SUBSYSTEMS=[]"}
	testutil.Fails(t, parse(", cntlid_min: 1, cntlid_max: 1", "managed: /nowhere"),
		"environment variable NVMF_TARGET_SUBSYSTEMS: subsystems: replaces", "")
}

// storage is the record of a group in memory. Its other operations are not used.
type storage struct {
	group.Engine
	mu      sync.Mutex
	data    []byte
	version uint64
	before  func()      // of the next Put
	fails   atomic.Bool // this gateway cannot apply a version
}

func (s *storage) Get(context.Context) ([]byte, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data, s.version, nil
}

func (s *storage) Put(_ context.Context, data []byte, version uint64) (uint64, error) {
	s.mu.Lock()
	before := s.before
	s.before = nil
	s.mu.Unlock()
	if before != nil {
		before()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if version != s.version {
		return 0, group.ErrConflict
	}
	s.data, s.version = data, version+1
	return s.version, nil
}

func (*storage) Watch(ctx context.Context, _ func()) error { <-ctx.Done(); return ctx.Err() }

func (*storage) Close() {}

// share makes the target share its configuration with another gateway.
func (s *sequence) share() string {
	share := func(name string, apply func(*group.Version) error) *group.Shared {
		shared := group.Share(name, func() (group.Engine, error) { return &s.record, nil }, "",
			apply, slog.New(slog.DiscardHandler))
		s.t.Cleanup(func() { shared.Stop(context.Background()) })
		return shared
	}
	s.other = share("other", func(*group.Version) error { return nil })
	s.Share(config.Group{
		CNTLIDMin: 5, CNTLIDMax: 9, Key: func() string { return "secret" },
	}, func(apply func(*group.Version) error) *group.Shared {
		return share("this", func(v *group.Version) error {
			if s.record.fails.Load() {
				return errors.New("no such image")
			}
			return apply(v)
		})
	})
	return "ok"
}

// store makes the other gateway store a version, or with later right before this one does.
func (s *sequence) store() string {
	text := s.d.Input
	store := func() {
		testutil.Check(s.t, testutil.Err(s.other.Put(context.Background(), text, 0, 0)))
	}
	if s.d.HasArg("later") {
		s.record.before = store
		return "ok"
	}
	store()
	return "ok"
}

// shared shows the newest version, or whether there is a record before it loses that.
func (s *sequence) shared() string {
	if s.d.HasArg("lost") {
		s.record.mu.Lock()
		defer s.record.mu.Unlock()
		was := len(s.record.data) > 0
		s.record.data = nil
		return fmt.Sprint("a record before: ", was)
	}
	v := testutil.Value(control.GetGroupVersions.From(s.t.Context(), s.client))(s.t)[0]
	return fmt.Sprintf("version %d of %s, applied %t\n%s", v.Version, v.Gateway, v.Applied,
		v.Configuration)
}

// TestOffered: other gateways are told of addresses that hosts can use.
func TestOffered(t *testing.T) {
	const label = "name: front, transport: tcp, port: 0, tls: off, address: "
	list := started(t, app.Options{Config: parse(t, "{"+label+"127.0.0.1}")}).Offered()
	testutil.MustEqual(t, len(list), 1, "ports on loopback alone")
	testutil.True(t, list[0].ID == 1 && list[0].Transport == "tcp" && list[0].TLS == "off" &&
		list[0].Label == "front" && list[0].Addr.Addr().IsLoopback(), "%+v", list)
}
