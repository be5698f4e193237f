package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nvmf-target/nvmf-target/config/lang"
)

// EnvPrefix begins the names of the environment variables that override keys.
const EnvPrefix = "NVMF_TARGET_"

// Names of the language that callers of Load need.
type (
	// Problem is one error or warning about a configuration.
	Problem = lang.Problem
	// Problems is every error and warning found.
	Problems = lang.Problems
	// Option changes how Load reads a configuration: an Edit, the result of Printed or lang.Within.
	Option = lang.Option
	// Edit is a pending change of a managed directory.
	Edit = lang.Edit
)

// Load reads and checks a configuration file. environ is os.Environ(), backends the known kinds of
// storage. The error is a Problems with all errors, or tells why the file cannot be read.
//
// The options replace files by edits and bound the time of programs.
func Load(file string, environ []string, backends []Backend, options ...Option) (*Config, error) {
	data, err := lang.ReadFile(file, false) // a reload would wait for the writer of a pipe
	if err != nil {
		return nil, err
	}
	return Parse(file, data, environ, backends, options...)
}

// Parse checks the text of a configuration file; file is its name for messages. See Load.
func Parse(file string, data []byte, environ []string, backends []Backend, options ...Option,
) (*Config, error) {
	c, err := read(file, data, environ, backends, options...)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// LoadAll is Load for commands, which may read a pipe and report all errors at once. With an error
// it also returns the usable part of the configuration, nil if there is none. Faulty reports the
// unusable values.
func LoadAll(file string, environ []string, backends []Backend) (*Config, error) {
	data, err := lang.ReadFile(file, true)
	if err != nil {
		return nil, err
	}
	return read(file, data, environ, backends)
}

func read(file string, data []byte, environ []string, backends []Backend, options ...Option,
) (*Config, error) {
	d := lang.NewDecoder(file, environ, options...)
	c := &Config{src: d.Source}
	keys := c.keys(backends)
	usable := d.Decode(lang.Format{
		Keys: keys, Prefix: EnvPrefix, Empty: "A configuration needs listeners and subsystems.",
	}, data)
	if c.printed = d.Printed(); !usable {
		return nil, d.Err()
	}
	v := &validator{Decoder: d, c: c, backends: backends}
	c.nameListeners()
	v.resolveListeners()
	v.requireSecurity()
	c.settings = c.flatten(keys) // before validate replaces values
	v.validate()
	return c, d.Err()
}

// source returns the origin of the values.
func (c *Config) source() *lang.Source {
	if c.src == nil {
		return lang.NewSource("configuration")
	}
	return c.src
}

// Warnings returns warnings about the text, independent of the machine.
func (c *Config) Warnings() Problems { return c.source().Warnings() }

// Faulty reports whether there is an error in the value at path or inside it.
func (c *Config) Faulty(path string) bool { return c.source().Faulty(path) }

// Problem makes an error about the value at path ("subsystems[0].namespaces[1].path") that was
// found outside this package. It adds the place of the value in the file.
func (c *Config) Problem(path, what, hint string) Problem {
	return c.source().Problem(path, what, hint)
}

// Warning is Problem for a warning.
func (c *Config) Warning(path, what, hint string) Problem {
	p := c.Problem(path, what, hint)
	p.Warning = true
	return p
}

// Printed is an option that reuses the output of the programs that ran for c.
func (c *Config) Printed() Option { return c.printed }

// Schema returns the JSON Schema of a file with these backends; see lang.Mapping.JSON.
func Schema(backends []Backend) ([]byte, error) {
	return lang.Mapping(Keys(backends)).JSON("Configuration of nvmf-target",
		lang.Schema{"storage": (&storageValue{backends: backends}).Schema()})
}

// Keys are the keys of a file with these backends.
func Keys(backends []Backend) []lang.Key { return new(Config).keys(backends) }

// validator checks several values of a configuration together.
type validator struct {
	*lang.Decoder
	c        *Config
	backends kinds
	sockets  []socket
}

// validate checks several values together and reports conflicts.
func (v *validator) validate() {
	c := v.c
	if n := len(c.Reactors.CPUs); n > 0 && c.Reactors.Count != 0 && c.Reactors.Count != n {
		v.Add("reactors.count",
			fmt.Sprintf("%d reactors, but reactors.cpus names %d CPUs", c.Reactors.Count, n),
			"Delete reactors.count, or name one CPU for each reactor.")
	}
	c.RDMA.InCapsuleSize = cmp.Or(c.RDMA.InCapsuleSize, -1) // none; 0 is the default
	for i := range c.Listeners {
		v.listener(&c.Listeners[i], fmt.Sprintf("listeners[%d]", i))
	}
	v.endpoint("metrics", &c.Metrics)
	v.endpoint("web", &c.Web)
	v.webTargets(c)
	c.Control.validate(v)
	for i := range c.Hosts {
		v.limits(&c.Hosts[i].Limits, fmt.Sprintf("hosts[%d]", i))
		v.authentication(&c.Hosts[i].Authentication, fmt.Sprintf("hosts[%d]", i))
	}
	v.discovery(c)
	v.secureOnly(c)
	v.group(c)
	v.some("listeners", len(c.Listeners))
	v.some("subsystems", len(c.Subsystems))
	for i := range c.Subsystems {
		v.subsystem(c, &c.Subsystems[i], fmt.Sprintf("subsystems[%d]", i))
	}
}

// need reports a key at path that is given but has no effect without one of others (met).
func (v *validator) need(path string, given, met bool, others ...string) {
	if !given || met || slices.ContainsFunc(others, v.Bad) {
		return
	}
	entry := path[:strings.LastIndexByte(path, '.')]
	for i, other := range others {
		if strings.Contains(entry, "]") { // of the same entry of a list
			others[i] = strings.TrimPrefix(other, entry+".")
		}
	}
	v.Add(path, "has no effect without "+strings.Join(others, " or "), "Delete it, or set that.")
}

// some reports an empty list, which only a target with a managed directory may have.
func (v *validator) some(list string, entries int) {
	if entries > 0 || v.c.Managed != "" || v.Bad("") {
		return
	}
	what := "is missing"
	if v.Given(list) {
		what = "is empty"
	}
	v.Add(list, what, "Add at least one entry, or set managed.")
}
