package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

const (
	volumeNQN = "nqn.2026-11.io.nvmf-target:volume/1 ${HOME}"
	guestNQN  = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111"
)

// orchestrated is a target with a managed directory in its configuration.
type orchestrated struct {
	t                      *testing.T
	file, managed, volumes string
	server                 *Server
	client                 *control.Client
	log                    *testutil.Log   // nil: none
	said                   strings.Builder // answers to request
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
	load := loader(o.file)
	c := testutil.Value(load())(o.t)
	options := Options{Config: c, Load: load, StateDir: filepath.Dir(o.file)}
	if o.log != nil {
		options.Log = o.log.Logger()
	}
	o.server = newServer(o.t, options)
	o.must(o.server.Start())
	o.client = control.NewClient(filepath.Join(filepath.Dir(o.file), "control.sock"))
	o.t.Cleanup(o.client.Close)
}

func (o *orchestrated) stop() {
	o.t.Helper()
	o.must(o.server.Stop(o.t.Context()))
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
	c := testutil.Value(loader(o.file)())(o.t)
	d, _ := o.server.Plan(c)
	testutil.True(o.t, len(d) == 0, "a restart would change %v", d)
}

func (o *orchestrated) connect(nqn string) error {
	c, err := host.Connect(o.t.Context(), host.TCP{Addr: o.server.Addrs()[0].AddrPort},
		host.Options{HostNQN: guestNQN, HostID: [16]byte{1}, SubNQN: nqn})
	if err == nil {
		c.Close()
	}
	return err
}

// TestManaged is the life of a volume, as driven by a CSI driver, across a restart.
func TestManaged(t *testing.T) {
	o := newOrchestrated(t)
	info, err := os.Stat(o.managed)
	testutil.True(t, err == nil && info.Mode().Perm() == 0o700, "the directory: %v, %v", info, err)
	sub := control.Object{Subsystem: volumeNQN}
	ns := control.Object{Subsystem: volumeNQN, NSID: 7}
	guest := control.Object{Subsystem: volumeNQN, Host: guestNQN}
	volume := fmt.Sprintf(`{"backend":"file","path":%q}`, o.volume("a"))
	for i := range 2 { // the same again changes nothing
		for _, step := range []struct {
			object control.Object
			body   string
		}{{sub, `{"serial":"${HOME}"}`}, {ns, volume}, {guest, ""}} {
			c := o.put(step.object, step.body)
			testutil.True(t, len(c) == 1-i, "%v: %q", step.object, c)
			o.same()
		}
	}
	o.must(o.connect(volumeNQN))
	list, err := control.GetSubsystems.From(t.Context(), o.client)
	testutil.True(t, err == nil && len(list) == 1 && list[0].Serial == "${HOME}" &&
		list[0].Namespaces == 1, "%+v, %v", list, err)
	o.stop()
	o.start()
	o.must(o.connect(volumeNQN))
	c := o.put(ns, strings.Replace(volume, "{", `{"nsid":7,"read_only":true,`, 1))
	testutil.True(t, len(c) == 1 && strings.Contains(c[0], "read_only: false -> true"),
		"a change: %q", c)
	c = o.delete(guest, false)
	testutil.True(t, len(c) == 1, "the host: %q", c)
	testutil.True(t, o.connect(volumeNQN) != nil, "the host may still connect")
	c = o.delete(sub, true)
	testutil.True(t, len(c) == 2, "subsystem and namespace: %q", c)
	for _, again := range []control.Object{sub, ns, guest} {
		c := o.delete(again, false)
		testutil.True(t, len(c) == 0, "%v again: %q", again, c)
	}
	o.same()
	rest, err := os.ReadDir(o.managed)
	testutil.True(t, err == nil && len(rest) == 0, "%v are left, %v", rest, err)
}

// TestManagedResize: a resized namespace has the new size in its file. A restart changes nothing,
// and a volume that is created again has the new size.
func TestManagedResize(t *testing.T) {
	o := newOrchestrated(t)
	ns := control.Object{Subsystem: volumeNQN, NSID: 7}
	o.put(control.Object{Subsystem: volumeNQN}, "")
	for _, body := range []string{
		`{"backend":"file","path":%q,"size":"1MiB"}`,
		`{"backend":"delay","latency":"1us","of":{"backend":"file","path":%q,"size":1048576}}`,
		`{"backend":"file","path":%q}`,
	} {
		path := o.volume("a")
		o.put(ns, fmt.Sprintf(body, path))
		for _, r := range []control.Resize{
			{Subsystem: volumeNQN, NSID: 7, Size: "3MiB"},
			{Subsystem: volumeNQN, NSID: 7, Size: "512KiB", Shrink: true},
		} {
			n := testutil.Value(control.PostResize.To(t.Context(), o.client, r))(o.t)
			info := testutil.Value(os.Stat(path))(o.t)
			size := map[bool]int64{false: 3 << 20, true: 512 << 10}[r.Shrink]
			if n.SizeBytes != size || info.Size() != size ||
				n.ConfiguredBytes != 0 && n.ConfiguredBytes != size {
				t.Errorf("%s: %+v, %d bytes, want %d", body, n, info.Size(), size)
			}
			testutil.True(t, strings.Contains(body, "size") == (n.ConfiguredBytes != 0),
				"%s: the configuration has %d bytes", body, n.ConfiguredBytes)
			o.same()
		}
		o.delete(ns, false)
	}
}

