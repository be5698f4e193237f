package lang

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// Format is the language of one kind of file.
type Format struct {
	// Keys are the keys of the file.
	Keys []Key
	// Prefix begins the names of the environment variables that override keys.
	Prefix string
	// Empty is the hint for an empty file.
	Empty string
}

const (
	// maxFile is the largest configuration file in bytes.
	maxFile = 4 << 20
	// keyDelimiter is viper's separator of nested keys; the usual dot would cut a name.
	keyDelimiter = "::"
)

// ReadFile reads a configuration file, or a pipe, as far as Decode looks at it.
func ReadFile(file string, pipe bool) ([]byte, error) {
	data, err := sys.ReadFile(file, maxFile, pipe)
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w. Name a regular file with --config", err)
	}
	return data, nil
}

// Decode decodes the text of a configuration file, with the files that it includes and environment
// variables laid over it. It returns false if no value can be used. Err has the errors, also of the
// values in the parts that are YAML.
func (d *Decoder) Decode(f Format, data []byte) bool {
	d.format = f
	doc := d.document("", data)
	if doc == nil {
		return false
	}
	doc = d.include(doc, maxFile-len(data))
	d.partial = len(d.problems) > 0
	// viper lays the environment over the file; both are YAML nodes until they are decoded.
	v := viper.NewWithOptions(viper.KeyDelimiter(keyDelimiter))
	if err := v.MergeConfigMap(d.tree(f.Keys, doc, "")); err != nil {
		d.Add("", err.Error(), "")
		return false
	}
	all := leaves(f.Keys, "")
	d.overlay(v, all)
	for _, l := range all {
		d.set(l, v.Get(l.viperKey()))
	}
	if d.values > maxValues {
		d.problems, d.warnings = nil, nil
		d.Add("", fmt.Sprintf("more than %d values, aliases expanded", maxValues),
			"Make the configuration smaller.")
		return false
	}
	return !d.partial
}

// document parses a file; "" is the main file. It returns nil unless the file, or a part of it, is
// one YAML document.
func (d *Decoder) document(file string, data []byte) *yaml.Node {
	if len(data) > maxFile {
		d.Add("", fmt.Sprintf("the file is larger than %v", Size(maxFile)),
			"Is it a configuration file?")
		return nil
	}
	var doc, more yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF) && file != "":
		return nil // only comments
	case errors.Is(err, io.EOF):
		d.Add("", "the file is empty", d.format.Empty)
		return nil
	case err != nil:
		d.syntaxError(file, data)
		return d.withoutFaults(file, data)
	}
	switch err := dec.Decode(&more); {
	case err == nil:
		d.addAt(place{file: file, line: more.Line, column: more.Column}, "",
			"a second YAML document begins here", "Delete the line \"---\" and merge the two.")
		return nil
	case !errors.Is(err, io.EOF):
		d.syntaxError(file, data)
		return nil
	}
	return doc.Content[0]
}

// tree returns a mapping as viper merges it: sections are maps, all other values nodes.
func (d *Decoder) tree(keys []Key, n *yaml.Node, path string) map[string]any {
	tree := map[string]any{}
	n, ok := d.enter(n, path)
	if !ok {
		return tree
	}
	for _, e := range d.entries(n, path, keys, nil) {
		if section, ok := e.key.Value.(Mapping); ok {
			tree[e.key.Name] = d.tree(section, e.node, e.path)
		} else {
			tree[e.key.Name] = given{e.node, ""}
		}
	}
	return tree
}

// given is a value from the file or, with its name, from an environment variable.
type given struct {
	node     *yaml.Node
	variable string
}

// leaf is a key outside of lists, which has an environment variable.
type leaf struct {
	*Key
	path string
}

func leaves(keys []Key, path string) (out []leaf) {
	for i, k := range keys {
		at := join(path, k.Name)
		if k.early() {
			continue
		}
		if section, ok := k.Value.(Mapping); ok {
			out = append(out, leaves(section, at)...)
		} else {
			out = append(out, leaf{&keys[i], at})
		}
	}
	return out
}

func (l leaf) viperKey() string { return strings.ReplaceAll(l.path, ".", keyDelimiter) }

// variable returns the environment variable of the key.
func (l leaf) variable(prefix string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(l.path, ".", "_"))
}

// set decodes the value that viper has for a key; from is nil if nothing sets it.
func (d *Decoder) set(l leaf, from any) {
	if g, ok := from.(given); ok {
		d.variable = g.variable
		d.value(l.Value, g.node, l.path)
	} else if l.Required != "" && !d.bad[""] && !d.partial {
		d.Add(l.path, "is missing", l.Required)
	}
}

// overlay gives viper the environment variables that begin with the prefix.
func (d *Decoder) overlay(v *viper.Viper, all []leaf) {
	known := map[string]leaf{}
	var names []string
	for _, l := range all {
		name := l.variable(d.format.Prefix)
		known[name] = l
		names = append(names, strings.ToLower(name))
	}
	for _, name := range slices.Sorted(maps.Keys(d.environ)) {
		if !strings.HasPrefix(name, d.format.Prefix) {
			continue
		}
		l, ok := known[name]
		if !ok {
			hint := "Unset it; keys inside of lists have no variable."
			if like := Nearest(name, names); like != "" {
				hint = "Did you mean " + strings.ToUpper(like) + "?"
			}
			d.addAt(place{variable: Printable(name)}, "", "no such key", hint)
			continue
		}
		var n yaml.Node
		if err := yaml.Unmarshal([]byte(d.environ[name]), &n); err != nil || len(n.Content) == 0 {
			d.addAt(place{variable: name}, l.path, "the value is not valid YAML",
				"Write the value as it would follow the key in the file.")
			continue
		}
		v.Set(l.viperKey(), given{n.Content[0], name})
	}
}
