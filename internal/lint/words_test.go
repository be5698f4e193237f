package lint

import (
	"go/ast"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// replacements has the replacement of each word of testdata/words.txt.
func replacements(t *testing.T) map[string]string {
	t.Helper()
	m := map[string]string{}
	for _, row := range testutil.Rows(t, "words") {
		var words []string
		var instead string
		row.Scan(&words, &instead)
		for _, w := range words {
			m[w] = instead
		}
	}
	return m
}

// privateText returns the places of replaced words in a text; name and line are the place of its
// start.
func privateText(instead map[string]string, name string, line int, text string,
) (found []string) {
	for s := range strings.Lines(text) {
		for _, w := range wordsOf(s) {
			if to, ok := instead[w]; ok {
				found = append(found, name+":"+strconv.Itoa(line)+": "+strconv.Quote(w)+"; say "+to)
			}
		}
		line++
	}
	return found
}

// privateWords returns the places of replaced words in the identifiers and comments of a file.
func privateWords(instead map[string]string, f *goFile) (found []string) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			found = append(found, privateText(instead, f.name, f.line(id.Pos()), id.Name)...)
		}
		return true
	})
	for _, group := range f.ast.Comments {
		for _, c := range group.List {
			found = append(found, privateText(instead, f.name, f.line(c.Pos()), c.Text)...)
		}
	}
	return found
}

// wordsOf returns the words of a text or an identifier in lower case: "newLender" is new and
// lender.
func wordsOf(text string) []string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case unicode.IsUpper(r):
			b.WriteByte(' ')
			b.WriteRune(unicode.ToLower(r))
		case unicode.IsLetter(r):
			b.WriteRune(r)
		default:
			b.WriteByte(' ')
		}
	}
	return strings.Fields(b.String())
}

// TestWords: no comment, identifier, document or script has a replaced word.
func TestWords(t *testing.T) {
	instead := replacements(t)
	goFiles(t, func(f *goFile) {
		if f.name == "internal/lint/words_test.go" {
			return
		}
		for _, w := range privateWords(instead, f) {
			t.Error(w)
		}
	})
	sourceFiles(t, func(name string) {
		about := "docs/adr/0019-the-fields-language.md" // names the replaced words
		if name == about || !strings.HasSuffix(name, ".md") && !strings.HasSuffix(name, ".sh") {
			return
		}
		text := testutil.Value(os.ReadFile(filepath.Join(root, name)))(t)
		for _, w := range privateText(instead, name, 1, string(text)) {
			t.Error(w)
		}
	})
}

func TestPrivateWordsAreFound(t *testing.T) {
	instead := replacements(t)
	text := "package a\n\n// Lend it; spend, amend and lending-free.\n" +
		"func newLender(rig int) { _ = trigger }\n"
	got := privateWords(instead, parseGo(t, "a.go", []byte(text)))
	want := []string{
		`a.go:4: "lender"; say zero-copy read`, `a.go:4: "rig"; say harness`,
		`a.go:3: "lend"; say zero-copy read`, `a.go:3: "lending"; say zero-copy read`,
	}
	testutil.True(t, slices.Equal(got, want), "got %q, want %q", got, want)
	got = privateText(instead, "a.md", 1, "A rig.\n\nA harness;\nno prey.\n")
	want = []string{`a.md:1: "rig"; say harness`, `a.md:4: "prey"; say target process`}
	testutil.True(t, slices.Equal(got, want), "got %q, want %q", got, want)
}

// vague are words that stand for a thing that has a name: "the bytes not yet sent" says more than
// the "what" in "what is not yet sent".
var vague = strings.Fields("what who whom whoever whatever whose those")

// vagueLimits has, for each top-level folder with Go files, the maximum number of comment lines in
// 1,000 that may have such a word.
var vagueLimits = map[string]int{
	"backend": 5, "cmd": 5, "config": 5, "fabric": 5, "internal": 5, "nvme": 5, "tests": 5,
}

// vagueLines counts the lines of the comments of a file, and the vague lines among them.
func vagueLines(f *goFile) (lines, vagues int) {
	for _, group := range f.ast.Comments {
		for _, c := range group.List {
			for line := range strings.Lines(c.Text) {
				lines++
				if isVague(line) {
					vagues++
				}
			}
		}
	}
	return lines, vagues
}

// isVague reports whether a line has a vague word. Identifiers and texts in quotation marks may
// contain one.
func isVague(line string) bool {
	for i, part := range strings.Split(strings.ToLower(line), `"`) {
		words := strings.FieldsFunc(part, func(r rune) bool { return !unicode.IsLetter(r) })
		if i%2 == 0 && slices.ContainsFunc(words, func(w string) bool {
			return slices.Contains(vague, w)
		}) {
			return true
		}
	}
	return false
}

// TestPlainComments: few comments have a word that stands for a thing with a name.
func TestPlainComments(t *testing.T) {
	lines, vagues := map[string]int{}, map[string]int{}
	goFiles(t, func(f *goFile) {
		folder, _, _ := strings.Cut(f.name, "/")
		n, v := vagueLines(f)
		lines[folder] += n
		vagues[folder] += v
	})
	for _, folder := range slices.Sorted(maps.Keys(lines)) {
		limit, ok := vagueLimits[folder]
		if !ok {
			t.Errorf("%s has no limit in vagueLimits", folder)
		} else if 1000*vagues[folder] > limit*lines[folder] {
			t.Errorf("%s: %d of %d comment lines have one of %v, more than %d in 1,000: "+
				"name the thing instead", folder, vagues[folder], lines[folder], vague, limit)
		}
	}
	for folder := range vagueLimits {
		testutil.True(t, lines[folder] != 0, "vagueLimits has %s, which has no comments", folder)
	}
}

func TestVagueLinesAreCounted(t *testing.T) {
	f := parseGo(t, "a.go", []byte("package a\n\n// What is left, and those\n// whose turn it is;"+
		" whatsoever TestWhat.\nvar what = 1 // plain, \"what\"\n/* a\nwho\n*/\n"))
	lines, vagues := vagueLines(f)
	testutil.True(t, lines == 6 && vagues == 3, "%d of %d lines, want 3 of 6", vagues, lines)
}

// TestOneProcessor: scripts/test.sh names tests that exist for the step on one processor. A name
// without a test would be no error there.
func TestOneProcessor(t *testing.T) {
	text := string(testutil.Value(os.ReadFile(filepath.Join(root, "scripts/test.sh")))(t))
	_, list, _ := strings.Cut(text, "\nalone=")
	list, _, found := strings.Cut(list, "\nEND\n")
	testutil.MustTrue(t, found, "no list of tests")
	exist := map[string]bool{}
	goFiles(t, func(f *goFile) {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				exist[fn.Name.Name] = true
			}
		}
	})
	names := regexp.MustCompile(`\bTest\w+`).FindAllString(list, -1)
	testutil.True(t, len(names) > 10, "only %d tests", len(names))
	for _, name := range names {
		testutil.True(t, exist[name], "there is no %s", name)
	}
}
