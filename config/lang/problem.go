package lang

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nvmf-target/nvmf-target/internal/secret"
)

// Problem is one error or warning about a configuration, with its place and a hint how to fix it.
type Problem struct {
	// Warning: the configuration can be used.
	Warning bool
	// InUse: another process, which may be ending, uses a resource that the configuration names.
	InUse bool

	// Place is "FILE:LINE:COLUMN", "FILE" or "environment variable NAME".
	Place string
	// Path is the key: "subsystems[0].namespaces[1].size"; "" for the whole document.
	Path string
	What string
	Hint string

	place
}

// request is the place of values from a client that changes a configuration.
const request = "request"

// BadRequest is the error for a client whose request has a problem at path.
func BadRequest(path, what, hint string) error {
	return Problems{{Place: request, Path: path, What: what, Hint: hint}}
}

// OfRequest reports whether the problem is in the request of a client.
func (p Problem) OfRequest() bool { return p.Place == request }

// In reports whether the problem is in the file of an edit.
func (p Problem) In(e *Edit) bool { return p.file == Quoted(e.Path) }

// InRequest returns the problem as one at path in the request of a client.
func (p Problem) InRequest(path string) Problem {
	p.Place, p.place, p.Path = request, place{}, path
	return p
}

// Error is one line: `nvmf.yaml:12:9: subsystems[0].namespaces[1].sise: unknown key. Did you ...?`.
func (p Problem) Error() string {
	b := p.Place + ": "
	if p.Warning {
		b += "warning: "
	}
	if p.Path != "" {
		b += p.Path + ": "
	}
	b += p.What
	if p.Hint != "" {
		b += ". " + p.Hint
	}
	return b
}

// Problems is every error and warning found, in the order of the file.
type Problems []Problem

// Error is one line for each problem.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Sort sorts the problems in the order of the file, followed by problems of included files.
func (ps Problems) Sort() {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line),
			cmp.Compare(a.column, b.column))
	})
}

// Failed reports whether any of the problems is an error.
func (ps Problems) Failed() bool {
	return slices.ContainsFunc(ps, func(p Problem) bool { return !p.Warning })
}

// Source knows the origin of each value of a configuration, and the problems found in it.
type Source struct {
	file   string
	places map[string]place
	// bad holds the paths that have been reported already. Later checks skip them.
	bad                map[string]bool
	problems, warnings Problems
	seldom             map[string]int // see AddWarningOnce
}

// place is a position in a file, or the name of an environment variable.
type place struct {
	file         string // "" is the main file
	line, column int
	variable     string
}

// NewSource returns the source of a configuration without values; file is its name in messages.
func NewSource(file string) *Source {
	return &Source{
		file: file, places: map[string]place{}, bad: map[string]bool{}, seldom: map[string]int{},
	}
}

// Add records a problem at path, or the nearest enclosing value with a place. A path has only one.
func (s *Source) Add(path, what, hint string) {
	if s.bad[path] {
		return
	}
	s.bad[path] = true
	s.addAt(s.find(path), path, what, hint)
}

// AddWarning records a problem with which the configuration can still be used.
func (s *Source) AddWarning(path, what, hint string) {
	p := s.problemAt(s.find(path), path, what, hint)
	p.Warning = true
	s.warnings = append(s.warnings, p)
}

// maxSeldom is the maximum number of warnings of a kind.
const maxSeldom = 16

// AddWarningOnce is AddWarning for the first use of each text. After maxSeldom texts it adds the
// warning more, which is the same for all texts of a kind, and then none.
func (s *Source) AddWarningOnce(more, path, what, hint string) {
	if s.seldom[what]++; s.seldom[what] > 1 {
		return
	}
	s.seldom[more]++
	switch n := s.seldom[more]; {
	case n <= maxSeldom:
		s.AddWarning(path, what, hint)
	case n == maxSeldom+1:
		s.AddWarning(path, more, "The others are not listed.")
	}
}

// Bad reports whether an error at path has been reported.
func (s *Source) Bad(path string) bool { return s.bad[path] }

// Given reports whether a file or a variable has a value at path.
func (s *Source) Given(path string) bool {
	_, given := s.places[path]
	return given
}

// Overridden reports whether the value at path is that of an environment variable.
func (s *Source) Overridden(path string) bool { return s.find(path).variable != "" }

// Faulty reports whether there is an error in the value at path or inside it.
func (s *Source) Faulty(path string) bool {
	return slices.ContainsFunc(s.problems, func(p Problem) bool {
		rest, inside := strings.CutPrefix(p.Path, path)
		return !p.Warning && inside && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// Problem returns an error about the value at path ("subsystems[0].namespaces[1].path") that was
// found elsewhere, with the place of the value. It does not record the error.
func (s *Source) Problem(path, what, hint string) Problem {
	return s.problemAt(s.find(path), path, what, hint)
}

// Warnings returns the warnings so far.
func (s *Source) Warnings() Problems { return slices.Clone(s.warnings) }

func (s *Source) addAt(at place, path, what, hint string) {
	s.problems = append(s.problems, s.problemAt(at, path, what, hint))
}

func (s *Source) problemAt(at place, path, what, hint string) Problem {
	p := Problem{
		Place: s.where(at), Path: secret.Mask(path), What: secret.Mask(what),
		Hint: secret.Mask(hint), place: at,
	}
	if at.variable != "" {
		p.Place = "environment variable " + at.variable
	} else if at.line > 0 && at.column > 0 {
		p.Place += fmt.Sprintf(":%d", at.column)
	}
	return p
}

// where returns "FILE:LINE", or "FILE" without a line.
func (s *Source) where(at place) string {
	file := cmp.Or(at.file, s.file)
	if at.line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d", file, at.line)
}

// other formats another place for a message about the place at.
func (s *Source) other(other, at place) string {
	if other.file == at.file {
		return fmt.Sprintf("line %d", other.line)
	}
	return s.where(other)
}

// find returns the place of path or of the nearest value around it.
func (s *Source) find(path string) place {
	for {
		if at, ok := s.places[path]; ok || path == "" {
			return at
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
}

// Err returns all problems in the order of the files if there is an error among them, else nil.
func (s *Source) Err() error {
	if len(s.problems) == 0 {
		return nil
	}
	s.problems = append(s.problems, s.warnings...)
	s.problems.Sort()
	return slices.Clone(s.problems)
}
