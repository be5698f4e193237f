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
	"github.com/nvmf-target/nvmf-target/internal/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
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

func (m *memory) Keys() []Key {
	return []Key{{Name: "size", Value: Bytes(&m.size, 512, NoLimit, AnySize), Required: "Add it."}}
}

func (m *memory) Check(func(key, what, hint string)) {}

// nothing is the options of a wrapper.
type nothing struct{ memory }

func (*nothing) Keys() []Key { return nil }

// volume is the options of a backend with a path.
type volume struct {
	memory
	path      string
	blockSize int
}

func (v *volume) Keys() []Key {
	return append(v.memory.Keys(), Key{Name: "path", Value: Path(&v.path), Required: "Add it."},
		Key{Name: "block_size", Value: Bytes(&v.blockSize, 512, 4096, PowerOfTwo)})
}

var testBackends = []Backend{
	{Name: "ram", AlwaysAnswers: true, Volatile: true, New: func() Options { return new(memory) }},
	{Name: "pass", Wrapper: true, New: func() Options { return new(nothing) }},
	{Name: "null", AlwaysAnswers: true, New: func() Options { return new(memory) }},
	{Name: "file", New: func() Options { return &volume{blockSize: 512} }},
}

func TestMinimalFile(t *testing.T) {
	c := testutil.Value(Load("testdata/minimal.yaml", nil, testBackends))(t)
	c.src, c.settings = nil, Settings{}
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
			SubsystemConfig: target.SubsystemConfig{
				NQN: "nqn.2026-11.io.nvmf-target:disk0", AllowAnyHost: true,
			},
			Namespaces: []Namespace{
				{
					target.NamespaceConfig{NSID: 1},
					Storage{Backend: "ram", Options: &memory{1 << 30}},
				},
				{
					target.NamespaceConfig{NSID: 2, Timeout: 20 * time.Second},
					Storage{Backend: "file", Options: &volume{
						memory{10 << 30}, "/var/lib/nvmf-target/disk0.img", 4096,
					}},
				},
				{
					target.NamespaceConfig{NSID: 3},
					Storage{Backend: "null", Options: &memory{1 << 40}},
				},
			},
		}},
	}
	want.TCP.SetDefaults()
	want.RDMA.SetDefaults()
	want.Subsystems[0].SetDefaults()
	want.Subsystems[0].Limits.Burst = target.DefaultBurst
	for i := range want.Subsystems[0].Namespaces {
		want.Subsystems[0].Namespaces[i].Limits.Burst = target.DefaultBurst
		want.Subsystems[0].Namespaces[i].ANAGroup = 1
	}
	want.Subsystems[0].Serial = "" // made when the NQN is known for good
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

func TestEnvironmentOverridesTheFile(t *testing.T) {
	c, err := parse(t, minimal+"log: {level: warn, format: json}\n", "NVMF_TARGET_LOG_LEVEL=debug",
		"NVMF_TARGET_REACTORS_CPUS=[2, 3]",
		"NVMF_TARGET_REACTORS_MEMORY=1GiB", "NVMF_TARGET_SHUTDOWN_TIMEOUT=3s", "HOME=/root")
	if err != nil {
		t.Fatal(err)
	}
	if c.Log.Level != slog.LevelDebug || !c.Log.JSON ||
		!reflect.DeepEqual(c.Reactors.CPUs, []int{2, 3}) ||
		c.Reactors.Memory != 1<<30 || c.ShutdownTimeout != 3*time.Second {
		t.Errorf("got %+v", c)
	}
}

func TestEnvironmentReplacesLists(t *testing.T) {
	c := testutil.Value(
		parse(t, minimal, "NVMF_TARGET_LISTENERS=[{transport: tcp, address: '::1', port: 1}]"))(t)
	want := []Listener{{
		Name: "tcp [::1]:1", Transport: nvme.TransportTCP, Port: 1,
		Address: ListenAddress{IP: netip.IPv6Loopback()},
	}}
	if !reflect.DeepEqual(c.Listeners, want) {
		t.Errorf("got %+v, want %+v", c.Listeners, want)
	}
}

