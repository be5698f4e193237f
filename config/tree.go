package config

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxValues bounds the values of a configuration after aliases are expanded, so that a small file
// cannot become a huge one.
const maxValues = 100_000

var (
	sizeType     = reflect.TypeFor[Size]()
	durationType = reflect.TypeFor[time.Duration]()
	storageType  = reflect.TypeFor[Storage]()
)

// tree checks YAML nodes against Go types and turns them into plain values (map[string]any, []any,
// string, int64, bool). It remembers the place of each value and reports what does not fit, all of
// it.
type tree struct {
	*source
	variable string // the environment variable being read, "" for the file
	values   int
}

// value checks n against typ. ok is false if a problem was reported; v is then what is good of a
// list or mapping, or nil.
func (t *tree) value(n *yaml.Node, typ reflect.Type, path string) (v any, ok bool) {
	at := place{line: n.Line, column: n.Column, variable: t.variable}
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	t.places[path] = at
	t.values++
	if t.values > maxValues {
		return nil, false
	}
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch {
	case typ.Kind() == reflect.Struct:
		return t.mapping(n, typ, path)
	case typ.Kind() == reflect.Slice:
		return t.sequence(n, typ.Elem(), path)
	case n.Kind != yaml.ScalarNode:
		t.add(path, "must be "+typeName(typ)+", not "+kindName(n), "Write one value.")
		return nil, false
	}
	return t.scalar(n, typ, path)
}

func (t *tree) mapping(n *yaml.Node, typ reflect.Type, path string) (any, bool) {
	if n.Kind != yaml.MappingNode {
		t.add(path, "must be a mapping of keys to values, not "+kindName(n), "Its keys are: "+
			strings.Join(keysOf(typ), ", ")+".")
		return nil, false
	}
	out, ok, seen := map[string]any{}, true, map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		at := place{line: key.Line, column: key.Column, variable: t.variable}
		sub := join(path, printable(key.Value))
		field, known := fieldOf(typ, key.Value)
		if key.Kind != yaml.ScalarNode || !known {
			t.unknownKey(at, typ, path, sub, key)
			ok = false
			continue
		}
		if first, dup := seen[key.Value]; dup {
			t.addAt(at, sub, fmt.Sprintf("given twice, first in line %d", first),
				"Delete one of the two.")
			ok = false
			continue
		}
		seen[key.Value] = key.Line
		v, fits := t.value(val, field.Type, sub)
		if v != nil { // of a broken list or mapping, the good part
			out[key.Value] = v
		}
		ok = ok && fits
	}
	t.defaults(out, seen, typ)
	return out, ok
}

// unknownKey reports a key that typ does not have and, if it looks like one that it has, that one.
func (t *tree) unknownKey(at place, typ reflect.Type, path, sub string, key *yaml.Node) {
	switch like := nearest(key.Value, keysOf(typ)); {
	case key.Kind != yaml.ScalarNode || key.Tag == "!!merge":
		t.addAt(at, path, "merge keys and composite keys are not supported", "Write the keys out.")
	case like != "":
		t.addAt(at, sub, "unknown key", fmt.Sprintf("Did you mean %q?", like))
		t.bad[join(path, like)] = true // that one is not missing, it is misspelt
	default:
		t.addAt(at, sub, "unknown key", "Delete it; known here: "+strings.Join(keysOf(typ), ", ")+
			".")
	}
}

// defaults fills in the keys of list elements that were not given. The top level's defaults are
// viper's, below file and environment.
func (t *tree) defaults(out map[string]any, given map[string]int, typ reflect.Type) {
	if typ == reflect.TypeFor[Config]() || isSection(typ) {
		return
	}
	for _, f := range fieldsOf(typ) {
		if _, ok := given[keyOf(f)]; !ok {
			if v, ok := defaultOf(f); ok {
				out[keyOf(f)] = v
			}
		}
	}
}

