package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"
)

// EnvPrefix begins the names of the environment variables that override keys.
const EnvPrefix = "NVMF_TARGET_"

// maxFile is the largest configuration file in bytes.
const maxFile = 4 << 20

// keyDelimiter is viper's separator of nested keys; the usual dot would cut an NQN.
const keyDelimiter = "::"

// Load reads and checks a configuration file. environ is os.Environ(), backends are the known kinds
// of storage. The error is a Problems with every error found, or explains why the file cannot be
// read.
//
// The options replace files by edits and bound the time of programs.
func Load(file string, environ []string, backends []Backend, options ...Option) (*Config, error) {
	data, err := read(file)
	if err != nil {
		return nil, err
	}
	return Parse(file, data, environ, backends, options...)
}

// LoadAll is Load for callers that report all errors at once. See ParseAll.
func LoadAll(file string, environ []string, backends []Backend) (*Config, error) {
	data, err := read(file)
	if err != nil {
		return nil, err
	}
	return ParseAll(file, data, environ, backends)
}

func read(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w. Name an existing file with --config", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	return data, nil
}

// Faulty reports whether there is an error in the value at path or inside it.
func (c *Config) Faulty(path string) bool {
	return c.src != nil && slices.ContainsFunc(c.src.problems, func(p Problem) bool {
		rest, inside := strings.CutPrefix(p.Path, path)
		return !p.Warning && inside && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// Parse checks the text of a configuration file; file is its name for messages. See Load.
func Parse(file string, data []byte, environ []string, backends []Backend, options ...Option,
) (*Config, error) {
	c, err := ParseAll(file, data, environ, backends, options...)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// ParseAll is Parse for callers that report all errors at once. With an error it also returns the
// usable part of the configuration, nil if there is none. Faulty reports the unusable values.
func ParseAll(file string, data []byte, environ []string, backends []Backend, options ...Option,
) (*Config, error) {
	d := newDecoder(file, environ, backends)
	for _, o := range options {
		o.apply(d)
	}
	c := &Config{src: d.source}
	keys := c.keys()
	doc := d.document("", data)
	if doc != nil {
		doc = d.include(c, keys, doc, maxFile-len(data))
	}
	decoded := len(d.problems) == 0
	if decoded {
		// viper lays the environment over the file; both are YAML nodes until they are decoded.
		v := viper.NewWithOptions(viper.KeyDelimiter(keyDelimiter))
		if err := v.MergeConfigMap(d.tree(keys, doc, "")); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		d.environment(v, keys, environ)
		for _, l := range leaves(keys, "") {
			d.set(l, v.Get(l.viperKey()))
		}
		if d.values <= maxValues {
			c.nameListeners()
			d.resolveListeners(c)
			d.requireSecurity(c)
			c.settings = c.flatten(keys) // before validate replaces values
			d.validate(c)
		} else {
			d.problems, d.warnings = nil, nil
			d.add("", fmt.Sprintf("more than %d values, aliases expanded", maxValues),
				"Make the configuration smaller.")
		}
	}
	c.printed = d.printed
	c.warnings = d.warnings
	if err := d.err(); err != nil {
		if !decoded || d.values > maxValues {
			return nil, err
		}
		return c, err
	}
	return c, nil
}

func newDecoder(file string, environ []string, backends []Backend) *decoder {
	d := &decoder{
		source: newSource(file), backends: backends, used: map[string]string{},
		unusual: map[string]bool{},
		files:   map[*yaml.Node]string{}, environ: map[string]string{},
		programsTime: programsTime, ctx: context.Background(),
	}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		d.environ[name] = value
	}
	return d
}

// document parses a file; "" is the main file. It returns nil unless the file is one YAML document.
func (s *source) document(file string, data []byte) *yaml.Node {
	if len(data) > maxFile {
		s.add("", fmt.Sprintf("the file is larger than %v", Size(maxFile)),
			"Is it a configuration file?")
		return nil
	}
	var doc, more yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF) && file != "":
		return nil // only comments
	case errors.Is(err, io.EOF):
		s.add("", "the file is empty", "A configuration needs listeners and subsystems.")
		return nil
	case err != nil:
		s.syntaxError(file, data)
		return nil
	}
	switch err := dec.Decode(&more); {
	case err == nil:
		s.addAt(place{file: file, line: more.Line, column: more.Column}, "",
			"a second YAML document begins here", "Delete the line \"---\" and merge the two.")
		return nil
	case !errors.Is(err, io.EOF):
		s.syntaxError(file, data)
		return nil
	}
	return doc.Content[0]
}

// tree returns a mapping in the form that viper merges: sections are maps, all other values are
// nodes.
func (d *decoder) tree(keys []Key, n *yaml.Node, path string) map[string]any {
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
		if at == includeKey || at == managedKey {
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

func (l leaf) variable() string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(l.path, ".", "_"))
}

// set decodes the value that viper has for a key; from is nil if nothing sets it.
func (d *decoder) set(l leaf, from any) {
	if g, ok := from.(given); ok {
		d.variable = g.variable
		d.value(l.Value, g.node, l.path)
	} else if l.Required != "" && !d.bad[""] {
		d.add(l.path, "is missing", l.Required)
	}
}

// environment gives viper the variables that begin with EnvPrefix.
func (s *source) environment(v *viper.Viper, keys []Key, environ []string) {
	known := map[string]leaf{}
	var names []string
	for _, l := range leaves(keys, "") {
		known[l.variable()] = l
		names = append(names, strings.ToLower(l.variable()))
	}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, EnvPrefix) {
			continue
		}
		l, ok := known[name]
		if !ok {
			hint := "Unset it; keys inside of lists have no variable."
			if like := nearest(name, names); like != "" {
				hint = "Did you mean " + strings.ToUpper(like) + "?"
			}
			s.addAt(place{variable: printable(name)}, "", "no such key", hint)
			continue
		}
		var n yaml.Node
		if err := yaml.Unmarshal([]byte(value), &n); err != nil || len(n.Content) == 0 {
			s.addAt(place{variable: name}, l.path, "the value is not valid YAML",
				"Write the value as it would follow the key in the file.")
			continue
		}
		v.Set(l.viperKey(), given{n.Content[0], name})
	}
}
