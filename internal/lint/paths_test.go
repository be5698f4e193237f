package lint

import (
	"go/ast"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

var quoted = regexp.MustCompile("`([^`]+)`")

// codePaths returns problems with the tables of ARCHITECTURE.md that list the functions on the path
// of a command by file: a file that does not exist or is in one table twice, or a name that is no
// function or method of its file. declared returns the functions of a file, nil if there is no such
// file.
func codePaths(text string, declared func(file string) []string) (tables int, wrong []string) {
	var seen []string // files of the present table
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
	testutil.True(t, tables == 2,
		"ARCHITECTURE.md has %d tables of functions, want one per transport", tables)
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

// TestPictureHasEveryPackage: each package of the import table is named in ARCHITECTURE.md.
func TestPictureHasEveryPackage(t *testing.T) {
	words := strings.FieldsFunc(architecture(t), func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9')
	})
	for pkg := range allowed {
		name := strings.ReplaceAll(path.Base(pkg), "-", " ")
		for _, w := range strings.Fields(name) {
			testutil.True(t, slices.Contains(words, w), "ARCHITECTURE.md does not mention %s", pkg)
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

// logKey is the key of a value in a log line.
type logKey struct {
	name     string
	constant bool
	place    string
}

// logKeys returns the keys of the log lines of a file.
func logKeys(f *goFile) (keys []logKey) {
	check := func(args []ast.Expr) {
		for i := 0; i < len(args); i += 2 {
			arg := args[i]
			if call, ok := arg.(*ast.CallExpr); ok && isAttr(call) {
				i-- // key and value in one argument
				arg = call.Args[0]
			}
			key, ok := constant(arg)
			place := f.name + ":" + strconv.Itoa(f.line(arg.Pos()))
			keys = append(keys, logKey{key, ok, place})
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			args, ok := logArgs(n)
			switch {
			case !ok:
			case !n.Ellipsis.IsValid():
				check(args)
			case isCallOf(args[len(args)-1], "append"):
				check(args[len(args)-1].(*ast.CallExpr).Args[1:])
			}
		case *ast.CompositeLit: // elements of an appended list
			if a, ok := n.Type.(*ast.ArrayType); ok && isNamed(a.Elt, "any") && len(n.Elts) > 1 {
				if _, ok := constant(n.Elts[0]); ok {
					check(n.Elts)
				}
			}
		}
		return true
	})
	return keys
}

// wrongKeys returns a complaint for each unknown key.
func wrongKeys(keys []logKey, known []string) (wrong []string) {
	for _, k := range keys {
		if !k.constant {
			wrong = append(wrong, k.place+": the key of a log line is not a constant")
		} else if !slices.Contains(known, k.name) {
			wrong = append(wrong, k.place+": the key "+strconv.Quote(k.name)+
				" of a log line is not in docs/glossary.md")
		}
	}
	return wrong
}

// logArgs returns the keys and values of a call that logs.
func logArgs(call *ast.CallExpr) ([]ast.Expr, bool) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return nil, false
	}
	if isNamed(sel.X, "t") || isNamed(sel.X, "tb") { // testing.T
		return nil, false
	}
	_, text := constant(call.Args[0])
	switch sel.Sel.Name {
	case "Debug", "Warn":
		return call.Args[1:], true
	case "Info", "Error", "info", "warn", "note":
		return call.Args[1:], text
	case "With":
		return call.Args, text
	case "AddAttrs":
		return call.Args, true
	case "Log":
		return call.Args[min(3, len(call.Args)):], len(call.Args) > 2
	}
	return nil, false
}

// isAttr reports whether the call makes a slog.Attr.
func isAttr(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && isNamed(sel.X, "slog") && len(call.Args) > 0
}

func isCallOf(e ast.Expr, name string) bool {
	call, ok := e.(*ast.CallExpr)
	return ok && isNamed(call.Fun, name)
}

// isNamed reports whether the expression is the name, or a selector that ends with it.
func isNamed(e ast.Expr, name string) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == name
	case *ast.SelectorExpr:
		return e.Sel.Name == name
	}
	return false
}

// constant returns the value of a string literal or of a sum of literals.
func constant(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		s, err := strconv.Unquote(e.Value)
		return s, err == nil
	case *ast.BinaryExpr:
		a, ok := constant(e.X)
		b, also := constant(e.Y)
		return a + b, ok && also
	}
	return "", false
}

// TestLogKeys: log lines use the keys in the table of the glossary, one for each thing, and all of
// them.
func TestLogKeys(t *testing.T) {
	_, rows := glossary(t)
	known := slices.Concat(rows...)
	used := map[string]bool{}
	goFiles(t, func(f *goFile) {
		if f.isTest() {
			return
		}
		keys := logKeys(f)
		for _, w := range wrongKeys(keys, known) {
			t.Error(w)
		}
		for _, k := range keys {
			used[k.name] = true
		}
	})
	for _, k := range known {
		testutil.True(t, used[k], "no log line has the key %q of docs/glossary.md", k)
	}
}

func TestLogKeysAreFound(t *testing.T) {
	for line, want := range map[string]int{
		`log.Warn("a line")`:                                     0,
		`log.Warn("a line", "err", err, "path", p)`:              0,
		`log.Warn("a"+" line", "error", err)`:                    1,
		`s.t.cfg.Log.Info("a line", "err", err, "pathes", p)`:    1,
		`log.Error("a line", key, err)`:                          1,
		`log.Debug(text, "err", err, key, v)`:                    1,
		`log.Log(ctx, level, "a line", "from", a)`:               1,
		`log.With("from", a).Info("a line")`:                     1,
		`log.Info("a line", slog.String("path", p), "err", err)`: 0,
		`log.Info("a line", slog.String("file", p), "err", err)`: 1,
		`h.warn("a line", "from", a)`:                            1,
		`c.h.info("a line", "from", a)`:                          1,
		`log.Warn("a line", append(more, "from", a)...)`:         1,
		`_ = []any{"from", a, "err", err}`:                       1,
		`_ = dev.Info()`:                                         0,
		`t.Error("from", err)`:                                   0,
	} {
		f := parseGo(t, "a.go", []byte("package a\n\nfunc b() {\n"+line+"\n}\n"))
		got := wrongKeys(logKeys(f), []string{"err", "path"})
		testutil.Equal(t, len(got), want, "%s: %q", line, got)
	}
}
