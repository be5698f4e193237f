package lint

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
