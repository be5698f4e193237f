package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testutil"
)

// load writes files, each below a line "== NAME", and loads nvmf.yaml, the first one.
func load(t *testing.T, files string, environ ...string) (*Config, error) {
	t.Helper()
	t.Chdir(t.TempDir())
	for i, file := range strings.Split("\nnvmf.yaml\n"+files, "\n== ") {
		name, text, _ := strings.Cut(strings.TrimPrefix(file, "\n"), "\n")
		if i == 0 {
			name = "nvmf.yaml"
		}
		testutil.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		testutil.Must(t, os.WriteFile(name, []byte(text+"\n"), 0o644))
	}
	return Load("nvmf.yaml", environ, testBackends)
}

// TestInclude: files have the meaning of one file.
func TestInclude(t *testing.T) {
	const parts = `
include: [conf.d/*.yaml, more/listener, conf.d/20-b.yaml]
log: {level: debug}
reactors: &r {cpus: [1]}
hosts: [{nqn: nqn.2026-11.io.nvmf-target:h1, limits: {iops: 1}}]
listeners: &l
  - {transport: tcp, address: 10.0.0.1}
subsystems:
  - &s
    nqn: nqn.2026-11.io.nvmf-target:a
    hosts: &h [nqn.2026-11.io.nvmf-target:h1]
    namespaces: &n [{nsid: 1, backend: ram, size: 1GiB}]
  - nqn: nqn.2026-11.io.nvmf-target:b
    hosts: *h
    namespaces: *n
== conf.d/10-a.yaml
log: {format: json}
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:a
    namespaces: [{nsid: 2, backend: ram, size: 1GiB}]
  - nqn: nqn.2026-11.io.nvmf-target:c
    hosts: [nqn.2026-11.io.nvmf-target:h3]
== conf.d/20-b.yaml
shutdown_timeout: 20s
hosts: [{nqn: nqn.2026-11.io.nvmf-target:h2, limits: {iops: 2}}]
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:a
    hosts: [nqn.2026-11.io.nvmf-target:h2]
  - nqn: nqn.2026-11.io.nvmf-target:c
    serial: c
    namespaces: [{nsid: 1, backend: ram, size: 1GiB}]
== conf.d/30-nothing.yaml
# comments only
== conf.d/.hidden.yaml
colour: blue
== conf.d/other.txt
colour: blue
== more/listener
listeners: [{transport: rdma, address: 10.0.0.2}]
`
	const whole = `
log: {level: debug, format: json}
reactors: {cpus: [1]}
hosts:
  - {nqn: nqn.2026-11.io.nvmf-target:h1, limits: {iops: 1}}
  - {nqn: nqn.2026-11.io.nvmf-target:h2, limits: {iops: 2}}
listeners:
  - {transport: tcp, address: 10.0.0.1}
  - {transport: rdma, address: 10.0.0.2}
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:a
    hosts: [nqn.2026-11.io.nvmf-target:h1, nqn.2026-11.io.nvmf-target:h2]
    namespaces: [{nsid: 1, backend: ram, size: 1GiB}, {nsid: 2, backend: ram, size: 1GiB}]
  - nqn: nqn.2026-11.io.nvmf-target:b
    hosts: [nqn.2026-11.io.nvmf-target:h1]
    namespaces: [{nsid: 1, backend: ram, size: 1GiB}]
  - nqn: nqn.2026-11.io.nvmf-target:c
    serial: c
    hosts: [nqn.2026-11.io.nvmf-target:h3]
    namespaces: [{nsid: 1, backend: ram, size: 1GiB}]
shutdown_timeout: 20s
`
	c := testutil.Value(load(t, parts))(t)
	if changes := Diff(settings(t, whole), c.Settings()); len(changes) > 0 {
		t.Error(lines(changes))
	}
	got := c.Problem("subsystems[0].namespaces[1].size", "is odd", "").Error()
	if want := "conf.d/10-a.yaml:4:48: subsystems[0].namespaces[1].size: is odd"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestIncludeEverythingFromTheSameDirectory(t *testing.T) {
	c := testutil.Value(load(t, "include: [\"*.yaml\"]\n== other.yaml"+minimal))(t)
	if changes := Diff(settings(t, minimal), c.Settings()); len(changes) > 0 {
		t.Error(lines(changes))
	}
}

func TestIncludeProblems(t *testing.T) {
	const include = "include: [conf.d/*.yaml]" + minimal + "== conf.d/a.yaml\n"
	for _, test := range []struct{ name, files, want string }{
		{
			"no such file", "include: [a.yaml]" + minimal,
			"nvmf.yaml:1:11: include[0]: stat a.yaml: no such file or directory. " +
				"Correct the path, or the file.",
		},
		{
			"a directory", "include: [conf.d]" + minimal + "== conf.d/a\n",
			"nvmf.yaml:1:11: include[0]: open conf.d: not a regular file. " +
				"Correct the path, or the file.",
		},
		{
			"a bad pattern", "include: [\"a[\"]" + minimal,
			`nvmf.yaml:1:11: include[0]: "a[" is not a path or pattern. ` +
				"Write for instance conf.d/*.yaml.",
		},
		{
			"not a list", "include: conf.d" + minimal,
			`nvmf.yaml:1:10: include: must be a list, not the text "conf.d". ` +
				"Begin each entry with \"- \", or write [a, b].",
		},
		{
			"in an included file", include + "include: [b.yaml]",
			"conf.d/a.yaml:1:1: include: included files cannot include others. " +
				"Name these files in nvmf.yaml.",
		},
		{
			"not a mapping", include + "- a",
			"conf.d/a.yaml:1:1: must be a mapping of keys to values, not a list. " +
				"Write it like the file that includes it.",
		},
		{
			"syntax", include + "\na: [",
			"conf.d/a.yaml:2: not valid YAML: did not find expected node content. Look at",
		},
		{
			"two documents", include + "log: {}\n---\nlog: {}",
			"conf.d/a.yaml:2:1: a second YAML document begins here. Delete",
		},
		{
			"a key twice", include + "log: {level: info}\n== conf.d/b.yaml\nlog: {level: info}",
			"conf.d/b.yaml:1:7: log.level: given twice, first in conf.d/a.yaml:1. " +
				"Delete one of the two.",
		},
		{
			"a key of the file twice",
			"shutdown_timeout: 2s\n" + include + "shutdown_timeout: 2s",
			"conf.d/a.yaml:1:1: shutdown_timeout: given twice, first in nvmf.yaml:1. " +
				"Delete one of the two.",
		},
		{
			"a key that is wrong", include + "listeners: [{transport: tcp, address: eth0, prt: 1}]",
			`conf.d/a.yaml:1:45: listeners[1].prt: unknown key. Did you mean "port"?`,
		},
		{
			"a listener twice", include + "listeners: [{transport: tcp, address: 127.0.0.1}]",
			"conf.d/a.yaml:1:13: listeners[1]: tcp 127.0.0.1:4420 is used already by " +
				"listeners[0] (nvmf.yaml:2). Delete one of the two listeners.",
		},
		{
			"a subsystem twice",
			include + "subsystems: [{nqn: nqn.2026-11.io.nvmf-target:disk0, serial: a}]",
			"conf.d/a.yaml:1:54: subsystems[0].serial: this subsystem is described in " +
				"nvmf.yaml:5 already. " +
				"Write it there: this entry can only have nqn, hosts and namespaces.",
		},
		{
			"a namespace twice",
			include + "subsystems: [{nqn: nqn.2026-11.io.nvmf-target:disk0, " +
				"namespaces: [{nsid: 1, backend: ram, size: 1GiB}]}]",
			"conf.d/a.yaml:1:74: subsystems[0].namespaces[1].nsid: 1 is used already by " +
				"subsystems[0].namespaces[0].nsid (nvmf.yaml:6). Give each",
		},
		{
			"a subsystem twice in a file",
			include + "subsystems: [&s {nqn: nqn.2026-11.io.nvmf-target:d, allow_any_host: true, " +
				"namespaces: [{nsid: 1, backend: ram, size: 1GiB}]}, *s]",
			"conf.d/a.yaml:1:23: subsystems[2].nqn: nqn.2026-11.io.nvmf-target:d is used already " +
				"by subsystems[1].nqn (line 1). Give each",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := load(t, test.files)
			var ps Problems
			if !errors.As(err, &ps) || len(ps) != 1 ||
				!strings.HasPrefix(ps[0].Error(), test.want) {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
}

// TestIncludeIsBounded: files cannot make the parser do more work together than one alone, and what
// is no regular file is not opened.
func TestIncludeIsBounded(t *testing.T) {
	var many strings.Builder
	for i := range maxFiles + 1 {
		fmt.Fprintf(&many, "== conf.d/%d.yaml\nlog: {}\n", i)
	}
	aliases := "subsystems: [" + strings.Repeat("*s, ", 1000) + "]\n"
	for name, test := range map[string]struct{ files, want string }{
		"files": {many.String(), "more than 1024 files or 4MiB"},
		"bytes": {
			"== conf.d/a.yaml\n" + strings.Repeat("#\n", maxFile/2),
			"more than 1024 files or 4MiB",
		},
		"aliases": {
			"== conf.d/a.yaml\nx: &s {nqn: nqn.2026-11.io.nvmf-target:disk0, hosts: [" +
				strings.Repeat("h, ", 1000) + "]}\n" + aliases,
			"more than 100000 values",
		},
	} {
		_, err := load(t, "include: [conf.d/*]"+minimal+test.files)
		if err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 1000 {
			t.Errorf("%s: %.1000v", name, err)
		}
	}
	t.Chdir(t.TempDir())
	testutil.Must(t, syscall.Mkfifo("pipe", 0o600))
	_, err := Parse("nvmf.yaml", []byte("include: [pipe]"+minimal), nil, testBackends)
	if err == nil || !strings.Contains(err.Error(), "open pipe: not a regular file") {
		t.Error(err)
	}
}

func TestVariablesInValues(t *testing.T) {
	environ := []string{
		"HOST=10.0.0.7", "NAME=disk0", "KIND=ram", "SIZE=2GiB", "TEXT=${NAME}$${", "EMPTY=",
		"NVMF_TARGET_LOG_LEVEL=${LEVEL}", "LEVEL=debug",
	}
	c := testutil.Value(load(t, `
listeners: [{transport: tcp, address: "${HOST}"}]
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:${NAME}
    allow_any_host: true
    serial: a$${NAME}$b${TEXT}${EMPTY}
    namespaces: [{nsid: 1, backend: "${KIND}", size: "${SIZE}"}]
`, environ...))(t)
	const want = `
log: {level: debug}
listeners: [{transport: tcp, address: "10.0.0.7"}]
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:disk0
    allow_any_host: true
    serial: a$${NAME}$b$${NAME}$$${
    namespaces: [{nsid: 1, backend: ram, size: 2GiB}]
`
	if changes := Diff(settings(t, want), c.Settings()); len(changes) > 0 {
		t.Error(lines(changes))
	}
	for value, want := range map[string]string{
		"a${NONE}": "test.yaml:7:27: tcp.congestion_control: the environment variable NONE is " +
			"not set. Set it, or write $${ for the characters ${.",
		"a${NAME":         "${ without }. Write ${NAME}, or $${",
		"${NAME":          "${ without }",
		"${}":             "the environment variable  is not set",
		"${NAME}${B C}":   `the environment variable B C is not set`,
		"${\\e[1m}":       `the environment variable \x1b[1m is not set`,
		"$$${NAME}${NONE": "${ without }",
	} {
		_, err := parse(t, minimal+"tcp: {congestion_control: \""+value+"\"}\n", environ...)
		testutil.Fails(t, err, want, "%q", value)
	}
	big := "BIG=" + strings.Repeat("x", 100_000)
	text := minimal + "tcp: {congestion_control: \"" + strings.Repeat("${BIG}", 100) + "\"}\n"
	_, err := parse(t, text, big)
	testutil.Fails(t, err, "larger than 4MiB", "")
}
