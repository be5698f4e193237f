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

// allowed lists the packages of this module that each package may import outside its tests. Every
// package needs an entry. Packages below "tests" may import anything and are not imported.
var allowed = map[string][]string{
	"cmd/nvmf-target": {
		"internal/app", "internal/check", "internal/cli", "internal/control", "internal/convert",
		"internal/doctor", "internal/observed",
		"internal/secret", "internal/sys",
	},
	"config": {
		"backend/disk", "config/lang", "fabric", "fabric/rdma", "fabric/tcp", "internal/secret",
		"nvme", "nvme/auth", "nvme/target/ana", "nvme/target/namespaces", "nvme/target/qos",
		"nvme/target/subsystems",
	},
	"config/lang": {"internal/secret", "internal/sys"},
	"internal/app": {
		"config", "config/lang", "nvme", "nvme/auth", "nvme/target", "nvme/target/ana",
		"nvme/target/observe", "nvme/target/qos", "nvme/target/subsystems", "fabric",
		"fabric/tcp", "fabric/rdma", "fabric/rdma/verbs", "fabric/rdma/verbs/ibv",
		"fabric/rdma/verbs/soft",
		"backend", "backend/rbd", "internal/check", "internal/engine", "internal/logs",
		"internal/reactor",
		"internal/workers",
		"internal/control", "internal/convert", "internal/doctor", "internal/group",
		"internal/group/rados", "internal/listeners", "internal/rados",
		"internal/histogram", "internal/httpd", "internal/metrics",
		"internal/netif", "internal/observed", "internal/ratelog", "internal/rates",
		"internal/state", "internal/subnet", "internal/sys", "internal/volumes", "internal/web",
	},

	"nvme":      {},
	"nvme/auth": {},
	"nvme/target": {
		"nvme", "nvme/auth", "nvme/target/admin", "nvme/target/ana", "nvme/target/association",
		"nvme/target/authn", "nvme/target/compound", "nvme/target/controllers",
		"nvme/target/dispatch", "nvme/target/discovery", "nvme/target/namespaces",
		"nvme/target/observe", "nvme/target/qos", "nvme/target/reservation",
		"nvme/target/shares", "nvme/target/subsystems", "fabric", "backend",
		"backend/marks", "internal/list", "internal/mem", "internal/observed",
		"internal/ratelog", "internal/subnet", "internal/turns",
	},
	"nvme/target/admin":       {"backend", "internal/observed", "nvme"},
	"nvme/target/ana":         {"nvme"},
	"nvme/target/association": {"fabric", "nvme", "nvme/target/admin"},
	"nvme/target/authn":       {"internal/turns", "nvme/auth"},
	"nvme/target/compound": {
		"backend", "internal/list", "internal/mem", "internal/subnet", "nvme",
	},
	"nvme/target/controllers": {
		"backend", "backend/marks", "fabric", "internal/observed", "internal/ratelog",
		"internal/turns", "nvme", "nvme/auth", "nvme/target/admin", "nvme/target/ana",
		"nvme/target/association", "nvme/target/authn", "nvme/target/compound",
		"nvme/target/discovery", "nvme/target/dispatch", "nvme/target/namespaces",
		"nvme/target/observe", "nvme/target/reservation", "nvme/target/subsystems",
	},
	"nvme/target/discovery": {"fabric", "nvme"},
	"nvme/target/dispatch": {
		"backend", "internal/list", "internal/mem", "internal/subnet", "nvme/target/compound",
		"nvme/target/reservation",
	},
	"nvme/target/namespaces": {
		"backend", "backend/marks", "internal/observed", "nvme", "nvme/target/admin",
		"nvme/target/ana", "nvme/target/compound", "nvme/target/dispatch", "nvme/target/observe",
		"nvme/target/qos",
	},
	"nvme/target/observe": {
		"fabric", "internal/histogram", "internal/list", "internal/observed", "internal/subnet",
		"nvme",
	},
	"nvme/target/qos": {"internal/limit", "internal/list", "internal/observed"},
	"nvme/target/reservation": {
		"nvme", "internal/list", "internal/ratelog", "internal/subnet",
	},
	"nvme/target/shares": {
		"internal/list", "internal/mem", "internal/subnet", "nvme/target/compound",
		"nvme/target/namespaces", "nvme/target/observe", "nvme/target/qos",
	},
	"nvme/target/subsystems": {
		"internal/observed", "nvme", "nvme/target/association", "nvme/target/discovery",
		"nvme/target/namespaces", "nvme/target/qos",
	},
	"nvme/host": {
		"nvme", "nvme/auth", "fabric/tcp/pdu", "fabric/tcp/tls", "fabric/rdma/cmwire",
		"fabric/rdma/verbs", "internal/list", "internal/mem", "internal/sys",
	},

	"fabric":           {"nvme", "internal/mem", "internal/subnet"},
	"fabric/admission": {"fabric", "internal/list", "internal/subnet"},
	"fabric/tcp": {
		"fabric", "fabric/admission", "fabric/tcp/openssl", "fabric/tcp/pdu", "fabric/tcp/tls",
		"internal/list", "nvme", "nvme/auth", "internal/mem", "internal/ratelog", "internal/sys",
		"internal/turns",
	},
	"fabric/tcp/openssl": {},
	"fabric/tcp/pdu":     {"nvme"},
	"fabric/tcp/tls":     {"fabric/tcp/openssl", "internal/mem", "internal/sys", "nvme/auth"},
	"fabric/rdma": {
		"fabric", "fabric/admission", "internal/list",
		"fabric/rdma/cmwire", "fabric/rdma/verbs", "nvme", "internal/mem", "internal/observed",
		"internal/ratelog", "internal/sys",
	},
	"fabric/rdma/cmwire":    {"nvme"},
	"fabric/rdma/verbs":     {},
	"fabric/rdma/verbs/ibv": {"fabric/rdma/verbs", "internal/sys"},

	"fabric/rdma/verbs/soft": {
		"fabric/rdma/verbs", "fabric/rdma/verbs/soft/cm", "fabric/rdma/verbs/soft/engine",
		"fabric/rdma/verbs/soft/iwarp", "fabric/rdma/verbs/soft/mpa",
		"fabric/rdma/verbs/soft/roce", "fabric/rdma/verbs/soft/wire", "internal/observed",
	},
	"fabric/rdma/verbs/soft/packet": {},
	"fabric/rdma/verbs/soft/wire":   {"fabric/rdma/verbs/soft/packet", "internal/sys"},
	"fabric/rdma/verbs/soft/engine": {
		"fabric/rdma/verbs", "fabric/rdma/verbs/soft/packet", "fabric/rdma/verbs/soft/wire",
		"internal/list", "internal/mem",
	},
	"fabric/rdma/verbs/soft/roce": {
		"fabric/rdma/verbs", "fabric/rdma/verbs/soft/engine", "fabric/rdma/verbs/soft/packet",
		"fabric/rdma/verbs/soft/wire",
	},
	"fabric/rdma/verbs/soft/cm": {
		"fabric/rdma/verbs", "fabric/rdma/verbs/soft/packet", "fabric/rdma/verbs/soft/wire",
		"internal/subnet",
	},
	"fabric/rdma/verbs/soft/iwarp": {
		"fabric/rdma/verbs", "fabric/rdma/verbs/soft/engine", "fabric/rdma/verbs/soft/mpa",
		"fabric/rdma/verbs/soft/packet", "fabric/rdma/verbs/soft/wire", "internal/sys",
	},
	"fabric/rdma/verbs/soft/mpa": {"fabric/rdma/verbs", "fabric/rdma/verbs/soft/wire"},

	"backend":       {"internal/list", "internal/mem"},
	"backend/block": {"backend", "backend/disk", "internal/sys"},
	"backend/disk": {
		"backend", "internal/list", "internal/mem", "internal/storage", "internal/sys",
		"internal/uring",
	},
	"backend/marks": {"backend", "internal/list"},
	"backend/file":  {"backend", "backend/disk", "internal/list", "internal/mem"},
	"backend/null":  {"backend", "internal/list", "internal/mem"},
	"backend/nvmedrive": { // speaks NVMe, but to the drive
		"backend", "backend/block", "backend/disk", "internal/mem", "internal/passthru",
		"internal/sys", "internal/uring", "nvme",
	},
	"backend/rbd":  {"backend", "internal/list", "internal/rados"},
	"backend/ram":  {"backend", "internal/list", "internal/mem", "internal/sys"},
	"backend/wrap": {"backend", "internal/list"},

	"internal/bench": {
		"fabric/rdma/verbs", "internal/histogram", "internal/load", "nvme", "nvme/auth",
		"nvme/host",
	},
	"internal/cli": {
		"fabric/rdma/verbs", "fabric/tcp/pdu", "internal/bench", "internal/control",
		"internal/doctor", "internal/httpd", "internal/observed", "internal/rates", "nvme",
		"nvme/auth",
	},
	"internal/control": {
		"internal/httpd", "internal/observed", "internal/secret", "internal/sys",
	},
	"internal/convert": {"config", "config/lang", "internal/secret"},
	"internal/doctor": {
		"internal/control", "internal/flight", "internal/observed", "internal/rates",
		"internal/storage",
		"internal/sys", "internal/uring", "nvme",
	},
	"internal/check": {
		"config", "config/lang", "fabric", "fabric/rdma/verbs", "fabric/rdma/verbs/ibv",
		"fabric/tcp", "fabric/tcp/openssl", "internal/control", "internal/doctor",
		"internal/flight", "internal/httpd", "internal/listeners", "internal/netif",
		"internal/state", "internal/sys",
		"internal/volumes", "nvme", "nvme/target/subsystems",
	},
	"internal/engine": {
		"backend", "backend/rbd", "config", "config/lang", "fabric", "fabric/rdma",
		"fabric/rdma/verbs",
		"fabric/tcp", "internal/check", "internal/control", "internal/listeners",
		"internal/observed", "internal/state", "internal/sys", "internal/volumes", "nvme/auth",
		"nvme/target", "nvme/target/subsystems",
	},
	"internal/flight": {},
	"internal/inventory": {
		"nvme", "internal/passthru", "internal/storage", "internal/sys",
	},
	"internal/group":       {},
	"internal/group/rados": {"internal/group", "internal/rados"},
	"internal/histogram":   {},
	"internal/httpd":       {"fabric/admission", "internal/sys"},
	"internal/load":        {"internal/histogram", "nvme", "nvme/host"},
	"internal/limit":       {},
	"internal/lint":        {},
	"internal/list":        {},
	"internal/logs":        {"internal/state"},
	"internal/listeners": {
		"config", "fabric", "fabric/rdma/verbs", "internal/control", "internal/doctor",
		"internal/mdns", "internal/netif", "internal/observed", "internal/ratelog",
		"internal/state", "nvme",
		"nvme/target", "nvme/target/ana", "nvme/target/discovery", "nvme/target/subsystems",
	},
	"internal/mdns": {},
	"internal/mem":  {"internal/list", "internal/subnet"},
	"internal/metrics": {
		"fabric", "internal/histogram", "internal/httpd", "internal/observed", "nvme",
		"nvme/target/observe", "nvme/target/qos", "nvme/target/subsystems",
	},
	"internal/netif":    {"internal/sys"},
	"internal/observed": {"internal/rates", "nvme"},
	"internal/passthru": {"nvme", "internal/sys"},
	"internal/ratelog":  {"internal/observed", "internal/secret", "internal/subnet"},
	"internal/rados":    {"backend"},
	"internal/rates":    {},
	"internal/reactor":  {"internal/list", "internal/sys"},
	"internal/secret":   {},
	"internal/state": {
		"backend", "backend/marks", "nvme", "nvme/target/reservation",
	},
	"internal/storage": {"internal/sys"},
	"internal/subnet":  {},
	"internal/sys":     {},
	"internal/turns":   {"internal/list", "internal/subnet", "internal/sys"},
	"internal/uring":   {},
	"internal/volumes": {
		"backend", "backend/block", "backend/disk", "backend/file", "backend/null",
		"backend/nvmedrive", "backend/ram", "backend/rbd", "backend/wrap", "config", "config/lang",
		"internal/control", "internal/doctor", "internal/flight", "internal/inventory",
		"internal/observed", "internal/rados", "internal/state", "internal/storage",
		"internal/sys", "nvme/target", "nvme/target/admin",
	},
	"internal/workers": {
		"fabric", "internal/mem", "internal/observed", "internal/ratelog", "internal/reactor",
		"internal/sys", "nvme", "nvme/target",
	},
	"internal/web": {
		"internal/control", "internal/doctor", "internal/httpd", "internal/observed",
		"internal/rates", "internal/secret",
	},

	"internal/testing/backendtest": {
		"backend", "internal/list", "internal/mem", "internal/testing/testutil",
	},
	"internal/testing/cephtest":   {"internal/testing/testutil"},
	"internal/testing/fabrictest": {"fabric", "nvme", "internal/list", "internal/mem"},
	"internal/testing/hosttest": {
		"internal/testing/targettest", "nvme", "nvme/auth", "nvme/host",
	},
	"internal/testing/netiftest":    {"internal/netif"},
	"internal/testing/passthrutest": {"nvme", "internal/sys"},
	"internal/testing/targettest":   {"nvme"},
	"internal/testing/testutil":     {},
	"internal/testing/verbsconf": {
		"fabric/rdma/verbs", "internal/mem", "internal/testing/testutil",
	},
	"internal/testing/verbstest": {
		"fabric/rdma/verbs", "fabric/rdma/verbs/soft", "fabric/rdma/verbs/soft/cm",
		"fabric/rdma/verbs/soft/packet", "fabric/rdma/verbs/soft/wire", "internal/mem",
		"internal/testing/wiretest",
	},
	"internal/testing/wiretest": {
		"fabric/rdma/verbs/soft/packet", "fabric/rdma/verbs/soft/wire",
	},
}

