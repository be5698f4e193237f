package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// timed are the functions of tests that may look at the clock, by file and name, with the reason. A
// test that fails on a slow machine does not belong here: it counts something instead, runs in
// virtual time (testing/synctest), waits for an event (testutil.Until), or is left to make soak
// (testutil.Soak).
var timed = map[string]map[string]string{
	"fabric/rdma/verbs/soft/cm/harness_test.go":    {"run": virtual},
	"fabric/rdma/verbs/soft/engine/engine_test.go": {"TestHeap": values},

	"internal/load/load_test.go":      {"TestSeries": values},
	"nvme/target/bench_test.go":       {"Clock": "the clock of a benchmark"},
	"nvme/target/barrier_test.go":     {"TestTimeoutOfPart": virtual},
	"nvme/target/association_test.go": {"TestKeepAliveMargin": virtual},
	"nvme/target/latency_test.go":     {"TestStages": virtual, "TestTrace": virtual},

	"tests/e2e/authentication_load_test.go": {"beside": soakOnly, "reads": soakOnly},
	"tests/e2e/idle_test.go":                {"bareSockets": soakOnly, "wantIdle": soakOnly},
	"tests/isolation/bound.go":              {"quick": soakOnly},
	"tests/isolation/latency_test.go":       {"TestLatencies": values},
	"tests/isolation/stranger_names.go": {
		"quiet": "time makes its bound larger, never smaller",
	},
	"tests/isolation/beside_work_test.go": {"besideWork": soakOnly, "tooSlow": soakOnly},
	"tests/isolation/victim.go":           {"run": "paces commands; make soak uses the latencies"},

	"tests/isolation/steps_test.go":    {"compareSteps": soakOnly},
	"tests/isolation/stranger_rows.go": {"visitFrom": soakOnly},
}

// Frequent reasons of timed.
const (
	soakOnly = "only make soak uses the time"
	values   = "its durations are values, not measurements"
	virtual  = "the time is virtual (fabrictest.World)"
)

// clock are the functions and methods of package time with a result that depends on the speed of
// the machine.
var clock = []string{
	"time.Sleep", "time.Since", "time.Until", "(time.Time).Sub", "(time.Time).After",
	"(time.Time).Before", "(time.Time).Compare",
}

// noObjects: types resolves identifiers better than the parser.
const noObjects = parser.SkipObjectResolution

// measures are the packages below tests/ that measure time. They fail no test.
var measures = []string{"tests/bench"}

// use is a place in a test that looks at the clock or orders durations.
type use struct {
	file, function, what string
	line                 int
}

// compared is the use of a comparison.
const compared = "a comparison of durations"

// clockUses returns the uses of the clock in a file, except in benchmarks, in virtual time, and in
// tests left to make soak.
func clockUses(fset *token.FileSet, f *ast.File, info *types.Info) (uses []use) {
	for _, d := range f.Decls {
		function, ok := d.(*ast.FuncDecl)
		name := "variables"
		if ok {
			name = function.Name.Name
		}
		if strings.HasPrefix(name, "Benchmark") || ok && leftToSoak(function) {
			continue
		}
		add := func(at token.Pos, what string) {
			p := fset.Position(at)
			uses = append(uses, use{p.Filename, name, what, p.Line})
		}
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				called := calledName(n, info)
				if called == "testing/synctest.Test" {
					return false
				}
				if slices.Contains(clock, called) {
					add(n.Pos(), called)
				}
			case *ast.BinaryExpr:
				ordered := slices.Contains(
					[]token.Token{token.LSS, token.GTR, token.LEQ, token.GEQ}, n.Op)
				if ordered && (isDuration(n.X, info) || isDuration(n.Y, info)) {
					add(n.OpPos, compared)
				}
			}
			return true
		})
	}
	return uses
}

