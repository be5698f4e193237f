package lang

import (
	"bytes"
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

var (
	yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)
	// parserError matches errors of the parser; others are of the scanner below it. The line of
	// go.yaml.in/yaml/v3 is the beginning of a construct: from 1 for the scanner, from 0 for the
	// parser, and on the first line that of another one.
	parserError = regexp.MustCompile(`^did not find expected (<|node content|key|'-'|',')`)
)

// syntaxError reports that data is not YAML, on the line where the error shows.
func (s *Source) syntaxError(file string, data []byte) {
	// No construct begins on the first line.
	data = append([]byte("\n"), bytes.TrimPrefix(data, []byte("\ufeff"))...)
	text, at := yamlError(data), place{file: file}
	number := yamlLine.FindStringSubmatch(text)
	begin, _ := strconv.Atoi(number[1])
	what := text[len(number[0]):]
	if at.line = begin - 1; parserError.MatchString(what) {
		if at.line = parserLine(data, text); begin < at.line {
			what += fmt.Sprintf(" in the text that begins on line %d", begin)
		}
	}
	s.addAt(at, "", "not valid YAML: "+what,
		"Look at this line and its neighbours: indentation (blanks, no tabs), a missing \": \", "+
			"or text with ':' or '#' that needs quotes, such as \"::\".")
}

// parserLine returns the line of an error of the parser, where the first line is 0. It is the last
// of the fewest lines that have this error with any continuation.
func parserLine(data []byte, text string) int {
	valid := "" // text that makes a line without the error valid
	switch {
	case strings.Contains(text, "','"):
		valid = ","
	case strings.Contains(text, "node content"):
		valid = "x"
	}
	lines := bytes.SplitAfter(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
	return sort.Search(len(lines)-1, func(i int) bool {
		return yamlError(append(bytes.Join(lines[:i+1], nil), valid...)) == text
	})
}

// yamlError returns the first error in data.
func yamlError(data []byte) string {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		if err := dec.Decode(new(yaml.Node)); err != nil {
			return err.Error()
		}
	}
}
