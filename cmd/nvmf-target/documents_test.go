package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// pages calls fn with each page for users.
func pages(t *testing.T, fn func(name, text string)) {
	t.Helper()
	names, err := filepath.Glob("../../docs/*.md")
	testutil.MustTrue(t, err == nil && len(names) >= 10, "no documents:  %v %v", names, err)
	for _, name := range append(names, "../../README.md", "../../SECURITY.md") {
		text := testutil.Value(os.ReadFile(name))(t)
		fn(strings.TrimPrefix(name, "../../"), string(text))
	}
}

var (
	fences = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")
	spans  = regexp.MustCompile("`nvmf-target ([^`]+)`")
	// ours matches a command line of the program, after variables or a launcher.
	ours = regexp.MustCompile(`^(?:\w+=\S+ |sudo |systemd-run .* |podman exec \S+ |kubectl exec .* -- )*` +
		`(?:\S*/)?nvmf-target(?: (.*)|$)`)
	comment  = regexp.MustCompile(`(^|\s)#.*`)
	apart    = regexp.MustCompile(`&&|\|\||;| \| `)
	redirect = regexp.MustCompile(`[0-9]?>>?&?\s*\S*`)
	optional = regexp.MustCompile(`\[[^]]+\]`)
	word     = regexp.MustCompile(`"[^"]*"|'[^']*'|\S+`)
)

// shellCommands returns the commands in the code blocks of a page. In a block with prompts, lines
// without a prompt are output.
func shellCommands(text string) (found []string) {
	for _, m := range fences.FindAllStringSubmatch(text, -1) {
		code := ""
		if m[1] == "" || m[1] == "sh" {
			code = "    " + strings.ReplaceAll(m[2], "\n", "\n    ")
		}
		text = strings.Replace(text, m[0], code, 1)
	}
	prompted := false
	for line := range strings.Lines(text) {
		line, isCode := strings.CutPrefix(line, "    ")
		line, prompt := strings.CutPrefix(strings.TrimSpace(line), "$ ")
		prompted = isCode && (prompt || prompted)
		if !isCode || prompted && !prompt {
			continue
		}
		for _, part := range apart.Split(comment.ReplaceAllString(line, ""), -1) {
			found = append(found, strings.TrimSpace(redirect.ReplaceAllString(part, "")))
		}
	}
	return found
}

// commands returns the arguments of nvmf-target in the code blocks of a page.
func commands(text string) (found []string) {
	for _, c := range shellCommands(text) {
		if m := ours.FindStringSubmatch(c); m != nil {
			found = append(found, strings.TrimSpace(m[1]))
		}
	}
	return found
}

// variants returns the commands for a line with [OPTIONAL] and one|other.
func variants(line string) []string {
	if o := optional.FindString(line); o != "" {
		return append(variants(strings.Replace(line, o, "", 1)),
			variants(strings.Replace(line, o, o[1:len(o)-1], 1))...)
	}
	for _, w := range strings.Fields(line) {
		if alternatives := strings.Split(w, "|"); len(alternatives) > 1 {
			var all []string
			for _, a := range alternatives {
				all = append(all, variants(strings.Replace(line, w, a, 1))...)
			}
			return all
		}
	}
	return []string{line}
}

// parse returns an error if a command is invalid, without executing it. If named is set, the
// arguments may be missing.
func parse(line string, named bool) error {
	root := command()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	root.InitDefaultVersionFlag()
	args := word.FindAllString(line, -1)
	c, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if c == root && (len(args) == 0 || args[0] != "--version") {
		return errors.New("no such command")
	}
	group := c.HasSubCommands() && !c.HasLocalFlags() // it only prints its commands
	c.InitDefaultHelpFlag()
	if err := c.ParseFlags(rest); err != nil {
		return err
	}
	rest = c.Flags().Args()
	if named && len(rest) == 0 {
		return nil
	}
	if group {
		return fmt.Errorf("%s has no command %q", c.CommandPath(), rest)
	}
	return errors.Join(c.ValidateArgs(rest), c.ValidateFlagGroups(), c.ValidateRequiredFlags())
}

// TestCommandsInDocuments: every command and flag shown in a document exists.
func TestCommandsInDocuments(t *testing.T) {
	n := 0
	pages(t, func(name, text string) {
		for _, line := range commands(text) {
			for _, v := range variants(line) {
				n++
				testutil.Equal(t, parse(v, false), nil, "%s: nvmf-target %s", name, v)
			}
		}
		for _, m := range spans.FindAllStringSubmatch(text, -1) {
			for _, v := range variants(strings.ReplaceAll(m[1], "\n", " ")) {
				n++
				testutil.Equal(t, parse(v, true), nil, "%s: `nvmf-target %s`", name, v)
			}
		}
	})
	testutil.True(t, n >= 100, "only %d commands found", n)
}

