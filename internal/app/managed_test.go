package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/internal/testing/netiftest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

const (
	volumeNQN = "nqn.2026-11.io.nvmf-target:volume/1 ${HOME}"
	guestNQN  = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111"
)

// orchestrated is a target with a managed directory in its configuration.
type orchestrated struct {
	*harness.Harness       // set by start
	t                      *testing.T
	file, managed, volumes string
	client                 *control.Client
	environ                []string
	network                *netiftest.Network // nil: that of the machine
	log                    *testutil.Log      // nil: none
	said                   strings.Builder    // answers to request
}

func newOrchestrated(t *testing.T) *orchestrated {
	t.Helper()
	dir := t.TempDir()
	o := &orchestrated{
		t: t, file: filepath.Join(dir, "nvmf.yaml"), managed: filepath.Join(dir, "managed"),
		volumes: filepath.Join(dir, "volumes"),
	}
	o.must(os.Mkdir(o.volumes, 0o700))
	o.write("")
	o.start()
	return o
}

// write writes the configuration file, with further keys.
func (o *orchestrated) write(more string) {
	o.t.Helper()
	o.must(os.WriteFile(o.file, []byte(`
listeners: [`+anyPort+`]
reactors: {count: 1, memory: 8MiB}
control: {socket: `+filepath.Dir(o.file)+`/control.sock}
managed: `+o.managed+`
managed_paths: [`+o.volumes+`]
`+more), 0o600))
}

func (o *orchestrated) start() {
	o.t.Helper()
	o.must(o.tryStart())
}

// tryStart returns the error of a start that fails.
func (o *orchestrated) tryStart() error {
	o.t.Helper()
	options := app.Options{
		Load: loader(o.file, o.environ...), StateDir: filepath.Dir(o.file),
		Retry: time.Millisecond, Verbs: noRDMA{},
	}
	if o.log != nil {
		options.Log = o.log.Logger()
	}
	if o.network != nil {
		options.Network, options.Retry, options.Settle = o.network, time.Hour, time.Millisecond
	}
	o.Harness = newServer(o.t, options)
	if err := o.Start(); err != nil {
		return err
	}
	o.client = control.NewClient(filepath.Join(filepath.Dir(o.file), "control.sock"))
	o.t.Cleanup(o.client.Close)
	return nil
}

func (o *orchestrated) must(err error) {
	o.t.Helper()
	testutil.Must(o.t, err)
}

// put makes a PUT and returns the texts of the changes.
func (o *orchestrated) put(obj control.Object, body string) []string {
	o.t.Helper()
	p := testutil.Value(o.client.Put(o.t.Context(), obj, json.RawMessage(body)))(o.t)
	return texts(p)
}

func (o *orchestrated) delete(obj control.Object, recursive bool) []string {
	o.t.Helper()
	p := testutil.Value(o.client.Delete(o.t.Context(), obj, recursive))(o.t)
	return texts(p)
}

func texts(p control.Plan) (list []string) {
	for _, c := range p.Changes {
		list = append(list, c.Text)
	}
	return list
}

// volume makes a file that a namespace can use.
func (o *orchestrated) volume(name string) string {
	o.t.Helper()
	path := filepath.Join(o.volumes, name)
	o.must(os.WriteFile(path, make([]byte, 1<<20), 0o600))
	return path
}

// same checks that the running target and a target started now have the same settings.
func (o *orchestrated) same() {
	o.t.Helper()
	d, _ := o.Plan(testutil.Value(loader(o.file, o.environ...)())(o.t))
	testutil.True(o.t, len(d) == 0, "a restart would change %v", d)
}

// files returns the files in the managed directory, with their content.
func (o *orchestrated) files() (list []string) {
	o.must(filepath.WalkDir(o.managed, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		list = append(list, path+": "+string(text))
		return err
	}))
	return list
}

// TestManagedCrash ends an operation before each of its steps, like a crash. The directory then has
// the configuration before the operation or after it. If the step fails instead, all is as before,
// on disk and in the target.
func TestManagedCrash(t *testing.T) {
	t.Parallel()
	o := newOrchestrated(t)
	sub, other := control.Object{Subsystem: volumeNQN}, control.Object{Subsystem: testNQN}
	ns := control.Object{Subsystem: volumeNQN, NSID: 1}
	volume := fmt.Sprintf(`{"backend":"file","path":%q}`, o.volume("a"))
	put := func(obj control.Object, body string) func() error {
		return func() error {
			_, err := o.client.Put(t.Context(), obj, json.RawMessage(body))
			return err
		}
	}
	remove := func(obj control.Object, recursive bool) func() error {
		return func() error {
			_, err := o.client.Delete(t.Context(), obj, recursive)
			return err
		}
	}
	for i, op := range []func() error{
		put(other, `{"allow_any_host":true}`), put(sub, `{"serial":"1"}`), put(sub, `{"serial":"2"}`),
		put(ns, volume), put(control.Object{Subsystem: volumeNQN, Host: guestNQN}, ""),
		put(ns, volume[:len(volume)-1]+`,"read_only":true}`),
		remove(ns, false), put(ns, volume), remove(sub, true), remove(other, false),
	} {
		before, steps, seen := o.load(), []string(nil), []config.Settings(nil)
		o.fail("rename", op, before)
		o.onStep(func(name string) error {
			steps, seen = append(steps, name), append(seen, o.load())
			if name == "sync" {
				return errors.New("no space left on device")
			}
			return nil
		})
		testutil.Fails(t, op(), "Repeat the request", "operation %d is not durable", i)
		after := o.load()
		testutil.MustTrue(t, len(config.Diff(before, after)) != 0 && len(steps) >= 3,
			"operation %d changes nothing, or has the steps %q", i, steps)
		for j, found := range seen {
			if len(config.Diff(before, found)) > 0 && len(config.Diff(after, found)) > 0 {
				t.Errorf("operation %d, a crash before %s: neither old nor new", i, steps[j])
			}
		}
		o.onStep(nil)
		o.must(op())
		d := config.Diff(after, o.load())
		testutil.True(t, len(d) == 0, "operation %d again: %v", i, d)
		o.same()
	}
	for _, step := range []string{"mkdir", "write"} {
		o.fail(step, put(sub, ""), o.load())
	}
}

