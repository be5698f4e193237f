package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// goFile is a file of Go.
type goFile struct {
	name string // relative to the module, with slashes
	text []byte
	fset *token.FileSet
	ast  *ast.File
}

func (f *goFile) line(p token.Pos) int { return f.fset.Position(p).Line }

// isTest reports whether the file belongs to tests.
func (f *goFile) isTest() bool {
	return strings.HasSuffix(f.name, "_test.go") || strings.HasPrefix(f.name, "tests/")
}

// parseGo parses a file with its comments.
func parseGo(t *testing.T, name string, text []byte) *goFile {
	t.Helper()
	f := &goFile{name: name, text: text, fset: token.NewFileSet()}
	var err error
	f.ast, err = parser.ParseFile(f.fset, name, text, parser.ParseComments)
	testutil.MustTrue(t, err == nil, "%v", err)
	return f
}

// parsed has the Go files of the module after a test has asked for them.
var parsed []*goFile

// goFiles calls fn with every Go file of the module. fn must not change it.
func goFiles(t *testing.T, fn func(f *goFile)) {
	t.Helper()
	if parsed == nil {
		sourceFiles(t, func(name string) {
			if !strings.HasSuffix(name, ".go") {
				return
			}
			text := testutil.Value(os.ReadFile(filepath.Join(root, name)))(t)
			parsed = append(parsed, parseGo(t, name, text))
		})
	}
	for _, f := range parsed {
		fn(f)
	}
}

// glossary returns the first cells of the tables of docs/glossary.md, each cut at its commas: the
// terms, and the keys of log lines.
func glossary(t *testing.T) (terms, keys [][]string) {
	t.Helper()
	text := testutil.Value(os.ReadFile(filepath.Join(root, "docs/glossary.md")))(t)
	inKeys := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "## ") {
			inKeys = line == "## Keys of log lines"
		}
		row, ok := strings.CutPrefix(line, "| ")
		if !ok || strings.HasPrefix(row, "term |") || strings.HasPrefix(row, "key |") {
			continue
		}
		cells := strings.Split(strings.TrimSuffix(row, "|"), "|")
		first := strings.Split(strings.Trim(cells[0], " "), ", ")
		for i := range first {
			first[i] = strings.Trim(first[i], "`")
		}
		if inKeys {
			keys = append(keys, first)
		} else {
			terms = append(terms, first)
		}
	}
	return terms, keys
}

// TestGlossaryListsEachTermOnce: every term and every key has one meaning.
func TestGlossaryListsEachTermOnce(t *testing.T) {
	terms, keys := glossary(t)
	testutil.MustTrue(t, len(terms) >= 40 && len(keys) >= 10,
		"docs/glossary.md has %d rows of terms and %d of keys", len(terms), len(keys))
	for _, rows := range [][][]string{terms, keys} {
		all := slices.Concat(rows...)
		slices.Sort(all)
		for i := 1; i < len(all); i++ {
			testutil.True(t, all[i] != all[i-1], "docs/glossary.md lists %q twice", all[i])
		}
	}
}

// missingTerms returns the terms that are in no identifier and no comment of the files.
func missingTerms(terms []string, files []*goFile) []string {
	missing := map[string]string{} // by their words
	for _, t := range terms {
		missing[" "+strings.Join(wordsOf(t), " ")] = t
	}
	for _, f := range files {
		var b strings.Builder
		add := func(text string) { b.WriteString("\n " + strings.Join(wordsOf(text), " ")) }
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				add(id.Name)
			}
			return true
		})
		for _, c := range f.ast.Comments {
			add(c.Text())
		}
		said := b.String()
		for words := range missing {
			if strings.Contains(said, words) {
				delete(missing, words)
			}
		}
	}
	return slices.Sorted(maps.Values(missing))
}

// TestGlossaryIsUsed: the code uses each term.
func TestGlossaryIsUsed(t *testing.T) {
	rows, _ := glossary(t)
	var files []*goFile
	goFiles(t, func(f *goFile) {
		if !strings.HasPrefix(f.name, "internal/lint/") {
			files = append(files, f)
		}
	})
	for _, term := range missingTerms(slices.Concat(rows...), files) {
		t.Errorf("no code says %q, a term of docs/glossary.md", term)
	}
}

func TestMissingTermsAreFound(t *testing.T) {
	f := parseGo(t, "a.go", []byte("package a\n\n// b is a zero-\n// copy read.\n"+
		"func frameCaches() {}\n"))
	got := missingTerms([]string{"zero-copy read", "frame cache", "zero-copy write", "cached"},
		[]*goFile{f})
	testutil.EqualSlices(t, got, []string{"cached", "zero-copy write"}, "")
}
