package check

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
)

// schema compiles the schema as editors do.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text := testutil.Value(config.Schema(volumes.Backends))(t)
	doc := testutil.Value(jsonschema.UnmarshalJSON(bytes.NewReader(text)))(t)
	c := jsonschema.NewCompiler()
	testutil.Must(t, c.AddResource("nvmf-target.json", doc))
	return testutil.Value(c.Compile("nvmf-target.json"))(t)
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
		testutil.Equal(t, testutil.Err(parse("test.yaml", text, environ...)), nil,
			"%s: not valid", name)
		var v any
		testutil.Must(t, yaml.Unmarshal([]byte(text), &v))
		testutil.Equal(t, s.Validate(v), nil, "%s", name)
	}
}

// beyondSchema has parts of errors of the parser that a schema cannot find, with the reason.
func beyondSchema(t *testing.T) map[string]string {
	t.Helper()
	beyond := map[string]string{}
	for _, row := range testutil.Rows(t, "schema_beyond") {
		var part, reason string
		row.Scan(&part, &reason)
		beyond[part] = reason
	}
	return beyond
}

// schemaFinds checks that the schema finds each problem of a file, except problems in beyond, which
// it notes in used.
func schemaFinds(t *testing.T, s *jsonschema.Schema, file string, problems config.Problems,
	beyond map[string]string, used map[string]bool,
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
				used[part] = true
			}
		}
		if excused || found[p.Path] {
			continue
		}
		if _, err := parse(file, string(text)); err == nil {
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
