package lint

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

var (
	// leaks matches comparisons that take a time that depends on where the operands differ.
	leaks = regexp.MustCompile(`bytes\.(Equal|Compare|HasPrefix)|slices\.(Equal|Compare)|` +
		`reflect\.|[!=]= *string\(|string\([\w.]*\) *[!=]=|\bReveal\(\) *[!=]=|` +
		`[!=]= *[\w.]+\.Reveal|\b([sS]ecret|[tT]oken) *[!=]= *[^\s]+`)
	// none matches comparisons without a secret.
	none = regexp.MustCompile(`[!=]= *(nil\b|""|\(?(config\.)?Token\{\})`)
	// secretPackages compare secrets, and so does every file that imports nvme/auth.
	secretPackages = []string{
		"config/lang/", "nvme/auth/", "fabric/tcp/tls/", "internal/metrics/", "internal/web/",
	}
	// public are comparisons of public data, by file.
	public = map[string]string{
		"fabric/tcp/tls/hello.go": "s.Identity == string(o.identity)",
	}
)

// leaking returns the lines of a text that leak.
func leaking(text string) []string {
	return slices.DeleteFunc(leaks.FindAllString(text, -1), none.MatchString)
}

// TestComparisons: in files with secrets the time of a comparison does not depend on where the
// operands differ.
func TestComparisons(t *testing.T) {
	files, used := 0, 0
	goFiles(t, func(f *goFile) {
		secret := strings.Contains(string(f.text), `nvmf-target/nvme/auth"`) ||
			strings.Contains(string(f.text), "type Token ") ||
			slices.ContainsFunc(secretPackages, func(p string) bool {
				return strings.HasPrefix(f.name, p)
			})
		if f.isTest() || !secret {
			return
		}
		files++
		text := string(f.text)
		if known := public[f.name]; known != "" {
			testutil.True(t, strings.Contains(text, known), "%s has no longer %q", f.name, known)
			text = strings.ReplaceAll(text, known, "")
			used++
		}
		for _, found := range leaking(text) {
			t.Errorf("%s: %s instead of hmac.Equal or subtle.ConstantTimeCompare", f.name, found)
		}
	})
	testutil.True(t, files >= 25 && used == len(public),
		"only %d files, and %d of %d exceptions, have been looked at", files, used, len(public))
}

// TestLeaks tests the search of TestComparisons.
func TestLeaks(t *testing.T) {
	for text, want := range map[string]bool{
		"bytes.Equal(a.secret, b.secret)": true, "k.Reveal() == text": true,
		"text != k.Reveal()": true, "string(binder) == other": true, "x == string(y)": true,
		"slices.Equal(a, b)": true, "a.secret == b.secret": true, "e.Token == other.Token": true,
		"token != given": true, "p.Secret == nil": false, "e.Token == Token{}": false,
		"c.Web.Token != (config.Token{})": false, "hmac.Equal(a, b)": false,
	} {
		testutil.Equal(t, len(leaking(text)) > 0, want, "%s", text)
	}
}
