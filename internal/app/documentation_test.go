package app

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
)

//go:generate go test -run TestDocumentation|TestBrokenFiles -update .

const documentationHead = `# Configuration

This page is made of the parser's own table; ` + "`go generate ./internal/app`" + ` writes it anew.

    nvmf-target check FILE     # every error and warning, each with its place and a hint
    nvmf-target serve FILE     # until SIGTERM or SIGINT
    nvmf-target schema          # the JSON Schema of FILE, with which editors complete and check it

` + "```yaml" + `
listeners:
  - {transport: rdma, address: 10.0.0.1, port: 4420}
  - {transport: tcp, address: 0.0.0.0, port: 4420}
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:disk0
    allow_any_host: true              # or: hosts: [nqn.2014-08.org.nvmexpress:uuid:…]
    namespaces:
      - {nsid: 1, backend: ram, size: 1GiB}
      - {nsid: 2, backend: file, path: /var/lib/nvmf-target/disk0.img, size: 10GiB, block_size: 4096}
      - {nsid: 3, backend: "null", size: 1TiB}
` + "```" + `

Sizes are whole numbers with KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, GB, TB (powers of 1000). Durations have a unit:
` + "`50us`, `10s`" + `. A key that is unknown or misspelt is an error. ` + "`--config`" + ` defaults to ` +
	"`/etc/nvmf-target/nvmf-target.yaml`" + `.

Environment variables override keys outside of lists: ` + "`NVMF_TARGET_`" + ` and the path in capitals, for instance
` + "`NVMF_TARGET_LOG_LEVEL=debug`, `NVMF_TARGET_REACTORS_CPUS='[2, 3]'`" + `. The value is YAML. A whole list can be replaced, too:
` + "`NVMF_TARGET_LISTENERS='[{transport: tcp, address: 0.0.0.0}]'`." + `

In values that are text, sizes and durations among them, ` + "`${NAME}`" + ` stands for the environment variable NAME, which must be set;
` + "`$${`" + ` is written for the characters ` + "`${`" + `. Where the value column says "or file", ` + "`KEY_file: PATH`" + ` can be written instead of
` + "`KEY: VALUE`" + `: the value is what the file has, up to 4 KiB, less the end of its line, for instance a Kubernetes secret or, as
` + "`${CREDENTIALS_DIRECTORY}/NAME`" + `, a systemd credential. The path begins at the directory of the file in which it is written. A
reload reads these files, too.

Where it says "or program", ` + "`KEY_command: [PATH, ARGUMENT, ...]`" + ` can be written as well: the value is what the program prints, up to
4 KiB. It runs as the user of the target, without capabilities, in ` + "`/`, with `PATH` and `CREDENTIALS_DIRECTORY`" + ` as its environment; more
variables are set with ` + "`[/usr/bin/env, NAME=VALUE, PATH, ...]`" + `. All programs of a configuration together have 30 s. They run at the start, and
when the file is reloaded or checked: ` + "`nvmf-target check`" + ` runs them as the user who checks it. An error shows the exit status and the first
256 bytes of standard error, without keys and long words that may be secret, never what was printed. The managed directory and requests cannot name programs.

Most of the keys below need not be set: each says when to. Changes are live: a target that runs takes them over without a pause, but
for keys and sections that say that a change needs a restart.
`

const backendsHead = `
## Backends

The key ` + "`backend`" + ` of a namespace names one of these. ` + "`delay` and `error`" + ` are wrappers: they pass everything on to the storage
under their key ` + "`of`, which is a mapping of `backend`" + ` and its keys, to try what a disk may do:

` + "```yaml" + `
      - {nsid: 4, backend: delay, latency: 2ms, jitter: 1ms, of: {backend: ram, size: 1GiB}}
      - nsid: 5               # a disk with a bad spot, and every thousandth write fails
        backend: error
        operations: [read]
        offset: 512MiB
        length: 64KiB
        of: {backend: error, operations: [write], one_in: 1000, of: {backend: ram, size: 1GiB}}
` + "```" + `

Changes of ` + "`backend`, `of`" + ` and the keys below are live, unless the namespace has been in memory (` + "`ram`" + `): its content would be lost, so the change
needs a restart.
`

// TestDocumentation: docs/configuration.md has every key, with its default and its limits.
func TestDocumentation(t *testing.T) {
	var b strings.Builder
	b.WriteString(documentationHead)
	for _, s := range allSections() {
		title := "The file"
		if s.Path != "" {
			title = "`" + s.Path + "`"
		}
		if s.Restart {
			s.Doc += " A change needs a restart."
		}
		writeSection(&b, "## "+title, s.Doc, s.Keys)
	}
	b.WriteString(backendsHead)
	for _, k := range volumes.Backends {
		writeSection(&b, "### `"+k.Name+"`", k.Doc, withInner(k.New().Keys()))
	}
	golden(t, "../../docs/configuration.md", b.String())
	_, example, _ := strings.Cut(documentationHead, "```yaml")
	example, _, _ = strings.Cut(example, "```")
	testutil.Equal(t, testutil.Err(Parse("docs/configuration.md", []byte(example), nil)), nil,
		"its example")
}

