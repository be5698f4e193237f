package lint

import (
	"go/ast"
	"go/token"
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
