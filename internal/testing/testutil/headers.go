package testutil

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// HeadersAgree fails the test unless each C expression has its value. names are header files, as in
// #include without the brackets. The test is skipped without a C compiler; builds with cgo always
// have one.
func HeadersAgree[V ~int | ~uint32 | ~uintptr](t *testing.T, names []string, want map[string]V) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("there is no C compiler to read the headers")
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