func (t *tree) sequence(n *yaml.Node, elem reflect.Type, path string) (any, bool) {
	if n.Kind != yaml.SequenceNode {
		t.add(path, "must be a list, not "+kindName(n),
			"Begin each entry with \"- \", or write [a, b].")
		return nil, false
	}
	out, ok := make([]any, 0, len(n.Content)), true
	for i, c := range n.Content {
		v, fits := t.value(c, elem, path+"["+strconv.Itoa(i)+"]")
		if v == nil && elem.Kind() == reflect.Struct {
			v = map[string]any{} // keeps the indices of what follows
		} else if v == nil {
			v = reflect.Zero(elem).Interface()
		}
		out, ok = append(out, v), ok && fits
	}
	return out, ok
}

func (t *tree) scalar(n *yaml.Node, typ reflect.Type, path string) (any, bool) {
	v, what, mend := scalar(n, typ)
	if what != "" {
		t.add(path, what, mend)
		return nil, false
	}
	return v, true
}

// scalar is the value of n as typ, or what is wrong and how to mend it.
func scalar(n *yaml.Node, typ reflect.Type) (v any, what, mend string) {
	given := fmt.Sprintf("must be %s, not %s", typeName(typ), kindName(n))
	switch {
	case typ == sizeType:
		if n.Tag == "!!str" || n.Tag == "!!int" {
			size, err := ParseSize(n.Value)
			if err == nil {
				return int64(size), "", ""
			}
			given = err.Error()
		}
		return nil, given, "Write a whole number with a unit, such as 10GiB; units: " + sizeUnits +
			"."
	case typ == durationType:
		if n.Tag == "!!str" {
			d, err := time.ParseDuration(n.Value)
			if err == nil {
				return int64(d), "", ""
			}
			given = fmt.Sprintf("%s is not a duration", printable(strconv.Quote(n.Value)))
		}
		return nil, given, "Write a number with a unit, such as 50us, 10ms or 5s."
	case typ.Kind() == reflect.Bool:
		if b, err := strconv.ParseBool(n.Value); n.Tag == "!!bool" && err == nil {
			return b, "", ""
		}
		return nil, given, "Write true or false."
	case typ.Kind() == reflect.String:
		if n.Tag == "!!str" {
			return n.Value, "", ""
		}
		if n.Tag == "!!null" && n.Value == "" {
			return nil, "has no value", "Give it one, or delete the key."
		}
		return nil, given, "Put it in quotes: " + strconv.Quote(printable(n.Value)) + "."
	}
	return integer(n, typ, given)
}

func integer(n *yaml.Node, typ reflect.Type, given string) (v any, what, mend string) {
	lo, hi := int64(math.MinInt64), int64(math.MaxInt64)
	switch typ.Kind() {
	case reflect.Uint8:
		lo, hi = 0, math.MaxUint8
	case reflect.Uint16:
		lo, hi = 0, math.MaxUint16
	case reflect.Uint32:
		lo, hi = 0, math.MaxUint32
	}
	if n.Tag != "!!int" {
		return nil, given, "Write a whole number without quotes or unit."
	}
	i, err := strconv.ParseInt(n.Value, 0, 64)
	if err != nil || i < lo || i > hi {
		return nil, printable(n.Value) + " is out of range",
			fmt.Sprintf("Write a number from %d to %d.", lo, hi)
	}
	return i, "", ""
}

// kindName says what a node is, for "must be X, not Y".
func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.Tag {
	case "!!null":
		if n.Value == "" {
			return "empty"
		}
		return "YAML's null (nothing)"
	case "!!str":
		return "the text " + strconv.Quote(printable(n.Value))
	case "!!bool":
		return "the truth value " + printable(n.Value)
	}
	return "the number " + printable(n.Value)
}

func typeName(t reflect.Type) string {
	switch {
	case t == sizeType:
		return "a size in bytes"
	case t == durationType:
		return "a duration"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.String:
		return "text"
	}
	return "a whole number"
}

// printable caps a value that a message repeats and makes control characters visible.
func printable(s string) string {
	if len(s) > 64 {
		s = s[:64] + "..."
	}
	return strings.Trim(strconv.Quote(s), `"`)
}
