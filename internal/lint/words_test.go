package lint

import (
	"go/ast"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// replaced are words that this code once had for things of which its field has names, with what is
// said instead. They appear in no identifier and in no comment; docs/glossary.md has the terms.
var replaced = []struct {
	words   string
	instead string
}{
	{"lend lends lent lending lender lenders loan loans", "zero-copy read"},
	{"mend mends mended mending", "hint, fix"},
	{"forsake forsaken forsakes farewell", "drop, close"},
	{"foretell foretold foretells", "predict"},
	{"stash stashes stashed", "frame cache"},
	{"soil soils soiled", "mark dirty"},
	{"wash washes washed", "discard"},
	{"rig rigs", "harness"},
	{"prey", "target process"},
	{"overdue", "timed out"},
	{"polite greedy", "what it does"},
	{"judge judges judged judging", "check, validate"},
	{"verdict verdicts", "error, status"},
	{"tamper tampers tampered", "inject"},
	{"news", "event"},
}

// privateWords returns where a file says one of the words.
func privateWords(f *goFile) (found []string) {
	instead := map[string]string{}
	for _, r := range replaced {
		for _, w := range strings.Fields(r.words) {
			instead[w] = r.instead
		}
	}
	check := func(n ast.Node, text string) {
		for _, w := range wordsOf(text) {
			if to, ok := instead[w]; ok {
				found = append(found, f.name+":"+strconv.Itoa(f.line(n.Pos()))+": "+
					strconv.Quote(w)+"; say "+to)
			}
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			check(id, id.Name)
		}
		return true
	})
	for _, group := range f.ast.Comments {
		for _, c := range group.List {
			check(c, c.Text)
		}
	}
	return found
}

// wordsOf are the words of a text or an identifier, in small letters: "newLender" is new and
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

func TestWords(t *testing.T) {
	goFiles(t, func(f *goFile) {
		if f.name == "internal/lint/words_test.go" {
			return
		}
		for _, w := range privateWords(f) {
			t.Error(w)
		}
	})
}

func TestPrivateWordsAreFound(t *testing.T) {
	text := "package a\n\n// Lend it; spend, amend and lending-free.\n" +
		"func newLender(rig int) { _ = trigger }\n"
	got := privateWords(parseGo(t, "a.go", []byte(text)))
	want := []string{
		`a.go:4: "lender"; say zero-copy read`, `a.go:4: "rig"; say harness`,
		`a.go:3: "lend"; say zero-copy read`, `a.go:3: "lending"; say zero-copy read`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
