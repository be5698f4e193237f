package lint

import (
	"go/ast"
	"path"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// maxFields is the largest number of fields of a structure. What has more consists of parts, which
// are embedded.
const maxFields = 25

// manyFields lists the structures with more fields, and the most that they may have.
var manyFields = map[string]int{
	// formats of the specification
	"nvme.IdentifyController": 95, "nvme.IdentifyNamespace": 41,
	// facts that clients see, one field each
	"internal/observed.Namespace": 32, "internal/observed.Connection": 27,
	// each is used by every command: the parts would be as large
	"fabric/rdma.group": 30, "fabric/rdma.queue": 48,
	"fabric/tcp.Group": 37, "fabric/tcp.queue": 35,
	"internal/load.Stream": 31, "internal/uring.Ring": 30,
}

// TestFields: no structure of the product has too many fields of its own.
func TestFields(t *testing.T) {
	found := map[string]int{}
	goFiles(t, func(f *goFile) {
		if f.isTest() || strings.HasPrefix(f.name, "tests/") ||
			strings.HasPrefix(f.name, "internal/testing/") {
			return
		}
		for _, s := range structs(f) {
			if s.fields > maxFields {
				found[path.Dir(f.name)+"."+s.name] = s.fields
			}
		}
	})
	for name, n := range found {
		if most := max(manyFields[name], maxFields); n > most {
			t.Errorf("%s has %d fields, more than %d", name, n, most)
		}
	}
	for name := range manyFields {
		testutil.True(t, found[name] != 0, "%s has no more than %d fields: delete it in manyFields",
			name, maxFields)
	}
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