// TestManagedCreate: a namespace gets a free NSID, and keeps it when the request is repeated.
func TestManagedCreate(t *testing.T) {
	o := newOrchestrated(t)
	o.put(control.Object{Subsystem: testNQN}, `{"allow_any_host":true}`)
	o.put(control.Object{Subsystem: testNQN, NSID: 2}, `{"backend":"ram","size":"1MiB"}`)
	body := func(i int) json.RawMessage {
		return json.RawMessage(fmt.Sprintf(`{"backend":"file","path":%q,`+
			`"uuid":"11111111-1111-1111-1111-11111111111%d"}`, o.volume(fmt.Sprint(i)), i))
	}
	for _, step := range []struct{ i, nsid int }{{0, 1}, {1, 3}, {0, 1}, {2, 4}, {1, 3}} {
		id, err := o.client.Create(t.Context(), testNQN, body(step.i))
		testutil.True(t, err == nil && int(id.NSID) == step.nsid && id.Subsystem == testNQN,
			"%d: %v, %v, want %d", step.i, id, err, step.nsid)
	}
	for _, bad := range []string{`{"backend":"ram","size":"1MiB"}`, `{"uuid":"x"}`, `7`} {
		_, err := o.client.Create(t.Context(), testNQN, json.RawMessage(bad))
		p, ok := errors.AsType[*control.Problem](err)
		testutil.True(t, ok && p.Status == 422, "%s: %v", bad, err)
	}
	st, err := control.GetStatus.From(t.Context(), o.client)
	testutil.True(t, err == nil && st.Namespaces == 4, "%+v, %v", st, err)
	o.same()
}

