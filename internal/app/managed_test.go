package app

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/netiftest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
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
	load := loader(o.file, o.environ...)
	c := testutil.Value(load())(o.t)
	options := Options{
		Config: c, Load: load, StateDir: filepath.Dir(o.file), Retry: time.Millisecond,
	}
	if o.log != nil {
		options.Log = o.log.Logger()
	}
	if o.network != nil {
		options.Network, options.Retry, options.Settle = o.network, time.Hour, time.Millisecond
	}
	o.server = newServer(o.t, options)
	if err := o.server.Start(); err != nil {
		return err
	}
	o.client = control.NewClient(filepath.Join(filepath.Dir(o.file), "control.sock"))
	o.t.Cleanup(o.client.Close)
	return nil
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
	c := testutil.Value(loader(o.file, o.environ...)())(o.t)
	d, _ := o.server.Plan(c)
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
