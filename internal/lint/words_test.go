package lint

import (
	"go/ast"
	"os"
	"path/filepath"
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
