package lint

import (
	"bytes"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

const (
	module = "github.com/nvmf-target/nvmf-target"
	root   = "../.."
	// maxLines is the length limit of a file; the aim is 400.
	maxLines = 1000
)

// allowed has the packages that each package may import, from testdata/imports.txt.
func allowed(t *testing.T) map[string][]string { return testutil.Sections(t, "imports") }

// special lists the importers of packages that need care: packages, or single files.
var special = map[string][]string{
	"C": {
		"backend/rbd", "fabric/rdma/verbs/ibv", "fabric/tcp/openssl", "internal/rados",
		"internal/testing/ibvstub",
	},
	"unsafe": {
		"backend/rbd", "fabric/rdma/verbs/ibv", "fabric/tcp/openssl", "internal/list",
		"internal/mem", "internal/rados", "internal/sys", "internal/testing/ibvstub",
		"internal/uring", "fabric/rdma/verbs/soft/engine/halfkick_test.go",
	},
}

// sourceFiles calls fn with every file of the module, its path relative to the module with slashes.
func sourceFiles(t *testing.T, fn func(name string)) {
	t.Helper()
	testutil.Must(t, filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		hidden := strings.HasPrefix(d.Name(), ".") && name != root
		if d.IsDir() && (hidden || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if !d.IsDir() {
			rel, err := filepath.Rel(root, name)
			if err != nil {
				return err
			}
			fn(filepath.ToSlash(rel))
		}
		return nil
	}))
}

// imports returns the packages that a file imports, ignoring build tags.
func imports(t *testing.T, name string) []string {
	t.Helper()
	f := testutil.Value(parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil,
		parser.ImportsOnly))(t)
	var out []string
	for _, spec := range f.Imports {
		p := testutil.Value(strconv.Unquote(spec.Path.Value))(t)
		out = append(out, p)
	}
	return out
}

// violations returns the imports of one file that the tables forbid.
func violations(table map[string][]string, name string, imports []string) []string {
	pkg := path.Dir(name)
	if strings.HasPrefix(pkg, "tests/") {
		return nil
	}
	mayImport, known := table[pkg]
	if !known {
		return []string{"package " + pkg + " is not in the table of internal/lint"}
	}
	var out []string
	for _, imp := range imports {
		users, care := special[imp]
		if care && !slices.Contains(users, pkg) && !slices.Contains(users, name) {
			out = append(out, "may not import "+imp)
		}
		ours, isOurs := strings.CutPrefix(imp, module+"/")
		if isOurs && !strings.HasSuffix(name, "_test.go") && !slices.Contains(mayImport, ours) {
			out = append(out, "may not import "+ours)
		}
	}
	return out
}

func TestImports(t *testing.T) {
	files, table := 0, allowed(t)
	sourceFiles(t, func(name string) {
		if !strings.HasSuffix(name, ".go") {
			return
		}
		files++
		for _, v := range violations(table, name, imports(t, name)) {
			t.Errorf("%s: %s (see internal/lint)", name, v)
		}
	})
	testutil.True(t, files >= 10, "only %d Go files found below %s", files, root)
}

func TestViolationsAreFound(t *testing.T) {
	for _, test := range []struct {
		file, imports string
		want          int
	}{
		{"nvme/sqe.go", "encoding/binary", 0},
		{"nvme/sqe.go", module + "/fabric", 1},
		{"nvme/sqe.go", "unsafe", 1},
		{"fabric/tcp/x.go", module + "/backend", 1},
		{"fabric/tcp/x.go", "C", 1},
		{"fabric/tcp/x_test.go", module + "/nvme/target", 0},
		{"fabric/new/x.go", "fmt", 1},
		{"tests/e2e/x.go", module + "/fabric/rdma/verbs/ibv", 0},
	} {
		got := violations(allowed(t), test.file, []string{test.imports})
		testutil.True(t, len(got) == test.want, "%s importing %s: got %q, want %d violations",
			test.file, test.imports, got, test.want)
	}
}

// TestTableNamesKnownPackages finds misspelt names; the compiler finds cycles.
func TestTableNamesKnownPackages(t *testing.T) {
	table := allowed(t)
	for pkg, list := range table {
		for _, imp := range list {
			_, ok := table[imp]
			testutil.True(t, ok, "%s may import %s, which is not in the table", pkg, imp)
		}
	}
}

func TestFileLength(t *testing.T) {
	sourceFiles(t, func(name string) {
		if !slices.Contains([]string{".go", ".c", ".h", ".sh"}, path.Ext(name)) {
			return
		}
		b := testutil.Value(os.ReadFile(filepath.Join(root, name)))(t)
		if n := bytes.Count(b, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, at most %d are allowed: split it by responsibility", name, n,
				maxLines)
		}
	})
}