// leftToSoak reports whether only make soak runs a test: one of its own statements is a call of
// testutil.Soak.
func leftToSoak(f *ast.FuncDecl) bool {
	return f.Body != nil && slices.ContainsFunc(f.Body.List, func(s ast.Stmt) bool {
		e, ok := s.(*ast.ExprStmt)
		if !ok {
			return false
		}
		call, ok := e.X.(*ast.CallExpr)
		return ok && types.ExprString(call.Fun) == "testutil.Soak"
	})
}

// calledName returns the full name of the called function or method, "" if it has no name.
func calledName(call *ast.CallExpr, info *types.Info) string {
	var id *ast.Ident
	switch fun := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		id = fun
	case *ast.SelectorExpr:
		id = fun.Sel
	default:
		return ""
	}
	if f, ok := info.Uses[id].(*types.Func); ok {
		return f.FullName()
	}
	return ""
}

// isDuration reports whether an expression is a time.Duration.
func isDuration(e ast.Expr, info *types.Info) bool {
	t := info.TypeOf(e)
	return t != nil && t.String() == "time.Duration"
}

// goPackage is the description of a package by go list.
type goPackage struct {
	Dir, ImportPath, Export            string
	GoFiles, CgoFiles                  []string
	TestGoFiles, XTestGoFiles          []string
	Imports, TestImports, XTestImports []string
}

// listPackages runs go list with the build tags of all tests, and with the race detector if this
// test has it: the other tests need the same packages, so they are compiled once.
func listPackages(t *testing.T, args ...string) (list []*goPackage) {
	t.Helper()
	flags := []string{"list", "-e", "-tags", "lab,invariants", "-json"}
	if build, ok := debug.ReadBuildInfo(); ok && slices.Contains(build.Settings,
		debug.BuildSetting{Key: "-race", Value: "true"}) {
		flags = append(flags, "-race")
	}
	c := exec.Command("go", append(flags, args...)...)
	c.Dir = root
	var problems bytes.Buffer
	c.Stderr = &problems
	out, err := c.Output()
	testutil.MustTrue(t, err == nil, "%v: %s", err, &problems)
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &goPackage{}
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

// typeCheck returns the types of the files of a package. Errors do not matter here: the files have
// been compiled, except cgo output.
func typeCheck(fset *token.FileSet, from types.Importer, name string,
	files []*ast.File,
) (*types.Package, *types.Info) {
	info := &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{},
		Defs: map[*ast.Ident]types.Object{},
	}
	c := types.Config{Importer: from, FakeImportC: true, Error: func(error) {}}
	p, _ := c.Check(name, fset, files, info)
	return p, info
}

// testedImporter imports a package with its tests from own, and all other packages from their
// export data.
type testedImporter struct {
	types.Importer
	own *types.Package
}

func (i testedImporter) Import(name string) (*types.Package, error) {
	if i.own != nil && name == i.own.Path() {
		return i.own, nil
	}
	return i.Importer.Import(name)
}

// exportData returns an importer of packages and their dependencies.
func exportData(t *testing.T, fset *token.FileSet, packages ...string) types.Importer {
	t.Helper()
	files := map[string]string{}
	for _, p := range listPackages(t, append([]string{"-export", "-deps"}, packages...)...) {
		files[p.ImportPath] = p.Export
	}
	return importer.ForCompiler(fset, "gc", func(name string) (io.ReadCloser, error) {
		if files[name] == "" {
			return nil, fmt.Errorf("no export data of %s", name)
		}
		return os.Open(files[name])
	})
}