// special lists the importers of packages that need care: packages, or single files.
var special = map[string][]string{
	"C": {"backend/rbd", "fabric/rdma/verbs/ibv", "fabric/tcp/openssl", "internal/rados"},
	"unsafe": {
		"backend/rbd", "fabric/rdma/verbs/ibv", "fabric/tcp/openssl", "internal/list",
		"internal/mem", "internal/rados", "internal/sys", "internal/uring",
		"fabric/rdma/verbs/soft/engine/halfkick_test.go",
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
func violations(name string, imports []string) []string {
	pkg := path.Dir(name)
	if strings.HasPrefix(pkg, "tests/") {
		return nil
	}
	mayImport, known := allowed[pkg]
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
	files := 0
	sourceFiles(t, func(name string) {
		if !strings.HasSuffix(name, ".go") {
			return
		}
		files++
		for _, v := range violations(name, imports(t, name)) {
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
		got := violations(test.file, []string{test.imports})
		testutil.True(t, len(got) == test.want, "%s importing %s: got %q, want %d violations",
			test.file, test.imports, got, test.want)
	}
}

// TestTableNamesKnownPackages finds misspelt names; the compiler finds cycles.
func TestTableNamesKnownPackages(t *testing.T) {
	for pkg, list := range allowed {
		for _, imp := range list {
			_, ok := allowed[imp]
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