// withInner adds the keys of mappings behind them.
func withInner(keys []lang.Key) (all []lang.Key) {
	for _, k := range keys {
		all = append(all, k)
		if m, ok := k.Value.(lang.Mapping); ok {
			for _, inner := range m {
				inner.Name = k.Name + "." + inner.Name
				all = append(all, inner)
			}
		}
	}
	return all
}

func writeSection(b *strings.Builder, title, doc string, keys []lang.Key) {
	fmt.Fprintf(b, "\n%s\n\n", title)
	if doc != "" {
		fmt.Fprintf(b, "%s\n\n", doc)
	}
	b.WriteString("| key | default | value | meaning |\n|---|---|---|---|\n")
	for _, k := range keys {
		def := k.Default
		switch text := k.Value.String(); {
		case k.Required != "":
			def = "required"
		case def == "" && text != "":
			def = "`" + text + "`"
		}
		if k.Restart {
			k.Doc += " A change needs a restart."
		}
		kind := k.Value.Type()
		switch {
		case k.Secret:
			kind += ", or file or program"
		case k.File:
			kind += ", or file"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", k.Name, def, kind, k.Doc)
	}
}

// TestEveryKeyIsExplained: every key has its meaning, and every optional key says when to set it.
func TestEveryKeyIsExplained(t *testing.T) {
	all := allSections()
	for _, b := range volumes.Backends {
		all = append(all, section{Path: "backend " + b.Name, Keys: b.New().Keys()})
	}
	for _, s := range all {
		for _, k := range s.Keys {
			if k.Doc == "" || k.Required == "" && !strings.Contains(k.Doc, "Set it ") &&
				!strings.Contains(k.Doc, "The same") {
				t.Errorf("%s: %s: %q", s.Path, k.Name, k.Doc)
			}
		}
	}
}

// section is one mapping of the configuration.
type section struct {
	// Path is empty for the file, "tcp" or "subsystems[].namespaces[]".
	Path, Doc string
	// Keys are the keys that are not sections themselves.
	Keys []lang.Key
	// Restart: changes of its keys need a restart.
	Restart bool
}

// allSections lists the mappings of a configuration.
func allSections() []section {
	return sections("", lang.Key{Value: lang.Mapping(config.Keys(volumes.Backends))})
}

// sections lists the mappings of a key in the order of the file, without the mappings of backends.
func sections(path string, of lang.Key) []section {
	out := []section{{Path: path, Doc: of.Doc, Restart: of.Restart}}
	keys, _ := keysOf(of.Value)
	for _, k := range keys {
		at, inner := strings.TrimPrefix(path+"."+k.Name, "."), k
		if l, ok := k.Value.(interface{ Entry() lang.Value }); ok {
			at, inner.Value = at+"[]", l.Entry()
		}
		if _, ok := keysOf(inner.Value); ok {
			out = append(out, sections(at, inner)...)
		} else {
			out[0].Keys = append(out[0].Keys, k)
		}
	}
	return out
}

// keysOf returns the keys of a mapping, or of the storage of a namespace.
func keysOf(v lang.Value) (keys []lang.Key, ok bool) {
	if m, ok := v.(lang.Mapping); ok {
		return m, true
	}
	s, ok := v.(interface{ Keys() []lang.Key })
	if ok {
		keys = s.Keys()
	}
	return keys, ok
}

// schema compiles the schema as editors do.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	var text bytes.Buffer
	testutil.Must(t, Schema(&text))
	doc := testutil.Value(jsonschema.UnmarshalJSON(&text))(t)
	c := jsonschema.NewCompiler()
	testutil.Must(t, c.AddResource("nvmf-target.json", doc))
	s := testutil.Value(c.Compile("nvmf-target.json"))(t)
	return s
}

func TestSchemaAcceptsWhatTheParserAccepts(t *testing.T) {
	s := schema(t)
	_, example, _ := strings.Cut(documentationHead, "```yaml")
	example, _, _ = strings.Cut(example, "```")
	_, wrapped, _ := strings.Cut(backendsHead, "```yaml")
	wrapped, _, _ = strings.Cut(wrapped, "```")
	const more = `
include: [none/*.yaml]
log: {level: debug, format: json}
reactors: {count: 0x2, cpus: [2, 3], memory: 67108864, spin: 50us}
tcp: {congestion_control: dctcp, header_digest: false, in_capsule_size: 1 MiB}
rdma: {in_capsule_size: 0, srq_size: 4096, queue_memory: 2GB}
disks: {engine: io_uring}
metrics: {listen: "[::1]:9500"}
shutdown_timeout: 1m0.5s
listeners: [{transport: tcp, address: "${ADDRESS}", on_unavailable: "${WAIT}"}]
subsystems:
  - nqn: ${NQN}
    hosts: ["nqn.2014-08.org.nvmexpress:uuid:${HOST}"]
    serial: ${SERIAL_OF_THE_SUBSYSTEM}
    max_transfer: ${TRANSFER}
    namespaces:
      - {nsid: 1, backend: nvme, path: "${DISK}", io_timeout: "${TIMEOUT}", uuid: "${ID}"}
      - {nsid: 2, backend: file, path: /disk, size: 10GiB, eui64: "0123456789abcdef"}
`
	environ := []string{
		"ADDRESS=::", "WAIT=fail", "NQN=nqn.2026-11.io:a", "TRANSFER=128KiB", "DISK=/dev/ng0n1",
		"HOST=5c1ab4b5-6c4c-4f6e-9a2b-2a3f7f3d1c01", "TIMEOUT=0s",
		"ID=5c1ab4b5-6c4c-4f6e-9a2b-2a3f7f3d1c02", "SERIAL_OF_THE_SUBSYSTEM=1",
	}
	for name, text := range map[string]string{
		"test": validFile, "docs": example, "docs, backends": example + wrapped, "more": more,
	} {
		testutil.Equal(t, testutil.Err(Parse("test.yaml", []byte(text), environ)), nil,
			"%s: not valid", name)
		var v any
		testutil.Must(t, yaml.Unmarshal([]byte(text), &v))
		testutil.Equal(t, s.Validate(v), nil, "%s", name)
	}
}

