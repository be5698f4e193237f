package testutil

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// HeadersAgree fails the test unless each C expression has its value. Headers are named as in
// #include, without the brackets. Without a C compiler the test is skipped: nothing can be
// compared, and whoever builds with cgo has one.
func HeadersAgree[V ~int | ~uint32 | ~uintptr](t *testing.T, names []string, want map[string]V) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler reads the headers")
	}
	var source strings.Builder
	for _, name := range append([]string{"stddef.h"}, names...) {
		fmt.Fprintf(&source, "#include <%s>\n", name)
	}
	for expression, v := range want {
		fmt.Fprintf(&source, "_Static_assert((unsigned long)(%s) == %dul, \"%s\");\n", expression,
			uint64(v), expression)
	}
	cmd := exec.Command(cc, "-xc", "-c", "-o", filepath.Join(t.TempDir(), "o"), "-")
	cmd.Stdin = strings.NewReader(source.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
