package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

var (
	anySpan   = regexp.MustCompile("`([^`]+)`")
	makeLine  = regexp.MustCompile(`^make((?: [a-z-]+)*)((?: [A-Z_]+=\S*)*)$`)
	nvmeLine  = regexp.MustCompile(`^(?:sudo )?nvme (connect-all|connect|discover|disconnect)\b(.*)`)
	unitLine  = regexp.MustCompile(`^(?:sudo )?(?:systemctl|journalctl) (.*)`)
	treePath  = regexp.MustCompile(`(?:^|[\s="'(])((?:tests|scripts|packaging)/[\w./*-]*)`)
	longNames = regexp.MustCompile(`(--[\w-]+|-\w)\b`)
)

// ofOthers are paths of other trees and units of other packages.
var ofOthers = []string{"scripts/setup.sh", "tlshd", "nvmf-autoconnect"}

// laterOptions are options of nvme connect and discover that are missing in version 2.3 of Debian
// 12.
var laterOptions = []string{"--tls", "--tls_key", "--tls-key", "--concat", "--keyring"}

// references returns the commands in the code of a page, and the commands and paths in its text.
func references(text string) (commands []string) {
	for _, m := range anySpan.FindAllStringSubmatch(fences.ReplaceAllString(text, ""), -1) {
		commands = append(commands, strings.ReplaceAll(m[1], "\n", " "))
	}
	return append(commands, shellCommands(text)...)
}

// wrongReference returns the references of a command that do not exist: a target or variable of the
// Makefile, a path of the tree, a unit, or an option of a command of nvme.
func wrongReference(command, makefile string, options func(string) []string) (wrong []string) {
	for _, m := range treePath.FindAllStringSubmatch(command, -1) {
		found, err := filepath.Glob("../../" + m[1])
		if err != nil || len(found) == 0 && !slices.Contains(ofOthers, m[1]) {
			wrong = append(wrong, m[1])
		}
	}
	if m := makeLine.FindStringSubmatch(command); m != nil {
		for _, target := range strings.Fields(m[1]) {
			if !strings.Contains(makefile, "\n"+target+":") {
				wrong = append(wrong, "make "+target)
			}
		}
		for _, v := range strings.Fields(m[2]) {
			name, _, _ := strings.Cut(v, "=")
			if !regexp.MustCompile(`\b` + name + `=|\(` + name + `\)`).MatchString(makefile) {
				wrong = append(wrong, name)
			}
		}
	}
	if m := nvmeLine.FindStringSubmatch(command); m != nil && options != nil {
		known := append(options(m[1]), laterOptions...)
		for _, w := range word.FindAllString(m[2], -1) {
			name, _, _ := strings.Cut(w, "=")
			if strings.HasPrefix(name, "-") && !slices.Contains(known, name) {
				wrong = append(wrong, "nvme "+m[1]+" "+name)
			}
		}
	}
	if m := unitLine.FindStringSubmatch(command); m != nil {
		wrong = append(wrong, wrongUnits(command, m[1])...)
	}
	return wrong
}

// wrongUnits returns units that do not exist among the arguments of systemctl, or after -u of
// journalctl.
func wrongUnits(command, arguments string) (wrong []string) {
	var units []string
	words := strings.Fields(arguments)
	if strings.Contains(command, "journalctl ") {
		if i := slices.Index(words, "-u"); i >= 0 && i+1 < len(words) {
			units = words[i+1 : i+2]
		}
	} else {
		words = slices.DeleteFunc(words, func(w string) bool { return strings.HasPrefix(w, "-") })
		units = words[min(1, len(words)):] // after the verb
	}
	for _, u := range units {
		u = strings.TrimSuffix(u, ".service")
		_, err := os.Stat("../../packaging/systemd/" + u + ".service")
		if err != nil && !slices.Contains(ofOthers, u) {
			wrong = append(wrong, "unit "+u)
		}
	}
	return wrong
}

// nvmeOptions returns the options of a command of the installed nvme, nil if nvme is missing.
func nvmeOptions(t *testing.T) func(command string) []string {
	t.Helper()
	nvme := testutil.Find(t, "nvme", "/usr/sbin/nvme")
	if nvme == "" {
		t.Log("nvme-cli is not installed: options of nvme are not checked")
		return nil
	}
	known := map[string][]string{}
	return func(command string) []string {
		if known[command] == nil {
			help, _ := exec.Command(nvme, command, "--help").CombinedOutput() // exits with an error
			known[command] = longNames.FindAllString(string(help), -1)
			testutil.MustTrue(t, len(known[command]) >= 5, "nvme %s --help: %s", command, help)
		}
		return slices.Clone(known[command])
	}
}

// TestOtherCommandsInDocuments: targets of make, options of nvme, units and paths named in
// documents exist.
func TestOtherCommandsInDocuments(t *testing.T) {
	makefile := testutil.Value(os.ReadFile("../../Makefile"))(t)
	options := nvmeOptions(t)
	kinds := map[*regexp.Regexp]int{makeLine: 0, nvmeLine: 0, unitLine: 0, treePath: 0}
	pages(t, func(name, text string) {
		for _, c := range references(text) {
			for r := range kinds {
				if r.MatchString(c) {
					kinds[r]++
				}
			}
			// A sentence, not a command.
			if strings.Contains(c, "…") || strings.HasPrefix(c, "make it ") {
				continue
			}
			for _, w := range wrongReference(c, string(makefile), options) {
				t.Errorf("%s: %q: there is no %s", name, c, w)
			}
		}
	})
	for r, n := range kinds {
		testutil.True(t, n >= 5, "only %d of %v", n, r)
	}
}

func TestWrongReferencesAreFound(t *testing.T) {
	options := func(string) []string { return []string{"-t", "-a", "--nqn", "--queue-size"} }
	makefile := "\nrun: build\n\tscripts/run.sh # PORT=4420\nbench: build\n\tx $(RUN)\n"
	for command, right := range map[string]bool{
		"make run": true, "make no": false, "make run PORT=1": true, "make bench RUN=a": true,
		"make run POR=1": false, "nvme connect -t tcp --nqn=x --tls": true,
		"sudo nvme connect -t tcp --no=x": false, "nvme discover -x": false, "nvme list -x": true,
		"systemctl restart nvmf-target": true, "systemctl enable --now nvmf-target.service": true,
		"systemctl enable --now nvmf": false, "systemctl daemon-reload": true,
		"journalctl -u nvmf-target -g a": true, "journalctl -u nvmft": false,
		"podman build -f packaging/container/Containerfile .": true,
		"podman build -f packaging/Containerfile .":           false,
		"cat tests/bench/*.go":                                true, "cat /x/tests/no": true,
		"tests/no": false,
	} {
		if wrong := wrongReference(command, makefile, options); (wrong == nil) != right {
			t.Errorf("%q: %q", command, wrong)
		}
	}
}