// beyond has parts of errors of the parser that a schema cannot find, with the reason.
var beyond = map[string]string{
	"is used already by":        "two values are compared",
	"would have no effect":      "two keys are compared",
	"has no effect without":     "two keys are compared",
	"no host may connect":       "two keys are compared",
	"there is no listener":      "two keys are compared",
	"may be ":                   "two keys are compared",
	" once more":                "two keys are compared",
	"is not a multiple of":      "a size with a unit, or two keys are compared",
	"is not a power of two":     "arithmetic",
	"is more than a quarter":    "two keys are compared",
	"is above cntlid_max":       "two keys are compared",
	"but reactors.cpus names":   "two keys are compared",
	"have none":                 "two keys are compared",
	"have the same key":         "two keys are compared",
	"the checksum of the key":   "arithmetic",
	"is missing or zero":        "one of two keys",
	"is not an IP address":      "more than a pattern",
	"is not a network":          "more than a pattern",
	"is an address in a":        "more than a pattern",
	"is the name of":            "two values are compared",
	"is not the name of a net":  "more than a pattern",
	"is no address that":        "more than a pattern",
	"a multicast address":       "more than a pattern",
	"a link-local IPv6 address": "more than a pattern",
	"is link-local":             "more than a pattern",
	"0777 is not possible here": "octal digits without quotes",
	"the discovery subsystem":   "more than a pattern",
	"other than all zeroes":     "more than a pattern",
	"given twice":               "YAML libraries refuse it themselves",
	"not valid YAML":            "YAML libraries refuse it themselves",
	"a second YAML document":    "the text, not a value",
	"values, aliases expanded":  "the text, not a value",
	"subsystems: is missing":    "it may be in another file",
	"listeners: is empty":       "managed may be set",
	"MiB is too large":          "a size with a unit",
	"KiB is too small":          "a size with a unit",
	"s is too large":            "a duration with a unit",
	"h is too large":            "a duration with a unit",
	"secure_only is true":       "it is about other keys",
	`"1G" is not a size`:        "the backend is wrong, too, so its keys are not known",
}

// schemaFinds checks that the schema finds each problem of a file, except problems in beyond, which
// are deleted from unused.
func schemaFinds(t *testing.T, s *jsonschema.Schema, file string, problems config.Problems,
	unused map[string]string,
) {
	t.Helper()
	text := testutil.Value(os.ReadFile(file))(t)
	var v any
	found := map[string]bool{}
	if yaml.Unmarshal(text, &v) == nil {
		if e, ok := errors.AsType[*jsonschema.ValidationError](s.Validate(v)); ok {
			invalidPaths(e, found)
		}
	}
	for _, p := range problems {
		excused := p.Warning
		for part := range beyond {
			if strings.Contains(p.Error(), part) {
				excused = true
				delete(unused, part)
			}
		}
		if excused || found[p.Path] {
			continue
		}
		if _, err := Parse(file, text, nil); err == nil {
			return // valid, but not on this machine
		}
		t.Errorf("%v: the schema accepts it; its errors: %v", p, found)
	}
}

// invalidPaths adds the paths of invalid values, in the form of config.Problem.
func invalidPaths(e *jsonschema.ValidationError, found map[string]bool) {
	path := ""
	for _, part := range e.InstanceLocation {
		if _, err := strconv.Atoi(part); err == nil {
			path += "[" + part + "]"
		} else {
			path = strings.TrimPrefix(path+"."+part, ".")
		}
	}
	switch k := e.ErrorKind.(type) {
	case *kind.AdditionalProperties:
		for _, name := range k.Properties {
			found[strings.TrimPrefix(path+"."+name, ".")] = true
		}
	case *kind.Required:
		for _, name := range k.Missing {
			found[strings.TrimPrefix(path+"."+name, ".")] = true
		}
	default:
		if len(e.Causes) == 0 || slices.Contains(e.ErrorKind.KeywordPath(), "anyOf") {
			found[path] = true
		}
	}
	for _, cause := range e.Causes {
		invalidPaths(cause, found)
	}
}
