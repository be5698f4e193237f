package lint

import (
	"go/ast"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// maxFields is the largest number of fields of a structure below nvme/target. What has more
// consists of parts, which are embedded.
const maxFields = 25

// TestFields: no structure of the controller side has too many fields of its own.
func TestFields(t *testing.T) {
	goFiles(t, func(f *goFile) {
		if f.isTest() || !strings.HasPrefix(f.name, "nvme/target/") {
			return
		}
		for _, s := range structs(f) {
			if s.fields > maxFields {
				t.Errorf("%s: %s has %d fields, more than %d", f.name, s.name, s.fields, maxFields)
			}
		}
	})
}

// structure is a declared structure and its number of fields. An embedded one is one field.
type structure struct {
	name   string
	fields int
}

func structs(f *goFile) (list []structure) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if t, ok := spec.Type.(*ast.StructType); ok {
				list = append(list, structure{spec.Name.Name, t.Fields.NumFields()})
			}
		}
		return true
	})
	return list
}

func TestFieldsAreCounted(t *testing.T) {
	const text = "package a\n\ntype a struct{ b, c int; d; _ int }\n\ntype d struct{}\n"
	f := parseGo(t, "a.go", []byte(text))
	list := structs(f)
	testutil.True(t, len(list) == 2 && list[0] == (structure{"a", 4}) &&
		list[1] == (structure{"d", 0}), "%+v", list)
}
