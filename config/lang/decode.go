package lang

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

// maxValues bounds the values after aliases are expanded: a small file cannot become a huge one.
const maxValues = 100_000

// Decoder decodes YAML nodes into Values. It records the place of each value and every error.
type Decoder struct {
	*Source
	format   Format
	variable string // the environment variable being read, "" for the file
	values   int
	partial  bool                  // some of the text is missing, because it is not YAML
	used     map[string]string     // the paths of values that may appear only once
	files    map[*yaml.Node]string // the files of all nodes of included files
	edits    []Edit
	environ  map[string]string
	expanded int // bytes that variables have added to the values
	// directory is the one of DirectoryKey, "" for none.
	directory    string
	printed      map[string]string // by the arguments of programs; nil before the first program
	known        map[string]string // see Printed
	ctx          context.Context   // of programs
	patience     time.Time         // of all programs together, which have programsTime
	programsTime time.Duration
}

// NewDecoder returns a decoder; file is the name of the configuration file, environ os.Environ().
func NewDecoder(file string, environ []string, options ...Option) *Decoder {
	d := &Decoder{
		Source: NewSource(file), used: map[string]string{}, files: map[*yaml.Node]string{},
		environ: map[string]string{}, programsTime: programsTime, ctx: context.Background(),
	}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		d.environ[name] = value
	}
	for _, o := range options {
		o.apply(d)
	}
	return d
}

// value decodes a node, which may be an alias.
func (d *Decoder) value(v Value, n *yaml.Node, path string) {
	if n, ok := d.enter(n, path); ok {
		v.Decode(d, n, path)
	}
}

// enter records the place of the value at path and returns its node, nil after too many values.
func (d *Decoder) enter(n *yaml.Node, path string) (*yaml.Node, bool) {
	d.places[path] = d.placeOf(n)
	d.values++
	return resolved(n), d.values <= maxValues
}

func (d *Decoder) placeOf(n *yaml.Node) place {
	return place{file: d.files[n], line: n.Line, column: n.Column, variable: d.variable}
}

// Once reports a value that is already used by another key of the same kind.
func (d *Decoder) Once(kind, value, path, hint string) {
	if value == "" {
		return
	}
	first, used := d.used[kind+" "+value]
	if !used {
		d.used[kind+" "+value] = path
		return
	}
	d.Add(path, fmt.Sprintf("%s is used already by %s (%s)", Printable(value), first,
		d.other(d.find(first), d.find(path))), hint)
}

// Mapping is a mapping of keys to values.
type Mapping []Key

func (m Mapping) Type() string { return "mapping" }

// String implements Value: the keys not at their defaults, for entries without a name.
func (m Mapping) String() string {
	var all Settings
	m.Flatten(&all, Setting{})
	if len(all.list) == 0 {
		return ""
	}
	words := make([]string, len(all.list))
	for i, s := range all.list {
		words[i] = s.key + ": " + s.value
	}
	return "{" + strings.Join(words, ", ") + "}"
}

func (m Mapping) Decode(d *Decoder, n *yaml.Node, path string) { d.Mapping(n, path, m, nil) }

// Mapping decodes a mapping with these keys. It reports all other keys, with the error that foreign
// returns for them, or as unknown if foreign is nil or returns "". Known suppresses the error.
func (d *Decoder) Mapping(n *yaml.Node, path string, keys []Key,
	foreign func(name string) (what, hint string),
) {
	given := d.entries(n, path, keys, foreign)
	for _, e := range given {
		d.value(e.key.Value, e.node, e.path)
	}
	for i, k := range keys {
		if k.Required != "" && !d.bad[path] && !d.partial &&
			!slices.ContainsFunc(given, func(e entry) bool { return e.key == &keys[i] }) {
			d.Add(join(path, k.Name), "is missing", k.Required)
		}
	}
}

// Known is the text of an error that need not be reported, see Decoder.Mapping.
const Known = "known"

// entry is a key of a mapping and its value.
type entry struct {
	key  *Key
	node *yaml.Node
	path string
}

// entries returns the entries of a mapping that are among keys, and reports all others.
func (d *Decoder) entries(n *yaml.Node, path string, keys []Key,
	foreign func(name string) (what, hint string),
) (given []entry) {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.Name
	}
	if n.Kind != yaml.MappingNode {
		d.Add(path, "must be a mapping of keys to values, not "+KindName(n),
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
		sub, index := join(path, Printable(key.Value)), slices.Index(names, key.Value)
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
			if key.Value == k.Name+FileSuffix {
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
func (d *Decoder) unknown(at place, path, key string, names []string,
	foreign func(name string) (what, hint string),
) {
	what, hint := "", ""
	if foreign != nil {
		what, hint = foreign(key)
	}
	switch like := Nearest(key, names); {
	case what == Known:
		return
	case what != "":
	case like != "":
		what, hint = "unknown key", fmt.Sprintf("Did you mean %q?", like)
		d.bad[join(path, like)] = true // not missing, but misspelt
	default:
		what, hint = "unknown key", "Delete it; known here: "+strings.Join(names, ", ")+"."
	}
	d.addAt(at, join(path, Printable(key)), what, hint)
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

// List is a list of mappings or Unique values in any order. elem makes an entry with its defaults.
func List[T any](p *[]T, least, most int, elem func(*T) Value) Value {
	return &list[T]{p: p, least: least, most: most, elem: elem}
}

// Sequence is a List in a meaningful order.
func Sequence[T any](p *[]T, least, most int, elem func(*T) Value) Value {
	return &list[T]{p: p, least: least, most: most, elem: elem, ordered: true}
}

func (l *list[T]) Type() string { return "list of: " + l.Entry().Type() }

func (l *list[T]) String() string { return "" }

// Entry returns the Value of an entry, for the documentation.
func (l *list[T]) Entry() Value { return l.elem(new(T)) }

// entries returns the Values of the entries that were decoded.
func (l *list[T]) entries() []Value { return l.values }

func (l *list[T]) Decode(d *Decoder, n *yaml.Node, path string) {
	if n.Kind != yaml.SequenceNode {
		d.Add(path, "must be a list, not "+KindName(n),
			"Begin each entry with \"- \", or write [a, b].")
		return
	}
	switch size := len(n.Content); {
	case size < l.least:
		d.Add(path, "is empty", "Add at least one entry.")
	case size > l.most:
		d.Add(path, fmt.Sprintf("%d entries are too many", size),
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

// KindName names the kind of a node, for "must be X, not Y".
func KindName(n *yaml.Node) string {
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
		return "the text " + strconv.Quote(Printable(n.Value))
	case "!!bool":
		return "the truth value " + Printable(n.Value)
	}
	return "the number " + Printable(n.Value)
}

// Printable caps a value for a message and makes control characters visible.
func Printable(s string) string {
	s = secret.Mask(s) // a key in the wrong place
	if len(s) > 64 {
		s = s[:64] + "..."
	}
	return strings.Trim(strconv.Quote(s), `"`)
}
