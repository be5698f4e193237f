package lint

import (
	"go/ast"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

var quoted = regexp.MustCompile("`([^`]+)`")

// codePaths returns problems with the table of ARCHITECTURE.md that lists the functions on the path
// of a command by file: a file that does not exist or is in one table twice, or a name that is no
// function or method of its file. declared returns the functions of a file, nil if there is no such
// file.
func codePaths(text string, declared func(file string) []string) (tables int, wrong []string) {
	var seen []string // files of the current table
	in := false
	for line := range strings.Lines(text) {
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "| file |"):
			in, seen = true, nil
			tables++
			continue
		case !strings.HasPrefix(line, "|"):
			in = false
		}
		if !in || strings.HasPrefix(line, "|-") {
			continue
		}
		names := quoted.FindAllStringSubmatch(line, -1)
		if len(names) < 2 {
			wrong = append(wrong, "a row without a file and a function: "+line)
			continue
		}
		file := names[0][1]
		if slices.Contains(seen, file) {
			wrong = append(wrong, file+" is in one table twice")
		}
		seen = append(seen, file)
		known := declared(file)
		if known == nil {
			wrong = append(wrong, file+" does not exist")
			continue
		}
		for _, n := range names[1:] {
			if !slices.Contains(known, n[1]) {
				wrong = append(wrong, file+" has no function "+n[1])
			}
		}
	}
	return tables, wrong
}

// functions returns the names of the functions and methods declared in a file.
func functions(f *goFile) (names []string) {
	for _, d := range f.ast.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok {
			names = append(names, fn.Name.Name)
		}
	}
	return names
}

func architecture(t *testing.T) string {
	t.Helper()
	text := testutil.Value(os.ReadFile(filepath.Join(root, "ARCHITECTURE.md")))(t)
	return string(text)
}

// TestCodePaths: the functions on the paths in ARCHITECTURE.md exist.
func TestCodePaths(t *testing.T) {
	tables, wrong := codePaths(architecture(t), func(file string) []string {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil
		}
		return functions(parseGo(t, file, text))
	})
	testutil.True(t, tables == 1, "ARCHITECTURE.md has %d tables of functions, want one", tables)
	for _, w := range wrong {
		t.Errorf("ARCHITECTURE.md: %s", w)
	}
}

func TestWrongCodePathsAreFound(t *testing.T) {
	f := parseGo(t, "a.go", []byte("package a\n\nfunc b() {}\n\nfunc (c) D() {}\n\ntype c int\n"))
	declared := func(file string) []string {
		if file != "a.go" && file != "e.go" {
			return nil
		}
		return functions(f)
	}
	const head = "\n| file | read | write |\n|---|---|---|\n"
	const empty = "| `a.go` | | |"
	for rows, want := range map[string]string{
		"| `a.go` | `b`, `D` | |\n":                            "",
		"| `a.go` | | `D`: why |\n":                            "",
		"| `a.go` | `b`, `x` | |\n":                            "a.go has no function x",
		"| `a.go` | `b` | `c` |\n":                             "a.go has no function c",
		"| `g.go` | `b` | |\n":                                 "g.go does not exist",
		"| `a.go` | `b` | |\n| `a.go` | | `D` |\n":             "a.go is in one table twice",
		"| `a.go` | `b` | |\n" + head + "| `a.go` | `b` | |\n": "",
		"| `a.go` | `b` | |\n| `e.go` | `b` | |\n":             "",
		empty: "a row without a file and a function: " + empty,
		"| `a.go` | `b` | |\n\n| other | table |\n| `x` | `y` |": "",
	} {
		_, wrong := codePaths(head+rows, declared)
		testutil.True(t, strings.Join(wrong, "; ") == want, "%s: %q, want %q", rows, wrong, want)
	}
}

// TestPictureHasEveryPackage: each package of the import table is named in ARCHITECTURE.md or in
// docs/packages.md.
func TestPictureHasEveryPackage(t *testing.T) {
	packages := testutil.Value(readPage("docs/packages.md"))(t)
	words := strings.FieldsFunc(architecture(t)+packages, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9')
	})
	for pkg := range allowed(t) {
		name := strings.ReplaceAll(path.Base(pkg), "-", " ")
		for _, w := range strings.Fields(name) {
			testutil.True(t, slices.Contains(words, w), "docs/packages.md does not mention %s", pkg)
		}
	}
}

// topLevel are the entries of the repository's root.
var topLevel = []string{
	".ci", ".dockerignore", ".gitignore", ".golangci.yml",
	"ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md",
	"SECURITY.md", "backend", "cmd", "config", "docs", "fabric", "go.mod", "go.sum", "internal",
	"nvme", "packaging", "scripts", "tests",
}

// TestTopLevel: no file was committed to the root by mistake.
func TestTopLevel(t *testing.T) {
	cmd := exec.Command("git", "ls-tree", "--name-only", "HEAD")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("not a clone of the repository: %v", err)
	}
	testutil.EqualSlices(t, strings.Fields(string(out)), topLevel, "the root of the repository")
}
