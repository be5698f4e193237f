package testutil

import (
	"cmp"
	"os/exec"
	"strings"
	"testing"
)

// Program returns the path of the first of names found by Find. If there is none, it skips the
// test; hint tells how to install the program.
func Program(t testing.TB, hint string, names ...string) string {
	t.Helper()
	file := Find(t, names...)
	if file == "" {
		t.Skipf("there is no %s: %s", strings.Join(names, " or "), hint)
	}
	return file
}

// Find returns the path of the first of names found in PATH, "" if there is none. The version of
// such a program depends on the day on which it was installed, so a test that fails logs it.
func Find(t testing.TB, names ...string) string {
	t.Helper()
	for _, name := range names {
		file, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s is %s", file, version(file))
			}
		})
		return file
	}
	return ""
}

// version returns the first line of the version output of a program.
func version(file string) string {
	for _, argument := range []string{"--version", "version"} {
		if out, err := exec.Command(file, argument).CombinedOutput(); err == nil {
			line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
			return cmp.Or(line, "without a version")
		}
	}
	return "of unknown version"
}