func TestProblems(t *testing.T) {
	for _, test := range []struct {
		name, text string
		environ    []string
		want       []string // one problem each: what its line contains
	}{
		{"empty", "", nil, []string{"test.yaml: the file is empty"}},
		{"only a comment", "# nothing\n", nil, []string{"the file is empty"}},
		{
			"a list", "- a\n", nil,
			[]string{"test.yaml:1:1: must be a mapping of keys to values, not a list"},
		},
		{
			"capitals", strings.Replace(minimal, "listeners", "Listeners", 1), nil,
			[]string{`test.yaml:2:1: Listeners: unknown key. Did you mean "listeners"?`},
		},
		{
			"merge key", minimal + "log: {<<: {level: info}}\n", nil,
			[]string{"log: merge keys and composite keys are not supported"},
		},
		{
			"bad variable name", minimal,
			[]string{"NVMF_TARGET_LOG_LEVL=info"},
			[]string{"environment variable NVMF_TARGET_LOG_LEVL: no such key. " +
				"Did you mean NVMF_TARGET_LOG_LEVEL?"},
		},
		{
			"bad variable value", minimal,
			[]string{"NVMF_TARGET_REACTORS_COUNT=many"},
			[]string{"environment variable NVMF_TARGET_REACTORS_COUNT: reactors.count: " +
				"must be a whole number"},
		},
		{
			"variable out of range", minimal,
			[]string{"NVMF_TARGET_REACTORS_COUNT=1000"},
			[]string{"environment variable NVMF_TARGET_REACTORS_COUNT: reactors.count: " +
				"1000 is too large. At most 256."},
		},
		{"unknown key in a variable", minimal, []string{"NVMF_TARGET_LISTENERS=[{transport: tcp, address: '::', prt: 1}]"}, []string{`NVMF_TARGET_LISTENERS: listeners[0].prt: unknown key. Did you mean "port"?`}},
		{"control characters are not repeated", minimal + "\"\\e[31mred\\n\": 1\n", nil, []string{`\x1b[31mred\n: unknown key`}},
		{
			"negative", minimal + "reactors: {count: -1}\n", nil,
			[]string{"reactors.count: -1 is too small. At least 0."},
		},
		{
			"no value", minimal + "log: {level: }\n", nil,
			[]string{"log.level: has no value. Give it one, or delete the key."},
		},
		{
			"too long a list of CPUs", minimal + "reactors: {cpus: [5000]}\n", nil,
			[]string{"reactors.cpus[0]: 5000 is too large"},
		},
		{"metrics on the port of a listener", minimal + "metrics: {listen: '127.0.0.1:4420'}\n", nil, []string{`metrics.listen: tcp 127.0.0.1:4420 is used already by listeners[0] (line 2). Choose another port`}},
		{"metrics by name", minimal, []string{"NVMF_TARGET_METRICS_LISTEN=localhost:9500"}, []string{`environment variable NVMF_TARGET_METRICS_LISTEN: metrics.listen: "localhost:9500" is not an IP address and a port`}},
		{
			"metrics to many", minimal + "metrics: {listen: '224.0.0.1:9500'}\n", nil,
			[]string{"test.yaml:7:19: metrics.listen: a multicast address cannot be listened on"},
		},
		{
			"metrics without an interface", minimal + "metrics: {listen: '[fe80::1]:9500'}\n", nil,
			[]string{"metrics.listen: a link-local IPv6 address needs its interface"},
		},
		{"no address", strings.Replace(minimal, "127.0.0.1", `""`, 1), nil, []string{
			"listeners[0].address: \"\" is not an IP address, network or interface. Write " +
				"an IPv4 or IPv6 address",
		}},
		{
			"identifiers that differ by a zero",
			strings.Replace(minimal, "size: 1GiB}", `size: 1GiB, eui64: "0000000000000010"},
      {nsid: 2, backend: ram, size: 1GiB, eui64: "0000000000000001"}, {nsid: 3, backend: ram, size: 1GiB,
      eui64: "0000000000000010"}`, 1), nil,
			[]string{"namespaces[2].eui64: 0000000000000010 is used already by " +
				"subsystems[0].namespaces[0].eui64"},
		},
		{
			"a namespace that is a word",
			strings.Replace(minimal, "[{nsid: 1, backend: ram, size: 1GiB}]", "[ram]", 1), nil,
			[]string{"namespaces[0]: must be a mapping of keys to values, not the text"},
		},
		{
			"nine backends",
			strings.Replace(minimal, "{nsid: 1, backend: ram, size: 1GiB}", "{nsid: 1, "+
				strings.Repeat("backend: pass, of: {", 8)+"backend: ram, size: 1GiB"+
				strings.Repeat("}", 9), 1), nil,
			[]string{"more than 8 backends behind each other. Leave some out."},
		},
		{
			"beyond what RDMA takes",
			minimal + "rdma: {queue_depth: 1025, in_capsule_size: 100, queue_memory: 1KiB, " +
				"srq_size: 32769,\n  max_connections: 65536, max_connections_per_host: 0}\n", nil,
			[]string{
				"rdma.queue_depth: 1025 is too large. At most 1024.",
				"rdma.in_capsule_size: 100B is not a multiple of 16", "rdma.queue_memory: 1KiB",
				"rdma.srq_size: 32769 is too large", "rdma.max_connections: 65536 is too large",
				"rdma.max_connections_per_host: 0 is too small",
			},
		},
		{"huge size", strings.Replace(minimal, "1GiB", "9000PiB", 1), nil, []string{`"9000PiB" is more than 2^63-1 bytes`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := parse(t, test.text, test.environ...)
			var ps Problems
			if err != nil && !errors.As(err, &ps) {
				t.Fatalf("not Problems: %v", err)
			}
			if len(ps) != len(test.want) {
				t.Fatalf("%d problems, want %d:\n%v", len(ps), len(test.want), err)
			}
			for i, p := range ps {
				if !strings.Contains(p.Error(), test.want[i]) {
					t.Errorf("got  %s\nwant %s", p, test.want[i])
				}
			}
		})
	}
}

