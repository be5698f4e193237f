package nvme

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// recordCase is a record with the size that the specification gives.
type recordCase struct {
	name  string
	typ   reflect.Type
	size  int
	zero  []byte
	again func([]byte) ([]byte, error) // parses and appends
}

// offsets are the byte offsets of the named fields of a record.
type offsets map[string]int

func record[T Record](size int) recordCase {
	return recordCase{
		fmt.Sprintf("%T", *new(T)), reflect.TypeFor[T](), size, Append(nil, new(T)),
		func(b []byte) ([]byte, error) {
			r, err := Parse[T](b)
			return Append(nil, r), err
		},
	}
}

// TestEveryRecordIsTested: every member of Record is in the table above, so its size is compared
// and it is fuzzed.
func TestEveryRecordIsTested(t *testing.T) {
	file := testutil.Value(parser.ParseFile(token.NewFileSet(), "record.go", nil, 0))(t)
	members := 0
	ast.Inspect(file.Scope.Lookup("Record").Decl.(*ast.TypeSpec).Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			members++
			if !slices.ContainsFunc(records, func(r recordCase) bool {
				return r.typ.Name() == id.Name
			}) {
				t.Errorf("%s is in Record and not in the table of this test", id.Name)
			}
		}
		return true
	})
	testutil.True(t, members == len(records), "Record has %d members, the table of this test %d",
		members, len(records))
}

func TestRecordSizes(t *testing.T) {
	for _, r := range records {
		testutil.Equal(t, len(r.zero), r.size, "%s bytes", r.name)
		testutil.Equal(t, testutil.Err(r.again(make([]byte, r.size))), nil, "%s: zeroes", r.name)
		testutil.Is(t, testutil.Err(r.again(make([]byte, r.size-1))), ErrTruncated,
			"%s: one byte short", r.name)
	}
	b := Append([]byte{1, 2}, new(SMARTLog))
	testutil.True(t, len(b) == 2+SMARTLogSize && b[1] == 2, "%d bytes after 2", len(b)-2)
}

// FuzzRecords: any bytes can be parsed, and a record parsed without an error is written back
// unchanged.
func FuzzRecords(f *testing.F) {
	for i := range records {
		f.Add(i, []byte{0xFF, 1, 2})
	}
	f.Fuzz(func(t *testing.T, which int, b []byte) {
		r := records[uint(which)%uint(len(records))]
		full := make([]byte, r.size)
		copy(full, b)
		out, err := r.again(full)
		if err == nil && !bytes.Equal(out, full) {
			t.Fatalf("%s: changed by parse and append", r.name)
		} else if err != nil && !errors.Is(err, ErrReserved) {
			t.Fatalf("%s: %v", r.name, err)
		}
		_, _ = r.again(b)
	})
}
