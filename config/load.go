package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"
)

// EnvPrefix begins the names of the environment variables that override keys.
const EnvPrefix = "NVMF_TARGET_"

// maxFile is the largest configuration file in bytes.
const maxFile = 4 << 20

// keyDelimiter is viper's separator of nested keys; the usual dot would cut an NQN.
const keyDelimiter = "::"

// Rules are checks that belong to other packages and are applied while the places of values are
// known.
type Rules struct {
	// SubsystemNQN and HostNQN say what is wrong with an NQN; nil accepts any.
	SubsystemNQN, HostNQN func(string) error
}

// Load reads and checks a configuration file. environ is os.Environ(). The error is a Problems with
// everything found, or says why the file cannot be read.
func Load(file string, environ []string, rules Rules) (*Config, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w. Name an existing file with --config", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	return Parse(file, data, environ, rules)
}

// Parse checks the text of a configuration file; file is its name for messages. See Load.
func Parse(file string, data []byte, environ []string, rules Rules) (*Config, error) {
	src := newSource(file)
	if len(data) > maxFile {
		src.add("", fmt.Sprintf("the file is larger than %v", Size(maxFile)),
			"Is it a configuration file?")
		return nil, src.err()
	}
	v := viper.NewWithOptions(viper.KeyDelimiter(keyDelimiter))
	for _, l := range leaves(reflect.TypeFor[Config]()) {
		if d, ok := defaultOf(l.field); ok {
			v.SetDefault(l.viperKey(), d)
		}
	}
	values, ok := src.document(data)
	if !ok {
		return nil, src.err()
	}
	if err := v.MergeConfigMap(values); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	src.environment(v, environ)
	c := &Config{src: src}
	strict := func(d *mapstructure.DecoderConfig) {
		d.ErrorUnused, d.WeaklyTypedInput, d.DecodeHook = true, false, nil
	}
	if err := v.Unmarshal(c, strict); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	c.validate(rules)
	if err := src.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// document parses the file. ok is false if there is nothing that further checks could look at.
func (s *source) document(data []byte) (values map[string]any, ok bool) {
	var doc, more yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		s.add("", "the file is empty", "A configuration needs listeners and subsystems.")
		return nil, false
	case err != nil:
		s.syntaxError(err)
		return nil, false
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		if err != nil {
			s.syntaxError(err)
		} else {
			s.addAt(place{line: more.Line, column: more.Column}, "",
				"a second YAML document begins here", "Delete the line \"---\" and merge the two.")
		}
		return nil, false
	}
	t := tree{source: s}
	v, _ := t.value(doc.Content[0], reflect.TypeFor[Config](), "")
	if t.values > maxValues {
		s.add("", fmt.Sprintf("more than %d values, aliases expanded", maxValues),
			"Make the configuration smaller.")
		return nil, false
	}
	values, ok = v.(map[string]any)
	return values, ok
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

func (s *source) syntaxError(err error) {
	text, at := err.Error(), place{}
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		text = text[len(m[0]):]
		at.line, _ = strconv.Atoi(m[1])
	}
	s.addAt(at, "", "not valid YAML: "+text,
		"Look at this line and its neighbours: indentation (blanks, no tabs), a missing \": \", or text with ':' or '#' that needs quotes.")
}

// environment applies the variables that begin with EnvPrefix to v.
func (s *source) environment(v *viper.Viper, environ []string) {
	known := map[string]leaf{}
	var names []string
	for _, l := range leaves(reflect.TypeFor[Config]()) {
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
			mend := "Unset it; keys inside of lists have no variable."
			if like := nearest(name, names); like != "" {
				mend = "Did you mean " + strings.ToUpper(like) + "?"
			}
			s.addAt(place{variable: printable(name)}, "", "no such key", mend)
			continue
		}
		var n yaml.Node
		if err := yaml.Unmarshal([]byte(value), &n); err != nil || len(n.Content) == 0 {
			s.addAt(place{variable: name}, l.path(), "the value is not valid YAML",
				"Write what would stand behind the key in the file.")
			continue
		}
		t := tree{source: s, variable: name}
		if val, ok := t.value(n.Content[0], l.field.Type, l.path()); ok {
			v.Set(l.viperKey(), val)
		}
	}
}
