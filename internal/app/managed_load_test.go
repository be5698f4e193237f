package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestManagedTogether: many clients each create their own subsystem, and all of them create the
// same one.
func TestManagedTogether(t *testing.T) {
	t.Parallel()
	o := newOrchestrated(t)
	clients := testutil.Rounds(12, 50)
	var wg sync.WaitGroup
	for i := range clients {
		volume := fmt.Sprintf(`{"backend":"file","path":%q}`, o.volume(fmt.Sprint("v", i)))
		wg.Go(func() {
			c := control.NewClient(filepath.Join(filepath.Dir(o.file), "control.sock"))
			defer c.Close()
			own := fmt.Sprint("nqn.2026-11.io.nvmf-target:own", i)
			for _, step := range []struct {
				object control.Object
				body   string
			}{
				{control.Object{Subsystem: volumeNQN}, `{"model":"same"}`},
				{control.Object{Subsystem: own}, `{"allow_any_host":true}`},
				{control.Object{Subsystem: own, NSID: 1}, volume},
			} {
				var err error
				for busy := true; busy; {
					_, err = c.Put(t.Context(), step.object, json.RawMessage(step.body))
					p, ok := errors.AsType[*control.Problem](err)
					busy = ok && p.Status == 503
				}
				testutil.Check(t, err)
			}
		})
	}
	wg.Wait()
	st, err := control.GetStatus.From(t.Context(), o.client)
	testutil.True(t, err == nil && st.Subsystems == clients+1 && st.Namespaces == clients,
		"%+v, %v", st, err)
	o.same()
}

