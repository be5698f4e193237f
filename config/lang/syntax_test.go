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
	for _, row := range testutil.Rows(t, "syntax") {
		var text string
		row.Scan(&text)
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
