package config

import (
	"bytes"
	"errors"
	"fmt"
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
			Config: subsystems.Config{NQN: "nqn.2026-11.io.nvmf-target:disk0", AllowAnyHost: true},
			Namespaces: []Namespace{
				{namespaces.Config{NSID: 1}, Storage{Backend: "ram", Options: &memory{1 << 30}}},
				{
					namespaces.Config{NSID: 2, Timeout: 20 * time.Second},
					Storage{Backend: "file", Options: &volume{
						memory{10 << 30}, "/var/lib/nvmf-target/disk0.img", 4096,
					}},
				},
				{namespaces.Config{NSID: 3}, Storage{Backend: "null", Options: &memory{1 << 40}}},
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

// TestListenersAtWildcards: a wildcard leaves no address to other listeners of its port.
func TestListenersAtWildcards(t *testing.T) {
	for _, tc := range []struct {
		transport, a, b string
		conflict        bool
	}{
		{"tcp", "0.0.0.0", "10.0.0.1", true},
		{"tcp", "0.0.0.0", "'::1'", false},
		{"tcp", "0.0.0.0", "'::'", true},
		{"tcp", "'::'", "10.0.0.1", true},
		{"tcp", "'::'", "'::ffff:10.0.0.1'", true},
		{"tcp", "0.0.0.0", "'::ffff:10.0.0.0/104'", true},
		{"rdma", "0.0.0.0", "'::'", true},
		{"tcp", "0.0.0.0", "10.0.0.0/24", true},
		{"tcp", "'::'", "10.0.0.0/24", true},
		{"rdma", "'::'", "10.0.0.0/24", true},
		{"tcp", "'::'", "eth0", true},
		{"tcp", "10.0.0.0/24", "10.0.0.1", false},
		{"tcp", "eth0", "10.0.0.0/8", false},
	} {
		for _, order := range [][2]string{{tc.a, tc.b}, {tc.b, tc.a}} {
			for _, port := range []int{4420, 4421} {
				list := fmt.Sprintf("{transport: %s, address: %s}, {transport: %[1]s, "+
					"address: %[3]s, port: %[4]d}", tc.transport, order[0], order[1], port)
				_, err := parse(t, strings.Replace(minimal,
					"{transport: tcp, address: 127.0.0.1}", list, 1))
				conflict := tc.conflict && port == 4420
				testutil.True(t, conflict == (err != nil) &&
					(err == nil || strings.Contains(err.Error(), "are about the same addresses")),
					"%s: %v", list, err)
			}
		}
	}
}

// TestPortOfIWARP: without a device iWARP has a TCP port, which a listener for TCP may want.
func TestPortOfIWARP(t *testing.T) {
	for _, stack := range []string{"device", "soft", "soft-iwarp"} {
		for _, port := range []int{4420, 4421} {
			list := fmt.Sprintf("{transport: tcp, address: 10.0.0.1}, {transport: rdma, "+
				"address: 10.0.0.1, stack: %s, port: %d}", stack, port)
			_, err := parse(t, strings.Replace(minimal, "{transport: tcp, address: 127.0.0.1}",
				list, 1))
			if stack == "soft-iwarp" && port == 4420 {
				testutil.Fails(t, err, "iWARP is over TCP", "%s", list)
				continue
			}
			testutil.True(t, err == nil, "%s: %v", list, err)
		}
	}
}

// TestMappedAddresses: an IPv4 address written as one of IPv6 is the same address.
func TestMappedAddresses(t *testing.T) {
	const text = `
listeners: [{transport: tcp, address: 10.0.0.1}]
hosts: [{nqn: nqn.2014-08.org.example:a, networks: ['::ffff:10.1.0.0/112', '::ffff:10.2.0.1/128']}]
discovery: {referrals: [{transport: tcp, address: '::ffff:192.0.2.1'}]}
subsystems:
- nqn: nqn.2014-08.org.example:s
  allow_any_host: true
  listeners: ['[::ffff:10.0.0.1]:4420']
  namespaces: [{nsid: 1, backend: ram, size: 1MiB}]
`
	c := testutil.Value(parse(t, text))(t)
	got := fmt.Sprint(c.Hosts[0].Networks, c.Discovery.Referrals[0].Address,
		c.Subsystems[0].Listeners)
	const want = "[10.1.0.0/16 10.2.0.1/32] 192.0.2.1 [tcp 10.0.0.1:4420]"
	testutil.Equal(t, got, want, "")
}

// TestTokenTiming: the time of a comparison does not tell where a token differs.
func TestTokenTiming(t *testing.T) {
	text := strings.Repeat("0123456789abcdef", 4)
	token := newToken(text)
	others := [2]string{"x" + text[1:], text[:len(text)-1] + "x"}
	testutil.MustTrue(t, token.Is(text), "the right token is refused")
	testutil.SameTime(t, 100_000, func(class int) func() {
		return func() {
			for range 10 {
				testutil.True(t, !token.Is(others[class]), "a wrong token is taken")
			}
		}
	})
}

// TestUntil: a key counts until the end of a day, or until a time.
func TestUntil(t *testing.T) {
	for word, want := range map[string]string{
		"2027-01-31":                "2027-02-01T00:00:00Z",
		"2027-12-31":                "2028-01-01T00:00:00Z",
		"2027-01-31T18:00:00+01:00": "2027-01-31T17:00:00Z",
	} {
		text := strings.Replace(minimal, "listeners:", `hosts:
- nqn: nqn.2026-11.io.example:a
  dhchap_key: "DHHC-1:00:dYaw096krZ260qdUC32Qt6MOOJ29Txf41rRRmsWeFd44CmkR:"
  dhchap_old_key: "DHHC-1:00:AcRa6V6AE/2EyOl+dzVY52vag0nwBrNtSp8o3w+afpRQGr+p:"
  old_keys_until: `+word+`
  keys_until: `+word+`
listeners:`, 1)
		c := testutil.Value(parse(t, text))(t)
		for _, got := range []time.Time{c.Hosts[0].OldUntil, c.Hosts[0].Until} {
			testutil.Equal(t, got.UTC().Format(time.RFC3339), want, "%s: %v", word, got)
		}
	}
}

// TestSecurityIsNotIgnored: a configuration that asks for TLS or authentication where there is none
// is refused instead of being served without (C08, A09). The errors name the keys, never the
// secrets.
func TestSecurityIsNotIgnored(t *testing.T) {
	const secret = "DHHC-1:00:bm90IGEgc2VjcmV0LCBidXQgaXQgY291bGQgYmUgb25l:"
	listener := strings.Replace(minimal, "address: 127.0.0.1", `address: 127.0.0.1, %s: "%s"`, 1)
	subsystem := strings.Replace(minimal, "allow_any_host: true",
		"allow_any_host: true\n    %s: \"%s\"", 1)
	namespace := strings.Replace(minimal, "nsid: 1", `nsid: 1, %s: "%s"`, 1)
	top := minimal + "%s: \"%s\"\n"
	hosts := strings.Replace(minimal, "allow_any_host: true", `hosts: [{nqn: "nqn.2026-11.io.nvmf-target:host", %s: "%s"}]`, 1)
	for _, key := range []string{
		"tls", "psk", "secure_channel", "dhchap_key", "dhchap_ctrl_key",
		"auth",
	} {
		for place, text := range map[string]string{
			"listener": listener, "subsystem": subsystem,
			"namespace": namespace, "top": top, "hosts": hosts,
		} {
			c, err := parse(t, fmt.Sprintf(text, key, secret))
			var ps Problems
			if !errors.As(err, &ps) || c != nil {
				t.Errorf("%s in %s: accepted, and ignored: %v", key, place, err)
				continue
			}
			known := place == "hosts" || place == "listener" && key == "tls"
			testutil.True(t, known || strings.Contains(err.Error(), key+": unknown key"),
				"%s in %s: the error does not name it: %v", key, place, err)
			testutil.True(t, !strings.Contains(err.Error(), secret[:20]),
				"%s in %s: the error repeats the secret: %v", key, place, err)
		}
		name := "NVMF_TARGET_" + strings.ToUpper(key)
		if _, err := parse(t, minimal, name+"="+secret); err == nil ||
			!strings.Contains(err.Error(), name) || strings.Contains(err.Error(), secret[:20]) {
			t.Errorf("%s: %v, want an error that names it and not its value", name, err)
		}
	}
}

// TestDeepNesting: endless nesting is an error and does not crash the program (C01).
func TestDeepNesting(t *testing.T) {
	const n = 10_500 // the parser stops at 10,000
	for name, text := range map[string]string{
		"lists":        strings.Repeat("[", n),
		"closed lists": strings.Repeat("[", n) + strings.Repeat("]", n),
		"mappings":     strings.Repeat("{a: ", n),
		"list entries": strings.Repeat("- ", n) + "a",
		"JSON":         strings.Repeat(`{"listeners":[`, n) + strings.Repeat("]}", n),
		"of a value that is text": minimal + "log: {level: " + strings.Repeat("[", n) +
			strings.Repeat("]", n) + "}\n",
	} {
		c, err := parse(t, text)
		var ps Problems
		if c != nil || !errors.As(err, &ps) {
			t.Errorf("%s: accepted, or another error than a list of problems: %v", name, err)
		} else if len(err.Error()) > 10_000 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
}
