package lang

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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

// expired is a context with a deadline that passes when it is cancelled.
type expired struct{ context.Context }

func (o expired) Err() error {
	if o.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

// TestProgramThatHangs: a program is ended, together with its children and other holders of its
// output.
func TestProgramThatHangs(t *testing.T) {
	for _, script := range []string{"sleep 1000", "sleep 1000 & wait"} {
		begun := filepath.Join(t.TempDir(), "begun")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := runProgram(expired{ctx},
				[]string{"/bin/sh", "-c", "echo >" + begun + "; " + script}, nil)
			ended <- err
		}()
		testutil.Until(t, "the program runs", func() bool {
			_, err := os.Stat(begun)
			return err == nil
		})
		cancel()
		err := testutil.Receive(t, "the program is ended", ended)
		testutil.Fails(t, err, "took too long together", "")
	}
	d := NewDecoder("test.yaml", nil)
	d.programsTime = 0
	testutil.True(t, testutil.Err(d.output([]string{"/bin/true"})) != nil,
		"a program ran without time")
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "4096": 4096, "1B": 1, "1KiB": 1024, "1 KiB": 1024, "3MiB": 3 << 20,
		"1GiB": 1 << 30, "2TiB": 2 << 40, "1PiB": 1 << 50,
		"1KB": 1000, "1kB": 1000, "2MB": 2e6, "500GB": 500e9, "1TB": 1e12, "1PB": 1e15,
		"9223372036854775807": 1<<63 - 1,
	} {
		testutil.Equal(t, testutil.Value(ParseSize(text))(t), want, "%q", text)
	}
	for _, text := range []string{
		"", "GiB", "1G", "-1", "1.5GiB", "0x10", "1e3", "8192PiB",
		"18446744073709551616", "１KiB",
	} {
		got, err := ParseSize(text)
		testutil.True(t, err != nil, "%q: got %d, want an error", text, got)
	}
	for size, want := range map[Size]string{
		0: "0B", 513: "513B", 65536: "64KiB", 1 << 40: "1TiB",
		500e9: "500GB", 1536: "1536B",
	} {
		testutil.Equal(t, size.String(), want, "%d", int64(size))
	}
}

func TestNearest(t *testing.T) {
	keys := []string{"nsid", "backend", "size", "path", "block_size", "read_only", "uuid"}
	for word, want := range map[string]string{
		"sise": "size", "siez": "size",
		"block-size": "block_size", "Path": "path", "readonly": "read_only", "zzz": "", "": "",
	} {
		testutil.Equal(t, Nearest(word, keys), want, "%q", word)
	}
}
