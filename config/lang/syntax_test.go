package lang

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestSyntaxErrorsNameTheLine: # marks the line where the error is found, @ the line where the
// faulty construct begins.
func TestSyntaxErrorsNameTheLine(t *testing.T) {
	for _, text := range []string{
		"a:\n  - {nsid: 1, size: 1GiB @\n  - {nsid: 2, size: 1GiB} #\n",
		"a:\n  - {nsid: 1, size: 1GiB @\n  - nsid: 2 #\n    size: 1GiB\n",
		"a: [b, c @\nd: #\n  - {nsid: 1}\n",
		"a: {b: c @\n\n\nd: e #\n",
		"a:\n  - {backend: ram size: 1GiB} #\n  - {nsid: 2}\n",
		"a:\n  - {address: ::} #\nb:\n  c: d\n",
		"a:\n  - {address: ::1} #\n",
		"a:\n  - address: :: #\nb: c\n",
		"- {a: ::} #\n",
		"a:\n  b: [c]] #\n  d: e\n",
		"a:\n  b: [c @\n  ] ] #\nd: e\n",
		"a:\n  - {b: c} @\n   d: e #\nf: g\n",
		"a:\n  - b: c @\n   d: e #\n    f:\n      - g\n",
		"a: \n  - b: c @\n    d: e\n    f:\n      - g\n   h: i #\n",
		"a: b\nc: d\n e: f #\ng: h\n",
		"a: b @\nc:\n  - d\n - e #\n",
		"a:\n  - b\n  c #\nd: e\n",
		"a:\n  - b\n\n\n  # comment\n  \"c\" #\nd: e\n",
		"\ufeffa:\n  - b @\n  c: d #\n",
		"ä:\n  - ööööööööööö @\n  ü: ä #\n",
		"a: \"b #\nc: d\n",
		"a:\n  - b @\n  ? c #\n",
		"a: b\nc #\n",
		"a:\n\t- b #\n",
		"a: b\n---\nc:\n  - d @\n  e: f #\n",
	} {
		var begin, stop int
		plain := text
		for i, line := range strings.Split(text, "\n") {
			if strings.HasSuffix(line, " @") {
				begin = i + 1
			}
			if strings.HasSuffix(line, " #") {
				stop = i + 1
			}
		}
		plain = strings.NewReplacer(" @\n", "\n", " #\n", "\n").Replace(plain)
		d := NewDecoder("F", nil)
		d.Decode(Format{}, []byte(plain))
		d.problems = slices.DeleteFunc(d.problems, func(p Problem) bool {
			return strings.HasSuffix(p.What, "unknown key") // in the part that is YAML
		})
		err := d.Err()
		want := fmt.Sprintf("F:%d: not valid YAML: ", stop)
		within := fmt.Sprintf("in the text that begins on line %d. ", begin)
		testutil.True(t, err != nil && strings.HasPrefix(err.Error(), want) &&
			strings.Contains(err.Error(), "begins") == (begin > 0) &&
			(begin <= 0 || strings.Contains(err.Error(), within)), "%s\nwant %s%s\ngot  %v", text,
			want, within, err)
	}
}