// fail makes a step of an operation fail.
func (o *orchestrated) fail(step string, op func() error, before config.Settings) {
	o.t.Helper()
	o.onStep(func(name string) error {
		if name == step {
			return errors.New("no space left on device")
		}
		return nil
	})
	testutil.Fails(o.t, op(), "no space left", "%s fails", step)
	d := config.Diff(before, o.load())
	testutil.True(o.t, len(d) == 0, "%s fails: the directory has %v", step, d)
	o.same()
}

func (o *orchestrated) onStep(fn func(string) error) {
	defer o.Engine().Hold()()
	o.Engine().OnFileStep = state.Direct
	if fn == nil {
		return
	}
	o.Engine().OnFileStep = func(name string, do func() error) error {
		if err := fn(name); err != nil {
			return err
		}
		return do()
	}
}

// load returns the settings that a target started now would have.
func (o *orchestrated) load() config.Settings {
	o.t.Helper()
	c := testutil.Value(loader(o.file)())(o.t)
	return c.Settings()
}

// TestManagedKill kills a target while a client makes one request after another. The directory then
// has the objects acknowledged to the client, perhaps with the unanswered request.
func TestManagedKill(t *testing.T) {
	t.Parallel()
	o := newOrchestrated(t)
	o.Stop()
	volume := fmt.Sprintf(`{"backend":"file","path":%q}`, o.volume("a"))
	ctx, sub := t.Context(), control.Object{Subsystem: volumeNQN}
	answered := 0
	request := func(n int) (err error) {
		switch n % 3 {
		case 1:
			_, err = o.client.Put(ctx, sub, json.RawMessage(`{"allow_any_host":true}`))
		case 2:
			_, err = o.client.Put(ctx, control.Object{Subsystem: volumeNQN, NSID: 1},
				json.RawMessage(volume))
		case 0:
			_, err = o.client.Delete(ctx, sub, true)
		}
		return err
	}
	for range 4 {
		child := exec.CommandContext(ctx, os.Args[0])
		child.Env = append(os.Environ(), serveFile+"="+o.file)
		out := testutil.Value(child.StdoutPipe())(o.t)
		o.must(child.Start())
		testutil.MustEqual(t, testutil.Err(out.Read(make([]byte, 1))), nil,
			"the target does not start")
		testutil.Until(t, "the control interface answers", func() bool {
			_, err := control.GetStatus.From(ctx, o.client)
			return err == nil
		})
		kill := time.AfterFunc(time.Duration(rand.IntN(200))*time.Millisecond, func() {
			_ = child.Process.Kill()
		})
		for request(answered+1) == nil {
			answered++
		}
		kill.Stop()
		_ = child.Process.Kill()
		_ = child.Wait()
		c := testutil.Value(loader(o.file)())(o.t)
		objects := len(c.Subsystems)
		if objects > 0 {
			objects += len(c.Subsystems[0].Namespaces)
		}
		testutil.MustTrue(t, objects == answered%3 || objects == (answered+1)%3,
			"%d objects after %d answers", objects, answered)
		answered = objects // an equal state
	}
}

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
			o.Stop()
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
	s := app.NewServer(app.Options{Config: c, Load: load, Log: slog.New(slog.DiscardHandler)})
	defer func() { _ = s.Stop(b.Context()) }()
	testutil.Must(b, s.Start())
	started := time.Since(began) - loaded
	o := control.Object{Subsystem: "nqn.2026-11.io.nvmf-target:s0", NSID: 1000}
	for b.Loop() {
		testutil.Value(s.Engine().Put(b.Context(), o, []byte(`{"backend":"null","size":"1GiB"}`), false))(b)
		testutil.Value(s.Engine().Delete(b.Context(), o, false, false))(b)
	}
	b.ReportMetric(loaded.Seconds(), "s/load")
	b.ReportMetric(started.Seconds(), "s/start")
}

// TestFilesAreReadInTurn: no request changes the files, or the target, while they are read for a
// plan or a reload, except during the first reading, which is for programs that print keys.
func TestFilesAreReadInTurn(t *testing.T) {
	o := newOrchestrated(t)
	load, reads := o.Engine().Load, 0
	o.Engine().Load = func(options ...config.Option) (*config.Config, error) {
		reads++
		release, free := o.Engine().TryHold()
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
