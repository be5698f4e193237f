package config

import (
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The struct tags of Config are the schema: mapstructure names a key, default is its default in
// YAML, validate its rules.

func keyOf(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("mapstructure"), ",")
	return key
}

// fieldsOf is the fields that have a key, with those of embedded structs.
func fieldsOf(t reflect.Type) []reflect.StructField {
	var fields []reflect.StructField
	for i := range t.NumField() {
		switch f := t.Field(i); {
		case f.Anonymous:
			fields = append(fields, fieldsOf(f.Type)...)
		case keyOf(f) != "":
			fields = append(fields, f)
		}
	}
	return fields
}

func fieldOf(t reflect.Type, key string) (reflect.StructField, bool) {
	for _, f := range fieldsOf(t) {
		if keyOf(f) == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for _, f := range fieldsOf(t) {
		keys = append(keys, keyOf(f))
	}
	return keys
}

// defaultOf is the default of a field as a plain value.
func defaultOf(f reflect.StructField) (any, bool) {
	tag, ok := f.Tag.Lookup("default")
	if !ok {
		return nil, false
	}
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(tag), &n); err != nil {
		panic("config: default of " + f.Name + ": " + err.Error())
	}
	v, what, _ := scalar(n.Content[0], f.Type)
	if what != "" {
		panic("config: default of " + f.Name + ": " + what)
	}
	return v, true
}

// isSection says that t is a struct directly below Config (log, tcp, ...) and not the element of a
// list.
func isSection(t reflect.Type) bool {
	top := reflect.TypeFor[Config]()
	for i := range top.NumField() {
		if top.Field(i).Type == t {
			return true
		}
	}
	return false
}

// leaf is a key outside of lists' elements; it has a default and an environment variable.
type leaf struct {
	keys  []string
	field reflect.StructField
}

func leaves(t reflect.Type, above ...string) []leaf {
	var out []leaf
	for _, f := range fieldsOf(t) {
		keys := append(append([]string(nil), above...), keyOf(f))
		if f.Type.Kind() == reflect.Struct {
			out = append(out, leaves(f.Type, keys...)...)
		} else {
			out = append(out, leaf{keys, f})
		}
	}
	return out
}

func (l leaf) path() string     { return strings.Join(l.keys, ".") }
func (l leaf) viperKey() string { return strings.Join(l.keys, keyDelimiter) }
func (l leaf) variable() string { return EnvPrefix + strings.ToUpper(strings.Join(l.keys, "_")) }

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// nearest is the candidate closest to word if a slip of the pen could explain the difference, else
// "".
func nearest(word string, candidates []string) string {
	best, limit := "", max(1, len(word)/3)
	for _, c := range candidates {
		if d := distance(strings.ToLower(word), c); d <= limit {
			best, limit = c, d-1
		}
	}
	return best
}

// distance is the number of letters to insert, delete, replace or swap with a neighbour to make a
// into b.
func distance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range b {
		d[0][j+1] = j + 1
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
