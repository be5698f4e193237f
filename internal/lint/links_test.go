package lint

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

var (
	link    = regexp.MustCompile(`\]\(([^)#:\s]*)(?:#([^)]*))?\)`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*?)\s*$`)
	linked  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// anchors returns the anchors that GitHub gives to the headings of a page.
func anchors(text string) (names []string) {
	seen := map[string]int{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, linked.ReplaceAllString(m[1], "$1"))
		n := seen[name]
		if seen[name]++; n > 0 {
			name += "-" + strconv.Itoa(n)
		}
		names = append(names, name)
	}
	return names
}

// broken returns the links of a page to files or headings that do not exist. read returns a file of
// the module, and an empty text for a directory.
func broken(file, text string, read func(name string) (string, error)) (links int, bad []string) {
	for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		links++
		target, page := path.Join(path.Dir(file), m[1]), text
		if m[1] != "" {
			var err error
			if page, err = read(target); err != nil {
				bad = append(bad, m[1]+": "+err.Error())
				continue
			}
		}
		if m[2] != "" && !slices.Contains(anchors(page), m[2]) {
			bad = append(bad, m[1]+"#"+m[2]+": there is no such heading")
		}
	}
	return links, bad
}

func readPage(name string) (string, error) {
	name = filepath.Join(root, name)
	if info, err := os.Stat(name); err != nil || info.IsDir() {
		return "", err
	}
	text, err := os.ReadFile(name)
	return string(text), err
}

// TestLinks: links of pages lead to existing files and headings.
func TestLinks(t *testing.T) {
	links := 0
	documents(t, func(file, text string) {
		n, bad := broken(file, text, readPage)
		links += n
		for _, b := range bad {
			t.Errorf("%s links to %s", file, b)
		}
	})
	testutil.True(t, links >= 500, "only %d links found", links)
}

func TestBrokenLinksAreFound(t *testing.T) {
	read := func(name string) (string, error) {
		if name != "docs/a.md" {
			return "", os.ErrNotExist
		}
		return "# A b\n## A `c`: 1.2 d-e\n## A b\n```\n# no\n```\n", nil
	}
	for text, right := range map[string]bool{
		"[x](a.md)": true, "[x](a.md#a-b)": true, "[x](a.md#a-b-1)": true, "[x](b.md)": false,
		"[x](a.md#a-c-12-d-e)": true, "[x](a.md#no)": false, "[x](https://a.b/c#d)": true,
		"[x](#y)": false, "# Y\n[x](#y)": true, "[x](../docs/a.md)": true,
	} {
		_, bad := broken("docs/x.md", text, read)
		testutil.True(t, (bad == nil) == right, "%s: %q", text, bad)
	}
}

// TestIndex: docs/README.md links to each page of docs, and to each directory there.
func TestIndex(t *testing.T) {
	text := testutil.Value(readPage("docs/README.md"))(t)
	var there []string
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		there = append(there, strings.TrimSuffix(m[1], "/README.md"))
	}
	entries := testutil.Value(os.ReadDir(filepath.Join(root, "docs")))(t)
	for _, e := range entries {
		testutil.True(t, !e.IsDir() && path.Ext(e.Name()) != ".md" || e.Name() == "README.md" ||
			slices.Contains(there, e.Name()), "docs/README.md does not link to %s", e.Name())
	}
}
