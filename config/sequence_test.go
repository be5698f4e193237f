package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestSequences carries out testdata/sequences, described in its README.
func TestSequences(t *testing.T) {
	datadriven.Walk(t, "testdata/sequences", func(t *testing.T, path string) {
		base := ""
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "base":
				base = d.Input + "\n"
				return outcome(t, base, base)
			case "file":
				return outcome(t, base, d.Input)
			case "files":
				c, err := load(t, d.Input+"\n")
				return said(t, base, c, err)
			case "touches", "content", "keys", "without", "names":
				return managed(t, base, d)
			case "edit":
				text, environ := edited(t, base, strings.Split(d.Input, "\n")...)
				return outcome(t, base, text, environ...)
			case "each":
				var out strings.Builder
				for _, line := range strings.Split(d.Input, "\n") {
					change := line
					if d.HasArg("replace") {
						var old string
						d.ScanArgs(t, "replace", &old)
						change = old + " => " + line
					}
					text, environ := edited(t, base, change)
					out.WriteString(line + "\n")
					for found := range strings.Lines(outcome(t, base, text, environ...)) {
						out.WriteString("    " + strings.TrimSuffix(found, "\n") + "\n")
					}
				}
				return out.String()
			}
			t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
			return ""
		})
	})
}

// edited applies changes to a file: "OLD => NEW" replaces text, "$ NAME=VALUE" sets a variable, and
// any other line is appended to the file.
func edited(t *testing.T, text string, changes ...string) (_ string, environ []string) {
	for _, line := range changes {
		if variable, ok := strings.CutPrefix(line, "$ "); ok {
			environ = append(environ, variable)
		} else if before, after, ok := strings.Cut(line, " => "); ok {
			lines := strings.NewReplacer(`\n`, "\n")
			before, after = lines.Replace(before), lines.Replace(after)
			testutil.MustTrue(t, strings.Contains(text, before), "the file does not have %q",
				before)
			text = strings.Replace(text, before, after, 1)
		} else {
			text += line + "\n"
		}
	}
	return text, environ
}

// outcome lists the problems of a file, or its changes.
func outcome(t *testing.T, base, text string, environ ...string) string {
	c, err := parse(t, text, environ...)
	return said(t, base, c, err)
}

func said(t *testing.T, base string, c *Config, err error) string {
	if err != nil {
		return err.Error()
	}
	changes := Diff(settings(t, base), c.Settings())
	if len(changes) == 0 {
		return "no changes"
	}
	testutil.Equal(t, strings.Count(lines(changes), "\n"), len(changes), "changes have lines")
	return lines(changes)
}

// managed carries out a command for the objects of the managed directory.
func managed(t *testing.T, base string, d *datadriven.TestData) string {
	object := func(line string) (m Managed) {
		testutil.Must(t, yaml.Unmarshal([]byte(line), &m))
		return m
	}
	shown := func(text []byte, err error) string {
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	var out strings.Builder
	first, rest, _ := strings.Cut(d.Input, "\n")
	body, file, _ := strings.Cut(rest, "\n== file\n")
	switch d.Cmd {
	case "content":
		return shown(object(first).Content([]byte(body), []byte(file)))
	case "without":
		return shown(object(first).WithoutKey([]byte(body)))
	case "keys":
		for line := range strings.SplitSeq(body, "\n") {
			fmt.Fprintf(&out, "%s\n    %v\n", line, object(first).Keys([]byte(line)))
		}
	case "names":
		for line := range strings.SplitSeq(d.Input, "\n") {
			m, err := object(line).Canonical()
			fmt.Fprintf(&out, "%s\n    %s\n", line, shown([]byte(m.Listener+m.Referral), err))
		}
	case "touches":
		edits, objects, _ := strings.Cut(d.Input, "\n==\n")
		text, _ := edited(t, base, strings.Split(edits, "\n")...)
		was, is := testutil.Value(parse(t, base))(t), testutil.Value(parse(t, text))(t)
		for _, c := range Diff(was.Settings(), is.Settings()) {
			fmt.Fprintf(&out, "%v\n", c)
			for line := range strings.SplitSeq(objects, "\n") {
				fmt.Fprintf(&out, "    %v %s\n", object(line).Touches(c, was, is), line)
			}
		}
	}
	return out.String()
}
