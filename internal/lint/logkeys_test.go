package lint

import (
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
	case "Debug", "Warn", "Report":
		return call.Args[1:], true
	case "Info", "Error", "info", "warn", "note":
		return call.Args[1:], text
	case "report": // of an event
		return call.Args[1:], !text
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
	for _, row := range testutil.Rows(t, "logkeys") {
		var line string
		var want int
		row.Scan(&line, &want)
		f := parseGo(t, "a.go", []byte("package a\n\nfunc b() {\n"+line+"\n}\n"))
		got := wrongKeys(logKeys(f), []string{"err", "path"})
		testutil.Equal(t, len(got), want, "%s: %q", line, got)
	}
}