func TestMetricsListen(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "metrics: {}\n": "", "metrics: {listen: ''}\n": "",
		"metrics: {listen: 127.0.0.1:9500}\n": "127.0.0.1:9500",
		"metrics: {listen: '[::1]:0'}\n":      "[::1]:0",
	} {
		c, err := parse(t, minimal+text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if got := c.Metrics.Listen; got.IsValid() != (want != "") ||
			want != "" && got != netip.MustParseAddrPort(want) {
			t.Errorf("%q: %v, want %q", text, got, want)
		}
	}
}

func TestProblemFoundLaterHasItsPlace(t *testing.T) {
	c := testutil.Value(parse(t, minimal))(t)
	const path = "subsystems[0].namespaces[0].path"
	got := c.Problem(path, "is a directory", "Name a file.").Error()
	if want := "test.yaml:6:18: " + path + ": is a directory. Name a file."; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestMissingFile(t *testing.T) {
	if _, err := Load("testdata/none.yaml", nil, testBackends); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestFileTooLarge(t *testing.T) {
	if _, err := Parse("x", make([]byte, maxFile+1), nil, testBackends); err == nil ||
		!strings.Contains(err.Error(), "larger than 4MiB") {
		t.Errorf("got %v", err)
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "4096": 4096, "1B": 1, "1KiB": 1024, "1 KiB": 1024, "3MiB": 3 << 20,
		"1GiB": 1 << 30, "2TiB": 2 << 40, "1PiB": 1 << 50,
		"1KB": 1000, "1kB": 1000, "2MB": 2e6, "500GB": 500e9, "1TB": 1e12, "1PB": 1e15,
		"9223372036854775807": 1<<63 - 1,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "GiB", "1G", "-1", "1.5GiB", "0x10", "1e3", "8192PiB",
		"18446744073709551616", "１KiB",
	} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q: got %d, want an error", text, got)
		}
	}
	for size, want := range map[Size]string{
		0: "0B", 513: "513B", 65536: "64KiB", 1 << 40: "1TiB",
		500e9: "500GB", 1536: "1536B",
	} {
		if got := size.String(); got != want {
			t.Errorf("%d: got %q, want %q", int64(size), got, want)
		}
	}
}

func TestNearest(t *testing.T) {
	keys := []string{"nsid", "backend", "size", "path", "block_size", "read_only", "uuid"}
	for word, want := range map[string]string{
		"sise": "size", "siez": "size",
		"block-size": "block_size", "Path": "path", "readonly": "read_only", "zzz": "", "": "",
	} {
		testutil.Equal(t, nearest(word, keys), want, "%q", word)
	}
}

// Every variable stands for one key.
func TestVariables(t *testing.T) {
	seen := map[string]string{}
	for _, l := range leaves(new(Config).keys(), "") {
		if other, dup := seen[l.variable()]; dup {
			t.Errorf("%s stands for %s and %s", l.variable(), other, l.path)
		}
		seen[l.variable()] = l.path
	}
}

// The default of every key is one that may be written.
func TestDefaultsMayBeWritten(t *testing.T) {
	var c Config
	for _, l := range leaves(c.keys(), "") {
		if l.Value.String() == "" || l.Default != "" || l.Required != "" {
			continue
		}
		_, err := parse(t, minimal, l.variable()+"="+l.Value.String())
		if err != nil {
			t.Errorf("%s: %v", l.path, err)
		}
	}
}

// FuzzParse: no text panics the parser, and an error is always a list of problems.
func FuzzParse(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add([]byte("a: &a [*a]\nlisteners: *a\n"))
	f.Add([]byte("a: ${\nlog: {level: \"$${${X}\"}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Contains(data, []byte(includeKey)) {
			t.Skip("would read other files")
		}
		c, err := Parse("fuzz.yaml", data, nil, testBackends)
		var ps Problems
		if err != nil && !errors.As(err, &ps) {
			t.Errorf("not Problems: %v", err)
		}
		if (c == nil) != (err != nil) {
			t.Errorf("configuration %v with error %v", c, err)
		}
	})
}