// TestManagedRefusals: each refusal has the problem and its place, and nothing changes.
func TestManagedRefusals(t *testing.T) {
	o := newOrchestrated(t)
	mainNQN, spare := testNQN, o.volume("spare")
	o.write(`subsystems:
  - nqn: ` + mainNQN + `
    hosts: [` + guestNQN + `]
    namespaces: [{nsid: 1, backend: ram, size: 1MiB}]
`)
	testutil.Value(o.client.Reload(t.Context()))(o.t)
	outside := filepath.Join(filepath.Dir(o.volumes), "outside")
	o.must(os.WriteFile(outside, make([]byte, 1<<20), 0o600))
	o.must(os.Symlink(outside, filepath.Join(o.volumes, "link")))
	o.must(os.Symlink(outside+"2", filepath.Join(o.volumes, "dangling")))
	o.put(control.Object{Subsystem: volumeNQN}, "")
	o.put(control.Object{Subsystem: volumeNQN, NSID: 1},
		fmt.Sprintf(`{"backend":"file","path":%q}`, o.volume("used")))
	path := func(p string) string { return fmt.Sprintf(`{"backend":"file","path":%q}`, p) }
	ns := control.Object{Subsystem: volumeNQN, NSID: 2}
	for _, test := range []struct {
		object control.Object
		body   string
		status int
		text   string
	}{
		{ns, `{"backend":"ram","sise":"1GiB"}`, 422, `request: sise: unknown key. Did you mean "size"?`},
		{ns, `{"backend":"ram","size":"big"}`, 422, "request: size: "},
		{ns, `{"backend":"ram"}`, 422, "request: size: is missing"},
		{ns, `{"backend":"ram","size":"1MiB","nsid":3}`, 422, "3 here, but 2 in the path"},
		{ns, `{"backend":"ram","size":"1MiB","size":"1MiB"}`, 422, "given twice"},
		{ns, `[]`, 422, "must be a JSON object"},
		{ns, `{"backend":"ram","size":"1MiB","uuid_file":"/etc/passwd"}`, 422, "cannot name a file"},
		{ns, `{"backend":"ram","size":"${HOME}"}`, 422, `"${HOME}"`},
		{ns, `{"backend":"delay","latency":"1ms","of":` + path(outside) + `}`, 403, "outside of"},
		{ns, path(outside), 403, "outside of managed_paths"},
		{ns, path(o.volumes + "/../outside"), 403, "outside of managed_paths"},
		{ns, path(o.volumes + "/x/../spare"), 403, "outside of managed_paths"},
		{ns, path(o.volumes + "/link"), 403, "outside of managed_paths"},
		{ns, path(o.volumes + "/dangling"), 403, "outside of managed_paths"},
		{ns, path(o.volumes + "x"), 403, "outside of managed_paths"},
		{ns, path(o.volumes + "/used"), 422, "used already"},
		{ns, path(spare)[:1] + `"size":"1TiB",` + path(spare)[1:], 422, "request: "},
		{
			control.Object{Subsystem: volumeNQN, NSID: 1 << 31},
			`{"backend":"ram","size":"1MiB"}`, 422,
			"request: nsid: ",
		},
		{control.Object{Subsystem: "a\nb"}, ``, 422, "request: nqn: "},
		{control.Object{Subsystem: "nqn.2026-11.a:b", NSID: 1}, path(spare), 404, "no subsystem"},
		{control.Object{Subsystem: volumeNQN}, `{"hosts":[]}`, 422, "request: hosts: "},
		{control.Object{Subsystem: volumeNQN}, `{"nqn":"x"}`, 422, "request: nqn: "},
		{control.Object{Subsystem: volumeNQN, Host: "x\x7f"}, ``, 422, "request: hosts[0]: "},
		{control.Object{Subsystem: volumeNQN, Host: guestNQN}, `{"a":1}`, 422, "unknown key"},
		{control.Object{Subsystem: mainNQN}, ``, 409, "nvmf.yaml:8:"},
		{control.Object{Subsystem: mainNQN, NSID: 1}, path(spare), 409, "nvmf.yaml:10:"},
		{control.Object{Subsystem: mainNQN, Host: guestNQN}, ``, 409, "nvmf.yaml:9:"},
	} {
		files := o.files()
		_, err := o.client.Put(t.Context(), test.object, json.RawMessage(test.body))
		p, ok := errors.AsType[*control.Problem](err)
		testutil.True(t, ok && p.Status == test.status && strings.Contains(err.Error(), test.text),
			"%v %s: %+v", test.object, test.body, err)
		if now := o.files(); !slices.Equal(now, files) {
			t.Errorf("%v %s: the directory has %q, had %q", test.object, test.body, now, files)
		}
		o.same()
	}
	for object, text := range map[control.Object]string{
		{Subsystem: volumeNQN}:               "?recursive=true",
		{Subsystem: mainNQN}:                 "nvmf.yaml:8:",
		{Subsystem: mainNQN, NSID: 1}:        "nvmf.yaml:10:",
		{Subsystem: mainNQN, Host: guestNQN}: "nvmf.yaml:9:",
	} {
		_, err := o.client.Delete(t.Context(), object, false)
		testutil.True(t, err != nil && strings.Contains(err.Error(), text), "delete %v: %v", object,
			err)
	}
	// In a subsystem of the file, requests manage objects that are not in the file.
	c := o.put(control.Object{Subsystem: mainNQN, NSID: 2}, path(spare))
	testutil.True(t, len(c) == 1, "%q", c)
	o.write("") // without that subsystem: objects created in it stay
	testutil.Value(o.client.Reload(t.Context()))(o.t)
	o.same()
	left := control.Object{Subsystem: mainNQN}
	_, err := o.client.Delete(t.Context(), left, false)
	testutil.True(t, err != nil && strings.Contains(err.Error(), "1 namespaces and hosts"),
		"a subsystem that only has a namespace: %v", err)
	o.put(left, `{"serial":"1"}`)
	o.delete(left, true)
	o.same()
	o.write("log: {level: error}\n")
	_, err = o.client.Put(t.Context(), ns, json.RawMessage(path(o.volume("c"))))
	testutil.True(t, err != nil && strings.Contains(err.Error(),
		"has changed since it was applied"), "a file that has changed: %v", err)
}

// files returns the files in the managed directory, with their content.
func (o *orchestrated) files() (list []string) {
	o.must(filepath.WalkDir(o.managed, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		list = append(list, path+": "+string(text))
		return err
	}))
	return list
}

