package testutil

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// Row is a row of a table in testdata.
type Row struct {
	t     testing.TB
	place string
	cells []string
}

// Rows reads the table testdata/NAME.txt: a row in each line, with " | " between its cells. Empty
// lines and lines that begin with "# " do not count.
func Rows(t testing.TB, name string) (rows []Row) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	for i, line := range strings.Split(string(Value(os.ReadFile(path))(t)), "\n") {
		if line == "" || strings.HasPrefix(line, "# ") {
			continue
		}
		cells := strings.Split(line, " |")
		for j := range cells {
			cells[j] = strings.TrimSpace(cells[j])
		}
		rows = append(rows, Row{t, fmt.Sprintf("%s:%d", path, i+1), cells})
	}
	MustTrue(t, len(rows) > 0, "%s: no rows", path)
	return rows
}

// Scan sets variables from the cells: strings, which may be quoted, numbers, bools, and slices of
// strings or numbers, with spaces between them. A function gets the text of its cell.
func (r Row) Scan(to ...any) {
	r.t.Helper()
	MustEqual(r.t, len(r.cells), len(to), "%s: cells", r.place)
	for i, cell := range r.cells {
		var err error
		if set, ok := to[i].(func(cell string) error); ok {
			err = set(cell)
		} else {
			err = scan(reflect.ValueOf(to[i]).Elem(), cell)
		}
		MustTrue(r.t, err == nil, "%s: %q: %v", r.place, cell, err)
	}
}

// Sections reads testdata/NAME.txt, in which lines have a name, or indented the words of the name
// above. Lines that begin with # do not count.
func Sections(t testing.TB, name string) map[string][]string {
	t.Helper()
	sections, section := map[string][]string{}, ""
	text := Value(os.ReadFile(filepath.Join("testdata", name+".txt")))(t)
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, " "):
			sections[section] = append(sections[section], strings.Fields(line)...)
		default:
			section = strings.TrimSpace(line)
			_, twice := sections[section]
			MustTrue(t, !twice, "%s.txt has %q twice", name, section)
			sections[section] = nil
		}
	}
	return sections
}

func scan(v reflect.Value, cell string) error {
	switch {
	case v.Kind() == reflect.Slice:
		for word := range strings.FieldsSeq(cell) {
			one := reflect.New(v.Type().Elem()).Elem()
			if err := scan(one, word); err != nil {
				return err
			}
			v.Set(reflect.Append(v, one))
		}
		return nil
	case v.Kind() == reflect.String && strings.HasPrefix(cell, `"`):
		text, err := strconv.Unquote(cell)
		v.SetString(text)
		return err
	case v.Kind() == reflect.String:
		v.SetString(cell)
		return nil
	case v.Kind() == reflect.Bool:
		b, err := strconv.ParseBool(cell)
		v.SetBool(b)
		return err
	case v.CanInt():
		n, err := strconv.ParseInt(cell, 0, v.Type().Bits())
		v.SetInt(n)
		return err
	case v.CanUint():
		n, err := strconv.ParseUint(cell, 0, v.Type().Bits())
		v.SetUint(n)
		return err
	}
	return fmt.Errorf("a table has no %v", v.Type())
}

// Named is for Scan: it sets a variable to the value that has the name in the cell.
func Named[T any](to *T, names map[string]T) func(cell string) error {
	return func(cell string) error {
		v, ok := names[cell]
		if *to = v; !ok {
			return fmt.Errorf("no such name")
		}
		return nil
	}
}
