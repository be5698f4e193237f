package config

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

const minimal = `
listeners: [{transport: tcp, address: 127.0.0.1}]
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:disk0
    allow_any_host: true
    namespaces: [{nsid: 1, backend: ram, size: 1GiB}]
`

func parse(t *testing.T, text string, environ ...string) (*Config, error) {
	t.Helper()
	return Parse("test.yaml", []byte(text), environ, testBackends)
}

// memory is the options of a backend.
type memory struct{ size int64 }

func (m *memory) Keys() []lang.Key {
	size := lang.Bytes(&m.size, 512, lang.NoLimit, lang.AnySize)
	return []lang.Key{lang.NewKey("size", size, "").Require("Add it.")}
}

func (m *memory) Check(func(key, what, hint string)) {}

// nothing is the options of a wrapper.
type nothing struct{ memory }

func (*nothing) Keys() []lang.Key { return nil }

// volume is the options of a backend with a path.
type volume struct {
	memory
	path      string
	blockSize int
}

func (v *volume) Keys() []lang.Key {
	return append(v.memory.Keys(),
		lang.NewKey("path", Path(&v.path), "").Require("Add it."),
		lang.NewKey("block_size", lang.Bytes(&v.blockSize, 512, 4096, lang.PowerOfTwo), ""))
}

var testBackends = []Backend{
	{Name: "ram", AlwaysAnswers: true, Volatile: true, New: func() Options { return new(memory) }},
	{Name: "pass", Wrapper: true, New: func() Options { return new(nothing) }},
	{Name: "null", AlwaysAnswers: true, New: func() Options { return new(memory) }},
	{Name: "file", New: func() Options { return &volume{blockSize: 512} }},
}

func TestMinimalFile(t *testing.T) {
	c := testutil.Value(Load("testdata/minimal.yaml", nil, testBackends))(t)
	c.src, c.printed, c.settings = nil, nil, Settings{}
	want := &Config{
		Log:             Log{Level: slog.LevelInfo},
		Reactors:        Reactors{Memory: 64 << 20, Spin: -1},
		Disks:           disk.Engine{Name: disk.Auto},
		Control:         Control{Socket: AutoSocket, Mode: 0o600},
		ShutdownTimeout: 10 * time.Second,
		Listeners: []Listener{
			{
				Name: "rdma 10.0.0.1:4420", Transport: nvme.TransportRDMA,
				Address: ListenAddress{IP: netip.MustParseAddr("10.0.0.1")}, Port: 4420,
			},
			{
				Name: "tcp 0.0.0.0:4420", Transport: nvme.TransportTCP,
				Address: ListenAddress{IP: netip.MustParseAddr("0.0.0.0")}, Port: 4420,
			},
		},
		Subsystems: []Subsystem{{
			Config: subsystems.Config{
				NQN: "nqn.2026-11.io.nvmf-target:disk0", AllowAnyHost: true,
			},
			Namespaces: []Namespace{
				{
					namespaces.Config{NSID: 1},
					Storage{Backend: "ram", Options: &memory{1 << 30}},
				},
				{
					namespaces.Config{NSID: 2, Timeout: 20 * time.Second},
					Storage{Backend: "file", Options: &volume{
						memory{10 << 30}, "/var/lib/nvmf-target/disk0.img", 4096,
					}},
				},
				{
					namespaces.Config{NSID: 3},
					Storage{Backend: "null", Options: &memory{1 << 40}},
				},
			},
		}},
	}
	want.TCP.SetDefaults()
	want.RDMA.SetDefaults()
	want.Subsystems[0].SetDefaults()
	want.Subsystems[0].Limits.Burst = qos.DefaultBurst
	for i := range want.Subsystems[0].Namespaces {
		want.Subsystems[0].Namespaces[i].Limits.Burst = qos.DefaultBurst
		want.Subsystems[0].Namespaces[i].ANAGroup = 1
	}
	want.Group.keys()              // sets the defaults
	want.Subsystems[0].Serial = "" // made when the NQN is known for good
	testutil.True(t, reflect.DeepEqual(c, want), "got  %+v\nwant %+v", c, want)
}

func TestProblemFoundLaterHasItsPlace(t *testing.T) {
	c := testutil.Value(parse(t, minimal))(t)
	const path = "subsystems[0].namespaces[0].path"
	got := c.Problem(path, "is a directory", "Name a file.").Error()
	testutil.Equal(t, got, "test.yaml:6:18: "+path+": is a directory. Name a file.", "")
}

func TestMissingFile(t *testing.T) {
	testutil.Is(t, testutil.Err(Load("testdata/none.yaml", nil, testBackends)), os.ErrNotExist, "")
}

func TestFileTooLarge(t *testing.T) {
	testutil.Fails(t, testutil.Err(Parse("x", make([]byte, 4<<20+1), nil, testBackends)),
		"larger than 4MiB", "")
}

// variables calls each for the keys outside of lists, with the environment variable of each.
func variables(keys []lang.Key, path string, each func(k lang.Key, path, variable string)) {
	for _, k := range keys {
		at := strings.TrimPrefix(path+"."+k.Name, ".")
		if section, ok := k.Value.(lang.Mapping); ok {
			variables(section, at, each)
		} else if at != "include" && at != managedKey {
			each(k, at, EnvPrefix+strings.ToUpper(strings.ReplaceAll(at, ".", "_")))
		}
	}
}

// Every variable stands for one key.
func TestVariables(t *testing.T) {
	seen := map[string]string{}
	variables(new(Config).keys(nil), "", func(_ lang.Key, path, variable string) {
		other, dup := seen[variable]
		testutil.True(t, !dup, "%s stands for %s and %s", variable, other, path)
		seen[variable] = path
	})
}

// The default of every key is one that may be written.
func TestDefaultsMayBeWritten(t *testing.T) {
	variables(new(Config).keys(nil), "", func(k lang.Key, path, variable string) {
		if text := k.Value.String(); text != "" && k.Default == "" && k.Required == "" {
			_, err := parse(t, minimal, variable+"="+text)
			testutil.Equal(t, err, nil, "%s", path)
		}
	})
}

// FuzzParse: no text panics the parser, and an error is always a list of problems.
func FuzzParse(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add([]byte("a: &a [*a]\nlisteners: *a\n"))
	f.Add([]byte("a: ${\nlog: {level: \"$${${X}\"}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Contains(data, []byte("include")) {
			t.Skip("would read other files")
		}
		c, err := Parse("fuzz.yaml", data, nil, testBackends)
		var ps Problems
		testutil.True(t, err == nil || errors.As(err, &ps), "not Problems: %v", err)
		testutil.True(t, (c == nil) == (err != nil), "configuration %v with error %v", c, err)
	})
}