// TestManagedModel makes random operations and compares the target with a model, sometimes after a
// restart. NVMF_MANAGED_OPERATIONS is their number.
func TestManagedModel(t *testing.T) {
	t.Parallel()
	o := newOrchestrated(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	count := 200
	if text := os.Getenv("NVMF_MANAGED_OPERATIONS"); text != "" {
		testutil.Value(fmt.Sscan(text, &count))(o.t)
	}
	var volumes []string
	for i := range 6 {
		volumes = append(volumes, o.volume(fmt.Sprint("v", i)))
	}
	model := map[control.Object]string{} // bodies
	for range count {
		obj := control.Object{Subsystem: fmt.Sprint("nqn.2026-11.io.nvmf-target:s", r.IntN(3))}
		sub, body := obj, fmt.Sprintf(`{"serial":"%d"}`, r.IntN(2))
		switch r.IntN(3) {
		case 0:
			obj.NSID = uint32(1 + r.IntN(3))
			body = fmt.Sprintf(`{"backend":"file","path":%q}`, volumes[r.IntN(len(volumes))])
		case 1:
			obj.Host, body = fmt.Sprint("nqn.2026-11.io.nvmf-target:h", r.IntN(3)), `{}`
		}
		o.operate(r, model, obj, sub, body)
		if r.IntN(100) == 0 {
			o.stop()
			o.start()
		}
		o.compare(model)
	}
	o.same()
}

// operate makes one operation, in the model and with the target, which must agree on its success.
func (o *orchestrated) operate(r *rand.Rand, model map[control.Object]string,
	obj, sub control.Object, body string,
) {
	o.t.Helper()
	_, parent := model[sub]
	inside := 0
	used := false
	for other, b := range model {
		if other.Subsystem == sub.Subsystem && other != sub {
			inside++
		}
		used = used || other != obj && obj.NSID != 0 && b == body
	}
	var err error
	var possible bool
	if r.IntN(3) > 0 {
		possible = (obj == sub || parent) && !used
		if possible {
			model[obj] = body
		}
		_, err = o.client.Put(o.t.Context(), obj, json.RawMessage(body))
	} else {
		recursive := r.IntN(2) == 0
		possible = obj != sub || !parent || recursive || inside == 0
		for other := range model {
			if possible && (other == obj || obj == sub && parent && recursive &&
				other.Subsystem == sub.Subsystem) {
				delete(model, other)
			}
		}
		_, err = o.client.Delete(o.t.Context(), obj, recursive)
	}
	testutil.MustTrue(o.t, (err == nil) == possible, "%v %s: %v, but possible: %t", obj, body, err,
		possible)
}

// compare compares the target with the model.
func (o *orchestrated) compare(model map[control.Object]string) {
	o.t.Helper()
	found := map[control.Object]string{}
	subsystems := testutil.Value(control.GetSubsystems.From(o.t.Context(), o.client))(o.t)
	for _, s := range subsystems {
		found[control.Object{Subsystem: s.NQN}] = fmt.Sprintf(`{"serial":%q}`, s.Serial)
		for _, h := range s.Hosts {
			found[control.Object{Subsystem: s.NQN, Host: h}] = `{}`
		}
	}
	namespaces := testutil.Value(control.GetNamespaces.From(o.t.Context(), o.client))(o.t)
	for _, n := range namespaces {
		found[control.Object{Subsystem: n.Subsystem, NSID: n.NSID}] = fmt.Sprintf(`{"backend":"file","path":%q}`, n.Path)
	}
	testutil.MustTrue(o.t, fmt.Sprint(found) == fmt.Sprint(model), "serves %v\nmodel  %v", found,
		model)
}

// BenchmarkManaged creates and deletes one namespace beside 4,000.
func BenchmarkManaged(b *testing.B) {
	dir := b.TempDir()
	for i := range 4000 {
		m := config.Managed{
			Subsystem: fmt.Sprint("nqn.2026-11.io.nvmf-target:s", i/500), NSID: uint32(1 + i%500),
		}
		text, err := m.Content([]byte(`{"backend":"null","size":"1GiB"}`), nil)
		file := m.File(filepath.Join(dir, "managed"))
		testutil.Must(b, errors.Join(err, os.MkdirAll(filepath.Dir(file), 0o700),
			os.WriteFile(file, text, 0o600)))
	}
	file := filepath.Join(dir, "nvmf.yaml")
	text := fmt.Sprintf("listeners: [%s]\nmanaged: %s/managed\n", anyPort, dir)
	testutil.Must(b, os.WriteFile(file, []byte(text), 0o600))
	load := loader(file)
	began := time.Now()
	c := testutil.Value(load())(b)
	loaded := time.Since(began)
	s := NewServer(Options{Config: c, Load: load, Log: quiet(), Version: "test"})
	defer func() { _ = s.Stop(b.Context()) }()
	testutil.Must(b, s.Start())
	started := time.Since(began) - loaded
	o := control.Object{Subsystem: "nqn.2026-11.io.nvmf-target:s0", NSID: 1000}
	for b.Loop() {
		testutil.Value(s.engine.Put(b.Context(), o, []byte(`{"backend":"null","size":"1GiB"}`), false))(b)
		testutil.Value(s.engine.Delete(b.Context(), o, false, false))(b)
	}
	b.ReportMetric(loaded.Seconds(), "s/load")
	b.ReportMetric(started.Seconds(), "s/start")
}

// TestFilesAreReadInTurn: no request changes the files, or the target, while they are read for a
// plan or a reload, except during the first reading, which is for programs that print keys.
func TestFilesAreReadInTurn(t *testing.T) {
	o := newOrchestrated(t)
	load, reads := o.server.engine.Load, 0
	o.server.engine.Load = func(options ...config.Option) (*config.Config, error) {
		reads++
		release, free := o.server.engine.TryHold()
		if free {
			release()
		}
		testutil.True(t, free == (reads%2 == 0), "read %d is out of turn", reads)
		return load(options...)
	}
	o.put(control.Object{Subsystem: testNQN}, "")
	ask := func(ctx context.Context) (control.Plan, error) {
		return control.GetPlan.From(ctx, o.client)
	}
	for _, ask := range []func(context.Context) (control.Plan, error){ask, o.client.Reload} {
		p, err := ask(t.Context())
		testutil.True(t, err == nil && len(p.Changes) == 0, "%v, %v", p, err)
	}
	testutil.True(t, reads == 5, "the files were read %d times", reads)
}
