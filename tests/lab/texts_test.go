package lab

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestLogTexts: every text that a scenario expects in the log of the target is in the source. This
// matters most for texts that must be absent, since such a check would pass forever after a change.
// A scenario waits for a text (logged), because another goroutine writes the log.
func TestLogTexts(t *testing.T) {
	var source strings.Builder
	collect := func(dir, suffix string, add func(name string, text []byte)) {
		testutil.Must(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(name, suffix) {
				return err
			}
			text, err := os.ReadFile(name)
			add(name, text)
			return err
		}))
	}
	for _, dir := range []string{"backend", "fabric", "internal", "nvme"} {
		collect("../../"+dir, ".go", func(name string, text []byte) {
			if !strings.HasSuffix(name, "_test.go") {
				source.Write(text)
			}
		})
	}
	// Literals broken into several lines are one text.
	code := regexp.MustCompile(`" \+\s*"`).ReplaceAllString(source.String(), "")
	expectation := regexp.MustCompile(`\blog(?:ged|_has|_count) "([^"$]+)"`)
	now := regexp.MustCompile(`(?m)^(?:.*[^!] )?log_has [^&\n]*(?:\\\n.*)?\|\| fail`)
	found := 0
	collect(".", ".sh", func(name string, text []byte) {
		for _, m := range now.FindAll(text, -1) {
			t.Errorf("%s: %s: the line may come later: use logged", name, m)
		}
		for _, m := range expectation.FindAllSubmatch(text, -1) {
			found++
			if want := string(m[1]); !strings.Contains(code, want) {
				t.Errorf("%s looks for %q in the log, which is not in the source", name, want)
			}
		}
	})
	testutil.True(t, found >= 20, "only %d texts found", found)
}