// TestNoTimes: no test looks at the clock or compares durations, except the tests in timed.
func TestNoTimes(t *testing.T) {
	ours := listPackages(t, "./...")
	needed := map[string]bool{}
	for _, p := range ours {
		for _, name := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			needed[name] = name != "C"
		}
	}
	var names []string
	for name, ok := range needed {
		if ok {
			names = append(names, name)
		}
	}
	fset := token.NewFileSet()
	others := exportData(t, fset, names...)
	parse := func(dir string, names ...string) (files []*ast.File) {
		for _, name := range names {
			rel := testutil.Value(filepath.Rel(absoluteRoot(t), filepath.Join(dir, name)))(t)
			text := testutil.Value(os.ReadFile(filepath.Join(dir, name)))(t)
			f := testutil.Value(parser.ParseFile(fset, filepath.ToSlash(rel), text, noObjects))(t)
			files = append(files, f)
		}
		return files
	}
	used, tests := map[string]bool{}, 0
	check := func(files []*ast.File, info *types.Info) {
		for _, f := range files {
			name := fset.Position(f.Pos()).Filename
			inTests := strings.HasPrefix(name, "tests/") || strings.HasSuffix(name, "_test.go")
			if !inTests || slices.ContainsFunc(measures, func(m string) bool {
				return strings.HasPrefix(name, m+"/")
			}) {
				continue
			}
			tests++
			for _, u := range clockUses(fset, f, info) {
				if timed[u.file][u.function] == "" {
					t.Errorf("%s:%d: %s in %s: count, wait for an event, use virtual time, or see "+
						"timed in internal/lint", u.file, u.line, u.what, u.function)
				}
				used[u.file+" "+u.function] = true
			}
		}
	}
	for _, p := range ours {
		files := parse(p.Dir, slices.Concat(p.GoFiles, p.CgoFiles, p.TestGoFiles)...)
		own, info := typeCheck(fset, others, p.ImportPath, files)
		check(files, info)
		if len(p.XTestGoFiles) > 0 {
			files := parse(p.Dir, p.XTestGoFiles...)
			_, info := typeCheck(fset, testedImporter{others, own}, p.ImportPath+"_test", files)
			check(files, info)
		}
	}
	testutil.True(t, tests >= 300, "only %d files have been looked at", tests)
	for file, functions := range timed {
		for function := range functions {
			testutil.True(t, used[file+" "+function],
				"timed has %s of %s, which does not look at the clock", function, file)
		}
	}
}

// absoluteRoot returns the directory of the module.
func absoluteRoot(t *testing.T) string {
	t.Helper()
	dir := testutil.Value(filepath.Abs(root))(t)
	return dir
}

// TestTimesAreFound tests clockUses.
func TestTimesAreFound(t *testing.T) {
	fset := token.NewFileSet()
	library := exportData(t, fset, "testing", "testing/synctest", "time")
	for text, want := range map[string]string{
		"func a() { time.Sleep(1) }":                                          "time.Sleep",
		"func a() { _ = time.Since(time.Now()) }":                             "time.Since",
		"func a(b, c time.Time) { _ = b.Sub(c) }":                             "(time.Time).Sub",
		"func a(b, c time.Time) bool { return b.After(c) }":                   "(time.Time).After",
		"func a(b time.Duration) bool { return b > time.Second }":             compared,
		"func a(b time.Duration) bool { return 2*time.Second <= b }":          compared,
		"func a(b time.Duration) bool { return b == time.Second }":            "",
		"func a(b int64) bool { return b > int64(time.Second) }":              "",
		"func BenchmarkA() { time.Sleep(1) }":                                 "",
		"func a() { synctest.Test(nil, func(*testing.T) { time.Sleep(1) }) }": "",
		"func a() { testutil.Soak(nil, \"\"); time.Sleep(1) }":                "",
		"func a() { if true { testutil.Soak(nil, \"\") }; time.Sleep(1) }":    "time.Sleep",
		"var a = time.Since(time.Time{})":                                     "time.Since",
	} {
		source := "package a\nimport (\n\"testing\"\n\"testing/synctest\"\n\"time\"\n)\n" +
			"var _ = synctest.Test\nvar _ *testing.T\n" + text
		f := testutil.Value(parser.ParseFile(fset, "a_test.go", source, noObjects))(t)
		_, info := typeCheck(fset, library, "a", []*ast.File{f})
		var got string
		for _, u := range clockUses(fset, f, info) {
			got = u.what
		}
		testutil.Equal(t, got, want, "%s", text)
	}
}