func TestWrongCommandsAreFound(t *testing.T) {
	page := "    A=1 nvmf-target check && cat x | /usr/bin/nvmf-target events -f  # nvmf-target\n" +
		"    systemctl reload nvmf-target\n\n    $ bin/nvmf-target plan >x\n" +
		"    nvmf-target says\n\n" +
		"```\nkubectl exec deploy/nvmf-target -- nvmf-target status\n```\n" +
		"```yaml\nnvmf-target no\n```\ntext nvmf-target no\n"
	want := []string{"check", "events -f", "plan", "status"}
	testutil.EqualSlices(t, commands(page), want, "")
	for line, right := range map[string]bool{
		"status": true, "status -o json": true, "satus": false, "status --no": false,
		"status now": false, "namespace": false, "namespace stop NQN 1": false,
		"namespace pause|resume NQN [NSID]": false, "namespace pause|resume NQN NSID": true,
		"drain": true, "convert nvmet": true, "convert nvmet FILE": true, "convert FILE": false,
		"doctor": true, "doctor FILE": true, "doctor FILE --socket PATH": true, "doctor A B": false,
		"": false,
	} {
		err := error(nil)
		for _, v := range variants(line) {
			err = errors.Join(err, parse(v, false))
		}
		testutil.True(t, (err == nil) == right, "%q: %v", line, err)
	}
}

const (
	aListener  = "\nlisteners: [{transport: tcp, address: 10.0.0.1}]\n"
	aSubsystem = "\nsubsystems:\n  - nqn: nqn.2026-11.io.nvmf-target:a\n" +
		"    allow_any_host: true\n    namespaces:\n      - {nsid: 9, backend: ram, size: 1MiB}\n"
	aHost = "hosts:\n  - nqn: nqn.2026-11.io.nvmf-target:b\n"
)

// whole completes an excerpt of a configuration. It returns false for other YAML.
func whole(text string) (string, bool) {
	text = strings.ReplaceAll(text, "uuid:…", "uuid:11111111-2222-3333-4444-555555555555")
	text = regexp.MustCompile(`_command: \[.*\]`).ReplaceAllString(text, "_file: x")
	switch first := strings.TrimLeft(text, " "); {
	case strings.HasPrefix(first, "- {nsid") || strings.HasPrefix(first, "- nsid"):
		return aListener + aSubsystem + text, true
	case len(first) == len(text)-4: // keys of a host
		return aListener + aSubsystem + aHost + text, true
	}
	var keys map[string]any
	if yaml.Unmarshal([]byte(text), &keys) != nil {
		return text, true
	}
	if keys["groups"] != nil || keys["scrape_configs"] != nil { // of Prometheus
		return "", false
	}
	if keys["listeners"] == nil {
		text += aListener
	}
	if keys["subsystems"] == nil && keys["managed"] == nil {
		text += aSubsystem
	}
	return text, true
}

// wrong returns the error of check for YAML in a document, ignoring missing files.
func wrong(name, text string) error {
	text, ok := whole(text)
	if !ok {
		return nil
	}
	_, err := app.Parse(name, []byte(text), []string{"CREDENTIALS_DIRECTORY=/nowhere"})
	var problems config.Problems
	if errors.As(err, &problems) {
		problems = slices.DeleteFunc(problems,
			func(p config.Problem) bool { return p.Hint == lang.HintUnreadable })
		if len(problems) == 0 {
			return nil
		}
		return problems
	}
	return err
}

// TestConfigurationsInDocuments: configurations shown in documents are valid.
func TestConfigurationsInDocuments(t *testing.T) {
	n := 0
	pages(t, func(name, text string) {
		for _, m := range fences.FindAllStringSubmatch(text, -1) {
			if m[1] != "yaml" {
				continue
			}
			n++
			if err := wrong(name, m[2]); err != nil {
				t.Errorf("%v\nin\n%s", err, m[2])
			}
		}
	})
	testutil.True(t, n >= 15, "only %d found", n)
	for text, right := range map[string]bool{
		"log: {level: info}\n":                        true,
		"log: {level: loud}\n":                        false,
		"logs: {}\n":                                  false,
		"scrape_configs: []\n":                        true,
		"      - {nsid: 4, backend: ram, size: 1GB}":  true,
		"      - {nsid: 4, backend: ram, sice: 1GB}":  false,
		"    dhchap_key_file: x\n":                    true,
		"    dhchap_hash: [md5]\n":                    false,
		"hosts: [{nqn: nqn.2026-11.a:uuid:…}]\n":      true,
		"listeners: [{transport: udp, address: a}]\n": false,
	} {
		err := wrong("x", text)
		testutil.True(t, (err == nil) == right, "%s: %v", text, err)
	}
}

// TestJobFiles: fio accepts the job files of docs/fio.
func TestJobFiles(t *testing.T) {
	files, err := filepath.Glob("../../docs/fio/*.fio")
	testutil.MustTrue(t, err == nil && len(files) >= 5, "no job files:  %v %v", files, err)
	fio := testutil.Program(t, "scripts/deps.sh test installs it", "fio")
	for _, file := range files {
		c := exec.Command(fio, "--parse-only", file)
		c.Env = append(os.Environ(), "DEV=/dev/null", "SIZE=1g", "RATE=1000")
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", file, err, out)
		}
	}
}
