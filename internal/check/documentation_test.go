package check

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
)

//go:generate go test -run TestDocumentation|TestBrokenFiles -update .

const documentationHead = `# Configuration

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

    nvmf-target check FILE     # every error and warning, each with its place and a hint
    nvmf-target serve FILE     # until SIGTERM or SIGINT
    nvmf-target schema         # the JSON Schema of FILE, with which editors complete and check it

Without FILE, they use ` + "`/etc/nvmf-target/nvmf-target.yaml`" + `. Most keys need not be set: the last column says when to. A
reload applies changes without a pause. The text near a table names the keys that need a restart.
` + "`go generate ./internal/check`" + ` generates this page from the table of the parser.

## Values

- **Sizes** are whole numbers with KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, GB, TB (powers of 1000).
- **Durations** have a unit: ` + "`50us`, `10s`" + `.
- **Unknown keys** are errors.
- **Environment variables** override keys outside of lists, and whole lists: ` + "`NVMF_TARGET_`" + ` and the path in capitals.
  The value is YAML: ` + "`NVMF_TARGET_LOG_LEVEL=debug`, `NVMF_TARGET_REACTORS_CPUS='[2, 3]'`, `NVMF_TARGET_LISTENERS='[{transport: tcp, address: 0.0.0.0}]'`" + `.
- **Variables in values**: ` + "`${NAME}`" + ` in a text, size or duration is the environment variable NAME, which must be set;
  ` + "`$${` stands for the characters `${`" + `.
- **Values from files**, where the value column says "or file": ` + "`KEY_file: PATH`" + `. The value is the content of the file, up to
  4 KiB, without the line break at its end: the right place for keys and tokens, as a Kubernetes secret or a systemd credential (` + "`${CREDENTIALS_DIRECTORY}/NAME`" + `). Relative
  paths are relative to the directory of the configuration file. A reload reads these files again.
- **Values from programs**, where it says "or program": ` + "`KEY_command: [PATH, ARGUMENT, ...]`" + `. The value is the output, up to 4 KiB. All
  programs of a configuration together have 30 s, at the start and when the file is reloaded or checked. A program runs as the user of
  the target (or of ` + "`nvmf-target check`" + `), without capabilities, in ` + "`/`, with `PATH` and `CREDENTIALS_DIRECTORY`" + ` as its environment;
  ` + "`[/usr/bin/env, NAME=VALUE, PATH, ...]`" + ` adds variables. An error shows the exit status and 256 bytes of standard error,
  without keys and long words that may be secret, but never the output. Requests and the managed directory cannot name programs.
`

const backendsHead = `
## Backends

The key ` + "`backend`" + ` of a namespace names one of these. ` + "`delay` and `error`" + ` are wrappers: they pass everything on to the storage
under their key ` + "`of`, which is a mapping of `backend`" + ` and its keys. They imitate faulty disks:

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
	parts := examples(t)
	for _, s := range allSections() {
		title := "The file"
		if s.Path != "" {
			title = "`" + s.Path + "`"
		}
		if s.Restart {
			s.Doc += " A change needs a restart."
		}
		writeSection(&b, "## "+title, s.Doc, parts[strings.TrimSuffix(s.Path, "[]")], s.Keys)
	}
	b.WriteString(backendsHead)
	for _, k := range volumes.Backends {
		writeSection(&b, "### `"+k.Name+"`", k.Doc, "", withInner(k.New().Keys()))
	}
	testutil.Golden(t, "../../docs/configuration.md", b.String())
	_, example, _ := strings.Cut(documentationHead, "```yaml")
	example, _, _ = strings.Cut(example, "```")
	testutil.Equal(t, testutil.Err(parse("docs/configuration.md", example)), nil,
		"its example")
}

// withInner adds the keys of mappings after them.
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

// sentence matches a sentence and the space after it.
var sentence = regexp.MustCompile(`.*?[^.]\.( |$)`)

// writeSection writes a table with a sentence in each cell, and the other sentences below it.
func writeSection(b *strings.Builder, title, doc, example string, keys []lang.Key) {
	fmt.Fprintf(b, "\n%s\n\n", title)
	if doc != "" {
		fmt.Fprintf(b, "%s\n\n", doc)
	}
	if example != "" {
		fmt.Fprintf(b, "```yaml\n%s```\n\n", example)
	}
	b.WriteString("| key | default | value | meaning | set it |\n|---|---|---|---|---|\n")
	var more, restart []string
	for _, k := range keys {
		name := "`" + k.Name + "`"
		if k.Restart {
			restart = append(restart, name)
		}
		def := k.Default
		switch text := k.Value.String(); {
		case k.Required != "":
			def = "required"
		case def == "" && text != "":
			def = "`" + text + "`"
		}
		kind := k.Value.Type()
		switch {
		case k.Secret:
			kind += ", or file or program"
		case k.File:
			kind += ", or file"
		}
		sentences, set, rest := sentence.FindAllString(k.Doc, -1), "", ""
		for _, s := range sentences[1:] {
			if when, ok := strings.CutPrefix(s, "Set it "); ok && set == "" {
				set = strings.TrimSuffix(strings.TrimSpace(when), ".")
				continue
			}
			rest += s
		}
		if rest != "" {
			more = append(more, name+": "+strings.TrimSpace(rest))
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", name, def, kind,
			strings.TrimSuffix(strings.TrimSpace(sentences[0]), "."), set)
	}
	if len(restart) > 0 {
		more = append(more, "A change needs a restart: "+strings.Join(restart, ", ")+".")
	}
	for i, text := range more {
		if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(b, "- %s\n", text)
	}
}

// examples returns the parts of testdata/examples.yaml, by key.
func examples(t *testing.T) map[string]string {
	t.Helper()
	text := testutil.Value(os.ReadFile("testdata/examples.yaml"))(t)
	testutil.Equal(t, testutil.Err(parse("examples.yaml", string(text))), nil, "examples")
	parts := map[string]string{}
	key := ""
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, " ") {
			key, _, _ = strings.Cut(line, ":")
		}
		parts[key] += line
	}
	return parts
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
