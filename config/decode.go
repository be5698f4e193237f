package config

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/internal/secret"
)

// maxValues bounds the values of a configuration after aliases are expanded, so that a small file
// cannot become a huge one.
const maxValues = 100_000

// decoder decodes YAML nodes into Values. It remembers the place of each value and reports every
// error.
type decoder struct {
	*source
	backends     []Backend
	variable     string // the environment variable being read, "" for the file
	values       int
	used         map[string]string     // the paths of values that may appear only once
	sockets      []socket              // listening sockets
	unusual      map[string]bool       // the NQNs that have been warned of
	files        map[*yaml.Node]string // the files of all nodes of included files
	edits        []Edit
	environ      map[string]string
	expanded     int // bytes that variables have added to the values
	managed      string
	printed      map[string]string // see Config; nil before the first program
	known        map[string]string // see Printed
	ctx          context.Context   // of programs
	patience     time.Time         // of all programs together, which have programsTime
	programsTime time.Duration
}

// value decodes a node, which may be an alias.
func (d *decoder) value(v Value, n *yaml.Node, path string) {
	if n, ok := d.enter(n, path); ok {
		v.decode(d, n, path)
	}
}

// enter records the place of the value at path and returns its node, unless there are too many
// values.
func (d *decoder) enter(n *yaml.Node, path string) (*yaml.Node, bool) {
	d.places[path] = d.placeOf(n)
	d.values++
	return resolved(n), d.values <= maxValues
}

func (d *decoder) placeOf(n *yaml.Node) place {
	return place{file: d.files[n], line: n.Line, column: n.Column, variable: d.variable}
}

// once reports a value that is already used by another key of the same kind.
func (d *decoder) once(kind, value, path, hint string) {
	if value == "" {
		return
	}
	first, used := d.used[kind+" "+value]
	if !used {
		d.used[kind+" "+value] = path
		return
	}
	d.add(path, fmt.Sprintf("%s is used already by %s (%s)", printable(value), first,
		d.other(d.find(first), d.find(path))), hint)
}

// Mapping is a mapping of keys to values.
type Mapping []Key

// Type implements Value.
func (m Mapping) Type() string { return "mapping" }

// String implements Value: the keys that are not at their defaults, for entries of lists without a
// name.
func (m Mapping) String() string {
	var o object
	if m.flatten(&o, setting{}); len(o.settings) == 0 {
		return ""
	}
	words := make([]string, len(o.settings))
	for i, s := range o.settings {
		words[i] = s.key + ": " + s.value
	}
	return "{" + strings.Join(words, ", ") + "}"
}

func (m Mapping) decode(d *decoder, n *yaml.Node, path string) {
	given := d.entries(n, path, m, nil)
	for _, e := range given {
		d.value(e.key.Value, e.node, e.path)
	}
	d.required(m, given, path)
}

// entry is a key of a mapping and its value.
type entry struct {
	key  *Key
	node *yaml.Node
	path string
}

// entries returns the entries of a mapping that are among keys. It reports all others, with the
// error that foreign returns for them, or as unknown if foreign is nil or returns "".
func (d *decoder) entries(n *yaml.Node, path string, keys []Key,
	foreign func(name string) (what, hint string),
) (given []entry) {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.Name
	}
	if n.Kind != yaml.MappingNode {
		d.add(path, "must be a mapping of keys to values, not "+kindName(n),
			"Its keys are: "+strings.Join(names, ", ")+".")
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, at := n.Content[i], d.placeOf(n.Content[i])
		if key.Kind != yaml.ScalarNode || key.Tag == "!!merge" {
			d.addAt(at, path, "merge keys and composite keys are not supported",
				"Write the keys out.")
			continue
		}
		sub, index := join(path, printable(key.Value)), slices.Index(names, key.Value)
		if index < 0 {
			index = fileKey(keys, key.Value)
		}
		if index < 0 {
			d.unknown(at, path, key.Value, names, foreign)
			continue
		}
		same := slices.IndexFunc(given, func(e entry) bool { return e.key == &keys[index] })
		if same >= 0 {
			d.addAt(at, sub, "given twice, first in "+d.other(d.placeOf(given[same].node), at),
				"Delete one of the two.")
			continue
		}
		value := n.Content[i+1]
		if k := keys[index]; key.Value != k.Name {
			sub = join(path, k.Name)
			if key.Value == k.Name+fileSuffix {
				value = d.fromFile(value, sub, k.Secret)
			} else {
				value = d.fromProgram(value, sub)
			}
		}
		given = append(given, entry{&keys[index], value, sub})
	}
	return given
}

