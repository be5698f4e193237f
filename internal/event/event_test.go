package event

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestRefusals: no two refusals have the same message, which is a label of their metric, and those
// of peers that are not served are records of the audit.
func TestRefusals(t *testing.T) {
	f := testutil.Value(parser.ParseFile(token.NewFileSet(), "kinds.go", nil, 0))(t)
	served := regexp.MustCompile(`(refused|connection rejected|handshake failed)"$`)
	seen := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if ok && call.Fun.(*ast.Ident).Name == "refusal" {
			message := call.Args[0].(*ast.BasicLit).Value
			testutil.True(t, !seen[message], "two refusals have the message %s", message)
			seen[message] = true
			_, audited := call.Args[1].(*ast.Ident)
			testutil.True(t, audited || !served.MatchString(message), "%s is not a record", message)
		}
		return true
	})
	testutil.True(t, len(seen) > 20, "only %d refusals", len(seen))
}
