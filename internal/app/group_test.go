package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
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

// sharing starts a target that shares its configuration with another gateway, which stores texts.
func sharing(t *testing.T) (o *orchestrated, k *storage, store func(text string)) {
	o, k = newOrchestrated(t), &storage{}
	share := func(name string, apply func(*group.Version) error) *group.Shared {
		shared := group.Share(name, func() (group.Engine, error) { return k, nil }, "", apply,
			slog.New(slog.DiscardHandler))
		t.Cleanup(func() { shared.Stop(context.Background()) })
		return shared
	}
	other := share("other", func(*group.Version) error { return nil })
	o.Share(config.Group{
		CNTLIDMin: 5, CNTLIDMax: 9, Key: func() string { return "secret" },
	}, func(apply func(*group.Version) error) *group.Shared {
		return share("this", func(v *group.Version) error {
			if k.fails.Load() {
				return errors.New("no such image")
			}
			return apply(v)
		})
	})
	return o, k, func(text string) {
		testutil.Check(t, testutil.Err(other.Put(context.Background(), text, 0, 0)))
	}
}

// TestSharedEdits: a request for a host of a shared subsystem stores the next version for all
// gateways, after that of another gateway, also if this one has not seen it yet.
func TestSharedEdits(t *testing.T) {
	o, k, storeText := sharing(t)
	const nqn, second = "nqn.2026-11.x:s", "nqn.2026-11.x:t"
	store := func(subsystems ...string) {
		storeText(`{"subsystems": [{"nqn": "` + strings.Join(subsystems, `"}, {"nqn": "`) + `"}]}`)
	}
	store(nqn)
	allow := control.Object{Subsystem: nqn, Host: guestNQN}
	k.before = func() { store(nqn, second) }
	o.must(testutil.Err(o.client.Put(t.Context(), allow, nil)))
	want := func(number uint64, text string) {
		t.Helper()
		list := testutil.Value(control.GetGroupVersions.From(t.Context(), o.client))(t)
		testutil.Equal(t, fmt.Sprint(list[0].Version, list[0].Applied, list[0].Gateway), fmt.Sprint(
			number, true, "this"), "the newest version")
		testutil.Equal(t, list[0].Configuration, text, "")
	}
	of := func(subsystem string) string {
		return `{"subsystems":[` + subsystem + `,{"nqn":"` + second + `"}]}`
	}
	want(3, of(`{"hosts":["`+guestNQN+`"],"nqn":"`+nqn+`"}`))
	o.must(testutil.Err(o.client.Put(t.Context(), allow, nil)))
	o.client.DryRun = true
	plan := testutil.Value(o.client.Delete(t.Context(), allow, false))(t)
	o.client.DryRun = false
	testutil.Equal(t, len(plan.Changes), 1, "planned changes")
	want(3, of(`{"hosts":["`+guestNQN+`"],"nqn":"`+nqn+`"}`)) // the same again, and a plan
	o.must(testutil.Err(o.client.Delete(t.Context(), allow, false)))
	want(4, of(`{"hosts":[],"nqn":"`+nqn+`"}`))
	image := json.RawMessage(`{"uuid": "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "backend": "ram"}`)
	_, put := o.client.Put(t.Context(), control.Object{Subsystem: nqn, NSID: 1}, image)
	_, create := o.Create(t.Context(), nqn, image)
	for _, err := range []error{put, create} {
		testutil.Fails(t, err, "namespaces[0].backend: is not rbd", "")
	}
}

// TestSharedEditsBehind: a request changes the newest version, also one that is not in force here.
// A repeated request stores nothing, and fails until the version is in force here. Nothing is
// stored over a record that has lost versions.
func TestSharedEditsBehind(t *testing.T) {
	o, k, store := sharing(t)
	const nqn = "nqn.2026-11.x:s"
	store(`{"hosts":[{"nqn":"` + guestNQN + `"}],"subsystems":[{"nqn":"` + nqn + `"}]}`)
	want := func(number uint64, text string) {
		t.Helper()
		list := testutil.Value(control.GetGroupVersions.From(t.Context(), o.client))(t)
		testutil.Equal(t, list[0].Configuration, text, "")
		testutil.Equal(t, list[0].Version, number, "the newest version")
	}
	for range 2 { // the key is encrypted once
		key := json.RawMessage(`{"dhchap_key":"` + testSecret + `"}`)
		o.must(testutil.Err(o.client.Put(t.Context(), control.Object{Host: guestNQN}, key)))
	}
	o.must(testutil.Err(o.client.Delete(t.Context(), control.Object{Host: guestNQN}, false)))
	want(3, `{"hosts":[],"subsystems":[{"nqn":"`+nqn+`"}]}`)

	k.fails.Store(true)
	allow, sub := control.Object{Subsystem: nqn, Host: guestNQN}, control.Object{Subsystem: nqn}
	for range 2 {
		testutil.Fails(t, testutil.Err(o.client.Put(t.Context(), allow, nil)),
			"version 4 of the configuration of the group cannot be applied", "")
	}
	want(4, `{"hosts":[],"subsystems":[{"hosts":["`+guestNQN+`"],"nqn":"`+nqn+`"}]}`)
	k.fails.Store(false)
	err := testutil.Err(o.client.Delete(t.Context(), sub, false))
	testutil.Fails(t, err, "the subsystem has hosts", "")
	p, _ := errors.AsType[*control.Problem](err)
	testutil.True(t, p != nil && p.Status == http.StatusConflict, "%+v", p)

	k.mu.Lock()
	k.data = nil
	k.mu.Unlock()
	testutil.Fails(t, testutil.Err(o.client.Put(t.Context(), sub, nil)), "has lost version", "")
	testutil.True(t, len(k.data) == 0, "it was stored as the only subsystem: %s", k.data)
}

// TestOffered: other gateways are told of addresses that hosts can use.
func TestOffered(t *testing.T) {
	const label = "name: front, transport: tcp, port: 0, tls: off, address: "
	list := started(t, app.Options{Config: parse(t, "{"+label+"127.0.0.1}")}).Offered()
	testutil.MustEqual(t, len(list), 1, "ports on loopback alone")
	testutil.True(t, list[0].ID == 1 && list[0].Transport == "tcp" && list[0].TLS == "off" &&
		list[0].Label == "front" && list[0].Addr.Addr().IsLoopback(), "%+v", list)
}