// unknown reports a key that is not in names, with the name that it resembles, if any.
func (d *decoder) unknown(at place, path, key string, names []string,
	foreign func(name string) (what, hint string),
) {
	what, hint := "", ""
	if foreign != nil {
		what, hint = foreign(key)
	}
	switch like := nearest(key, names); {
	case what == known:
		return
	case what != "":
	case removed[key] != "":
		what, hint = "unknown key", removed[key]
	case like != "":
		what, hint = "unknown key", fmt.Sprintf("Did you mean %q?", like)
		d.bad[join(path, like)] = true // not missing, but misspelt
	default:
		what, hint = "unknown key", "Delete it; known here: "+strings.Join(names, ", ")+"."
	}
	d.addAt(at, join(path, printable(key)), what, hint)
}

// removed has the hints for keys of earlier versions.
var removed = map[string]string{
	"spin_share":      "It was removed. Delete it; reactors.spin bounds what polling costs.",
	"busy_poll":       "It was removed, since it brought nothing. Delete it.",
	"sqpoll":          "It was removed, since it brought nothing. Delete it.",
	"iopoll":          "It was removed, since it brought nothing. Delete it.",
	"workers":         "It was removed. Delete it: threads are started as they are needed.",
	"dax":             "It was removed. Delete it: files on persistent memory are read as others.",
	"shared_receives": "It is called srq_size now.",
}

// some adds a problem if a list has no entries. Only a target with a managed directory may have an
// empty list.
func (d *decoder) some(c *Config, list string, entries int) {
	if entries > 0 || c.Managed != "" || d.bad[""] {
		return
	}
	what := "is missing"
	if _, given := d.places[list]; given {
		what = "is empty"
	}
	d.add(list, what, "Add at least one entry, or set managed.")
}

// required reports required keys that are missing.
func (d *decoder) required(keys []Key, given []entry, path string) {
	for i, k := range keys {
		if k.Required != "" && !d.bad[path] &&
			!slices.ContainsFunc(given, func(e entry) bool { return e.key == &keys[i] }) {
			d.add(join(path, k.Name), "is missing", k.Required)
		}
	}
}

// list is a Value with any number of entries.
type list[T any] struct {
	p           *[]T
	least, most int
	elem        func(*T) Value
	// ordered: the order of the entries matters.
	ordered bool
	values  []Value
}

// List is a list of mappings or Unique values in any order. elem makes the Value of an entry and
// sets the defaults of the entry.
func List[T any](p *[]T, least, most int, elem func(*T) Value) Value {
	return &list[T]{p: p, least: least, most: most, elem: elem}
}

// Sequence is a List in a meaningful order.
func Sequence[T any](p *[]T, least, most int, elem func(*T) Value) Value {
	return &list[T]{p: p, least: least, most: most, elem: elem, ordered: true}
}

// Type implements Value.
func (l *list[T]) Type() string { return "list of: " + l.entry().Type() }

// String implements Value.
func (l *list[T]) String() string { return "" }

// entry returns the Value of an entry, for the documentation.
func (l *list[T]) entry() Value { return l.elem(new(T)) }

// decoded returns the Values of the entries that were decoded.
func (l *list[T]) decoded() []Value { return l.values }

func (l *list[T]) decode(d *decoder, n *yaml.Node, path string) {
	if n.Kind != yaml.SequenceNode {
		d.add(path, "must be a list, not "+kindName(n),
			"Begin each entry with \"- \", or write [a, b].")
		return
	}
	switch size := len(n.Content); {
	case size < l.least:
		d.add(path, "is empty", "Add at least one entry.")
	case size > l.most:
		d.add(path, fmt.Sprintf("%d entries are too many", size),
			fmt.Sprintf("At most %d.", l.most))
		return
	}
	*l.p, l.values = make([]T, len(n.Content)), make([]Value, len(n.Content))
	for i, c := range n.Content {
		l.values[i] = l.elem(&(*l.p)[i])
		d.value(l.values[i], c, path+"["+strconv.Itoa(i)+"]")
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// kindName names the kind of a node, for "must be X, not Y".
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

// printable caps a value for a message and makes control characters visible.
func printable(s string) string {
	s = secret.Mask(s) // a key in the wrong place
	if len(s) > 64 {
		s = s[:64] + "..."
	}
	return strings.Trim(strconv.Quote(s), `"`)
}
