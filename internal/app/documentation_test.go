package app

import (
	"fmt"
	"strings"
	"testing"

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