// TestManagedLive: the directory can be configured, and removed from the configuration, while the
// target runs.
func TestManagedLive(t *testing.T) {
	o := newOrchestrated(t)
	sub := control.Object{Subsystem: volumeNQN}
	o.put(sub, `{"allow_any_host":true}`)
	with := testutil.Value(os.ReadFile(o.file))(o.t)
	before, _, _ := strings.Cut(string(with), "managed:")
	reload := func(text string, changes int) {
		t.Helper()
		o.must(os.WriteFile(o.file, []byte(text), 0o600))
		p, err := o.client.Reload(t.Context())
		testutil.True(t, err == nil && len(p.Changes) == changes, "%v, %v", p, err)
		o.same()
	}
	reload(before+"subsystems: [{nqn: "+testNQN+", allow_any_host: true, namespaces: "+
		"[{nsid: 1, backend: ram, size: 1MiB}]}]\n", 4) // managed_paths, too
	_, err := o.client.Put(t.Context(), sub, nil)
	testutil.True(t, err != nil && strings.Contains(err.Error(), "Set managed in the file"),
		"without a directory: %v", err)
	reload(string(with), 4)
	o.delete(sub, false)
	o.must(os.Remove(o.managed))
	reload(string(with), 0)
	o.put(sub, `{"allow_any_host":true}`)
	o.same()
}

// TestManagedDirectory: the target does not start if others may write to the directory, or if it
// has other content.
func TestManagedDirectory(t *testing.T) {
	o := newOrchestrated(t)
	load := loader(o.file)
	refused := func(text string) {
		t.Helper()
		_, err := load()
		testutil.True(t, err != nil && strings.Contains(err.Error(), text), "%q: %v", text, err)
	}
	o.must(os.Chmod(o.managed, 0o770))
	refused("nvmf.yaml:5:10: managed: others may write")
	o.must(os.Chmod(o.managed, 0o700))
	foreign := filepath.Join(o.managed, "foreign")
	o.must(os.WriteFile(foreign, nil, 0o600))
	refused("managed: ")
	o.must(os.Remove(foreign))
	o.must(os.Mkdir(foreign, 0o700))
	o.must(os.WriteFile(filepath.Join(foreign, "a.yaml"), []byte("subsystems: 7\n"), 0o600))
	refused("foreign/a.yaml:1:13: subsystems: must be a list")
	o.must(os.WriteFile(filepath.Join(foreign, "a.yaml"), []byte("managed: /x\n"), 0o600))
	refused("foreign/a.yaml:1:1: managed: included files cannot have this key")
	o.must(os.RemoveAll(foreign))
	o.must(os.RemoveAll(o.managed))
	testutil.Equal(t, testutil.Err(load()), nil, "without the directory")
	o.managed = filepath.Join(o.managed, "deeper")
	o.write("")
	_, err := o.client.Reload(t.Context())
	testutil.True(t, err != nil && strings.Contains(err.Error(), "nvmf.yaml:5:10: "),
		"a directory that cannot be made: %v", err)
}

// TestManagedLost: if the managed directory is gone, or an empty one is in its place, no start and
// no reload treats its objects as deleted: hosts keep their namespaces and the promises about them.
// An operator can confirm that it is meant.
func TestManagedLost(t *testing.T) {
	o := newOrchestrated(t)
	o.must(os.RemoveAll(o.managed)) // without objects nothing is lost
	o.stop()
	o.start()
	o.put(control.Object{Subsystem: volumeNQN}, `{"allow_any_host": true}`)
	ns := control.Object{Subsystem: volumeNQN, NSID: 1}
	o.put(ns, fmt.Sprintf(`{"backend": "file", "path": %q}`, o.volume("a")))
	o.must(o.server.state.Reservations.Save(volumeNQN, 1, &reservation.State{PTPL: true}))
	o.must(os.Rename(o.managed, o.managed+".away"))
	lost := func(err error) {
		t.Helper()
		testutil.Fails(t, err, "is missing or has been replaced", "the error")
	}
	for _, mount := range []bool{false, true} {
		if mount {
			o.must(os.Mkdir(o.managed, 0o700))
		}
		p, err := control.GetPlan.From(t.Context(), o.client)
		if err == nil {
			err = errors.New(fmt.Sprint(p))
		}
		lost(err)
		_, err = o.client.Reload(t.Context())
		lost(err)
		o.must(o.connect(volumeNQN))
		o.stop()
		load := loader(o.file)
		s := newServer(t, Options{Load: load, StateDir: filepath.Dir(o.file)})
		lost(s.Start())
		o.must(s.Stop(t.Context()))
		_ = os.Remove(o.managed)
		o.must(os.Rename(o.managed+".away", o.managed))
		o.start()
		testutil.True(t, o.server.state.Reservations.Load(volumeNQN, 1) != nil, "a promise is gone")
		o.must(os.Rename(o.managed, o.managed+".away"))
	}
	o.must(os.Mkdir(o.managed, 0o700))
	o.must(os.WriteFile(filepath.Join(o.managed, ".nvmf-target"), nil, 0o600))
	testutil.Check(t, testutil.Err(o.client.Reload(t.Context())))
	testutil.True(t, o.connect(volumeNQN) != nil && o.server.state.Reservations.Load(volumeNQN,
		1) == nil, "what was removed on purpose is still there")
}
