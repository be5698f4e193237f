package config

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

// OfRequest reports whether the problem is in the request of a client, see Edit.
func (p Problem) OfRequest() bool { return p.Place == request }

// Error is one line: "nvmf.yaml:12:9: subsystems[0].namespaces[1].sise: unknown key. Did you mean
// "size"?".
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

// source knows the origin of each value of a configuration.
type source struct {
	file   string
	places map[string]place
	// bad holds the paths that have been reported already. Later checks skip them.
	bad                map[string]bool
	problems, warnings Problems
}

// place is a position in a file, or the name of an environment variable.
type place struct {
	file         string // "" is the main file
	line, column int
	variable     string
}

func newSource(file string) *source {
	return &source{file: file, places: map[string]place{}, bad: map[string]bool{}}
}

// add records a problem at path, or at the nearest enclosing value that has a place. A path is
// reported once.
func (s *source) add(path, what, hint string) {
	if s.bad[path] {
		return
	}
	s.bad[path] = true
	s.addAt(s.find(path), path, what, hint)
}

// warn records a problem with which the configuration can still be used.
func (s *source) warn(path, what, hint string) {
	p := s.problemAt(s.find(path), path, what, hint)
	p.Warning = true
	s.warnings = append(s.warnings, p)
}

func (s *source) addAt(at place, path, what, hint string) {
	s.problems = append(s.problems, s.problemAt(at, path, what, hint))
}

func (s *source) problemAt(at place, path, what, hint string) Problem {
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
func (s *source) where(at place) string {
	file := cmp.Or(at.file, s.file)
	if at.line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d", file, at.line)
}

// other formats another place for a message about the place at.
func (s *source) other(other, at place) string {
	if other.file == at.file {
		return fmt.Sprintf("line %d", other.line)
	}
	return s.where(other)
}

// find returns the place of path or of the nearest value around it.
func (s *source) find(path string) place {
	for {
		if at, ok := s.places[path]; ok || path == "" {
			return at
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
}

func (s *source) err() error {
	if len(s.problems) == 0 {
		return nil
	}
	s.problems = append(s.problems, s.warnings...)
	s.problems.Sort()
	return slices.Clone(s.problems)
}

// Problem makes an error about the value at path ("subsystems[0].namespaces[1].path") that was
// found outside this package. It adds the place of the value in the file.
func (c *Config) Problem(path, what, hint string) Problem {
	s := newSource("configuration")
	if c.src != nil {
		s.file, s.places = c.src.file, c.src.places
	}
	s.add(path, what, hint)
	return s.problems[0]
}

// Warning is Problem for a warning.
func (c *Config) Warning(path, what, hint string) Problem {
	p := c.Problem(path, what, hint)
	p.Warning = true
	return p
}
