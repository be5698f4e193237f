package lint

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// maxColumns is the length limit of a line of Go; a tab has tabWidth columns.
const (
	maxColumns = 100
	tabWidth   = 4
)

// longLines returns the lines of a file that are too long, except in raw strings and directives.
func longLines(f *goFile) (long []int) {
	raw := map[int]bool{}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if ok && lit.Kind == token.STRING && strings.HasPrefix(lit.Value, "`") {
			for l := f.line(lit.Pos()); l <= f.line(lit.End()); l++ {
				raw[l] = true
			}
		}
		return true
	})
	number := 0
	for line := range strings.Lines(string(f.text)) {
		number++
		line = strings.TrimSuffix(line, "\n")
		columns := utf8.RuneCountInString(line) + (tabWidth-1)*strings.Count(line, "\t")
		if columns > maxColumns && !raw[number] && !strings.HasPrefix(line, "//go:") {
			long = append(long, number)
		}
	}
	return long
}

func TestColumns(t *testing.T) {
	goFiles(t, func(f *goFile) {
		for _, n := range longLines(f) {
			t.Errorf("%s:%d: more than %d columns", f.name, n, maxColumns)
		}
	})
}

func TestLongLinesAreFound(t *testing.T) {
	x := strings.Repeat("x", 60)
	for text, want := range map[string]int{
		"package a\n\nvar b = \"" + x + "\"\n":                            0,
		"package a\n\nvar b = \"" + x + x + "\"\n":                        1,
		"package a\n\nvar b = `" + x + x + "`\n":                          0,
		"package a\n\nvar b = `\n" + x + x + "\n`\n":                      0,
		"//go:generate " + x + x + "\npackage a\n":                        0,
		"package a\n\n// " + x + x + "\n":                                 1,
		"package a\n\n/*\n" + x + x + "\n*/\n":                            1,
		"package a\n\n//" + strings.Repeat("µ", 98) + "\n":                0,
		"package a\n\nfunc b() {\n\t//" + strings.Repeat("x", 95) + "\n}": 1,
	} {
		got := longLines(parseGo(t, "a.go", []byte(text)))
		testutil.True(t, len(got) == want, "%d lines of %q are long, want %d", len(got), text, want)
	}
}

var (
	// leaks matches comparisons that take a time that depends on where the operands differ.
	leaks = regexp.MustCompile(`bytes\.(Equal|Compare|HasPrefix)|slices\.(Equal|Compare)|` +
		`reflect\.|[!=]= *string\(|string\([\w.]*\) *[!=]=|\bReveal\(\) *[!=]=|` +
		`[!=]= *[\w.]+\.Reveal|\b([sS]ecret|[tT]oken) *[!=]= *[^\s]+`)
	// none matches comparisons without a secret.
	none = regexp.MustCompile(`[!=]= *(nil\b|""|\(?(config\.)?Token\{\})`)
	// secretPackages compare secrets, and so does every file that imports nvme/auth.
	secretPackages = []string{
		"config/lang/", "nvme/auth/", "fabric/tcp/tls/", "internal/metrics/", "internal/web/",
	}
	// public are comparisons and conversions of public data, by file.
	public = map[string]string{
		"fabric/tcp/tls/hello.go":  "s.Identity == string(o.identity)",
		"internal/metrics/sink.go": "reflect.ValueOf(v).Convert(reflect.TypeFor[float64]())",
	}
)

// leaking returns the lines of a text that leak.
func leaking(text string) []string {
	return slices.DeleteFunc(leaks.FindAllString(text, -1), none.MatchString)
}

// TestComparisons: in files with secrets the time of a comparison does not depend on where the
// operands differ.
func TestComparisons(t *testing.T) {
	files, used := 0, 0
	goFiles(t, func(f *goFile) {
		secret := strings.Contains(string(f.text), `nvmf-target/nvme/auth"`) ||
			strings.Contains(string(f.text), "type Token ") ||
			slices.ContainsFunc(secretPackages, func(p string) bool {
				return strings.HasPrefix(f.name, p)
			})
		if f.isTest() || !secret {
			return
		}
		files++
		text := string(f.text)
		if known := public[f.name]; known != "" {
			testutil.True(t, strings.Contains(text, known), "%s has no longer %q", f.name, known)
			text = strings.ReplaceAll(text, known, "")
			used++
		}
		for _, found := range leaking(text) {
			t.Errorf("%s: %s instead of hmac.Equal or subtle.ConstantTimeCompare", f.name, found)
		}
	})
	testutil.True(t, files >= 25 && used == len(public),
		"only %d files, and %d of %d exceptions, have been looked at", files, used, len(public))
}

// TestLeaks tests the search of TestComparisons.
func TestLeaks(t *testing.T) {
	for text, want := range map[string]bool{
		"bytes.Equal(a.secret, b.secret)": true, "k.Reveal() == text": true,
		"text != k.Reveal()": true, "string(binder) == other": true, "x == string(y)": true,
		"slices.Equal(a, b)": true, "a.secret == b.secret": true, "e.Token == other.Token": true,
		"token != given": true, "p.Secret == nil": false, "e.Token == Token{}": false,
		"c.Web.Token != (config.Token{})": false, "hmac.Equal(a, b)": false,
	} {
		testutil.Equal(t, len(leaking(text)) > 0, want, "%s", text)
	}
}

// maxFields is the largest number of fields of a structure. What has more consists of parts, which
// are embedded.
const maxFields = 25

// manyFields lists the structures with more fields, and the most that they may have.
var manyFields = map[string]int{
	// formats of the specification
	"nvme.IdentifyController": 95, "nvme.IdentifyNamespace": 41,
	// facts that clients see, one field each
	"internal/observed.Namespace": 32, "internal/observed.Connection": 27,
	// each is used by every command: the parts would be as large
	"fabric/rdma.group": 30, "fabric/rdma.queue": 45,
	"fabric/tcp.Group": 37, "fabric/tcp.queue": 35,
	"internal/load.Stream": 31, "internal/uring.Ring": 30,
}

// TestFields: no structure of the product has too many fields of its own.
func TestFields(t *testing.T) {
	found := map[string]int{}
	goFiles(t, func(f *goFile) {
		if f.isTest() || strings.HasPrefix(f.name, "tests/") ||
			strings.HasPrefix(f.name, "internal/testing/") {
			return
		}
		for _, s := range structs(f) {
			if s.fields > maxFields {
				found[path.Dir(f.name)+"."+s.name] = s.fields
			}
		}
	})
	for name, n := range found {
		if most := max(manyFields[name], maxFields); n > most {
			t.Errorf("%s has %d fields, more than %d", name, n, most)
		}
	}
	for name := range manyFields {
		testutil.True(t, found[name] != 0, "%s has no more than %d fields: delete it in manyFields",
			name, maxFields)
	}
}

// structure is a declared structure and its number of fields. An embedded one is one field.
type structure struct {
	name   string
	fields int
}

func structs(f *goFile) (list []structure) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if t, ok := spec.Type.(*ast.StructType); ok {
				list = append(list, structure{spec.Name.Name, t.Fields.NumFields()})
			}
		}
		return true
	})
	return list
}

func TestFieldsAreCounted(t *testing.T) {
	const text = "package a\n\ntype a struct{ b, c int; d; _ int }\n\ntype d struct{}\n"
	f := parseGo(t, "a.go", []byte(text))
	list := structs(f)
	testutil.True(t, len(list) == 2 && list[0] == (structure{"a", 4}) &&
		list[1] == (structure{"d", 0}), "%+v", list)
}
