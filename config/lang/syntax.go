package lang

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
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

const (
	// maxEntries and maxFaulty bound the entries and the bytes of a file that withoutFaults reads.
	maxEntries = 64
	maxFaulty  = 128 << 10
)

// topKey begins an entry of the mapping that a file is.
var topKey = regexp.MustCompile(`(?m)^[A-Za-z_]+:(?:\s|$)`)

// withoutFaults parses the file without the entries that are not YAML, so that the errors in the
// others are reported as well. The first error has been reported. It returns nil if nothing is
// left.
func (s *Source) withoutFaults(file string, data []byte) (doc *yaml.Node) {
	keys := topKey.FindAllIndex(data, maxEntries+1)
	if len(keys) == 0 || len(keys) > maxEntries || len(data) > maxFaulty {
		return nil
	}
	keys[0][0] = 0 // with the text before it, which may be an entry that topKey does not match
	var good []byte
	faults := 0
	for i, at := range keys {
		entry := data[at[0]:]
		if i+1 < len(keys) {
			entry = data[at[0]:keys[i+1][0]]
		}
		var n yaml.Node
		with := slices.Concat(good, entry)
		err := yaml.Unmarshal(with, &n)
		if err == nil && len(n.Content) > 0 {
			good, doc = with, n.Content[0]
			continue
		}
		// An unknown anchor is in a fault.
		if err != nil && faults > 0 && !strings.Contains(err.Error(), "unknown anchor") {
			s.syntaxError(file, with)
		}
		faults++
		good = append(good, bytes.Repeat([]byte("\n"), bytes.Count(entry, []byte("\n")))...)
	}
	return doc
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
