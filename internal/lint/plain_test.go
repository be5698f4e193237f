package lint

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
