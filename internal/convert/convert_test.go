package convert

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// from returns the conversion for a file of testdata by the first part of its name.
func from(name string) func(string, []byte, Options) (*Result, error) {
	if strings.HasPrefix(filepath.Base(name), "spdk") {
		return SPDK
	}
	return NVMet
}

// usual is a machine with files of the usual block size, and without devices.
type usual struct{}

func (usual) Storage(path string) (Storage, bool) {
	return Storage{BlockSize: 4096, FileSystem: 4096}, !strings.HasPrefix(path, "/dev/")
}

func samples(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("testdata/*.json")
	testutil.MustTrue(t, err == nil && len(names) >= 3, "no samples:  %v %v", names, err)
	return names
}

func TestGolden(t *testing.T) {
	for _, name := range samples(t) {
		text := testutil.Value(os.ReadFile(name))(t)
		got, err := from(name)(filepath.Base(name), text, Options{Machine: usual{}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		testutil.Golden(t, strings.TrimSuffix(name, ".json")+".golden", string(got.YAML))
		for _, n := range got.Notes {
			testutil.True(t, strings.Contains(string(got.YAML), "#   "+n.Place),
				"%s: no comment for %v", name, n)
		}
	}
}

// TestBroken carries out testdata/broken, with files that cannot be converted. Each line is a file,
// or an RPC in a file of SPDK, followed by the resulting messages. "go test ./internal/convert -run
// TestBroken -args -rewrite" writes the current messages.
func TestBroken(t *testing.T) {
	datadriven.Walk(t, "testdata/broken", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			for text := range strings.SplitSeq(d.Input, "\n") {
				file, convert := text, NVMet
				switch d.Cmd {
				case "spdk":
					convert = SPDK
				case "rpc":
					file = `{"subsystems": [{"subsystem": "nvmf", "config": [` + text + `]}]}`
					convert = SPDK
				}
				out.WriteString(text + "\n")
				for line := range strings.Lines(broken(t, convert, file)) {
					out.WriteString("    " + strings.TrimSuffix(line, "\n") + "\n")
				}
			}
			return out.String()
		})
	})
	for text, want := range map[string]string{
		"":                             "is not JSON: the text ends too early",
		"{\n  \"a\": 1,\n  b}":         "f:3:3: is not JSON: invalid character 'b'",
		strings.Repeat("[", 100):       "is not JSON: values are nested more than 16 deep",
		strings.Repeat(" ", MaxFile+1): "has more than 16777216 bytes",
	} {
		all := broken(t, NVMet, text)
		testutil.True(t, strings.Contains(all, want), "%.80s: %s, want %q", text, all, want)
	}
}

// broken converts a text without any usable item, and returns the errors and notes. Each error has
// a hint.
func broken(t *testing.T, convert func(string, []byte, Options) (*Result, error), text string,
) string {
	t.Helper()
	r, err := convert("f", []byte(text), Options{})
	var problems config.Problems
	testutil.True(t, errors.As(err, &problems), "%.80s: %v", text, err)
	for _, p := range problems {
		testutil.True(t, p.Hint != "", "%.80s: no hint in %v", text, p)
	}
	all := fmt.Sprint(err)
	if r != nil {
		for _, n := range r.Notes {
			all += "\n" + n.String()
		}
	}
	return all
}

// TestBounds: the text quoted in messages and results, and their number, is bounded.
func TestBounds(t *testing.T) {
	text := `{"ports": [], "x": "` + strings.Repeat("y", 1<<16) + `"`
	for i := range 3 * maxNotes {
		text += fmt.Sprintf(`, "k%d": 1`, i)
	}
	r, err := NVMet("f", []byte(text+"}"), Options{})
	testutil.MustTrue(t, err != nil, "it was converted")
	testutil.Equal(t, len(r.Notes), maxNotes+1, "notes")
	for _, n := range r.Notes {
		testutil.MustTrue(t, len(n.Text) <= 400, "a note of %d bytes", len(n.Text))
	}
	many := problemsOf(2 * maxProblems)
	testutil.Equal(t, len(many), maxProblems, "problems")
}

func problemsOf(n int) config.Problems {
	_, err := NVMet("f", []byte(`{"ports": [`+strings.Repeat("1,", n)+`1]}`), Options{})
	var problems config.Problems
	errors.As(err, &problems)
	return problems
}

// TestDamaged: a damaged sample is converted into YAML or refused.
func TestDamaged(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	converted := 0
	for _, name := range samples(t) {
		text := testutil.Value(os.ReadFile(name))(t)
		for range 50 {
			damaged := bytes.Clone(text)
			for range 1 + random.IntN(3) {
				i := random.IntN(len(damaged))
				switch random.IntN(3) {
				case 0:
					damaged[i] = byte(random.IntN(256))
				case 1:
					damaged = append(damaged[:i], damaged[min(len(damaged), i+random.IntN(80)):]...)
				case 2:
					damaged[i] = `0123456789"{}[]:,\${a`[random.IntN(21)]
				}
				if len(damaged) == 0 {
					damaged = []byte("{")
				}
			}
			r, err := from(name)("f\n.json", damaged, Options{Machine: usual{}})
			if err != nil {
				continue
			}
			converted++
			var document any
			err = yaml.Unmarshal(r.YAML, &document)
			testutil.MustTrue(t, err == nil, "%v\n%s", err, r.YAML)
		}
	}
	testutil.True(t, converted != 0, "none was converted")
}

// TestText: any text of the file is the same text in the YAML, and nothing else.
func TestText(t *testing.T) {
	for _, text := range []string{
		"plain", "/dev/sdb", "null", "true", "123", "1e3", "12:30:45", "10.0.0.1", "a: b", "a #b",
		"- a", "{a: 1}", "[", "*a", "&a", "!a", "|", ">", "%", "@", "`", `"`, `\`, `\"`, "'", "~",
		"x\ny: z", "tab\t", " space ", "\u2028", "\u0085", "\x7f", "\x1b[0m", "\ufeff", "é",
		"/a${HOME}", "$${", "nqn.2026-11.a:${b}",
	} {
		member := testutil.Value(json.Marshal(text))(t)
		file := strings.Replace(`{"subsystems": [{"nqn": "n",
			"attr": {"allow_any_host": 1, "model": M}, "namespaces": [{"nsid": 1, "device": {"path": "/f"}}]}],
			"ports": [{"addr": {"trtype": "tcp", "traddr": "10.0.0.1"}, "subsystems": ["n"]}]}`,
			"M", string(member), 1)
		r, err := NVMet("f", []byte(file), Options{})
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		var got struct{ Subsystems []struct{ Model any } }
		if err := yaml.Unmarshal(r.YAML, &got); err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		testutil.True(t, got.Subsystems[0].Model == strings.ReplaceAll(text, "${", "$${"),
			"%q became %#v", text, got.Subsystems[0].Model)
	}
}
