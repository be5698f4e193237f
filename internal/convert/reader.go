package convert

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nvmf-target/nvmf-target/internal/secret"
)

// maxProblems and maxNotes bound the errors and notes of a file; further ones are not reported.
const (
	maxProblems = 50
	maxNotes    = 1000
)

// Note is about an item without a counterpart, or something to be done by hand.
type Note struct {
	// Place is FILE:LINE:COLUMN.
	Place string
	Text  string

	offset int
}

func (n Note) String() string { return n.Place + ": " + n.Text }

// reader reads the values of one file and collects its errors.
type reader struct {
	file     string
	lines    []int // their starts
	problems []problem
	notes    []Note
	out      target
	Options
}

// problem is an error of a value.
type problem struct {
	offset           int
	path, what, hint string
}

// try reads an item and reports whether it has no errors. Errors become notes: it is left out.
func (r *reader) try(what string, read func()) bool {
	before := r.problems
	r.problems = nil
	read()
	found := r.problems
	r.problems = before
	for _, p := range found {
		r.note(&value{offset: p.offset}, "left out: %s: %s: %s", strings.TrimSpace(what),
			short(p.path), p.what)
	}
	return len(found) == 0
}

func newReader(file string, text []byte, o Options) *reader {
	r := &reader{file: short(file), lines: []int{0}, Options: o}
	for i, c := range text {
		if c == '\n' {
			r.lines = append(r.lines, i+1)
		}
	}
	return r
}

// place returns FILE:LINE:COLUMN of an offset, or the name of a running target.
func (r *reader) place(offset int) string {
	if r.Live {
		return r.file
	}
	line, _ := slices.BinarySearch(r.lines, offset+1)
	return fmt.Sprintf("%s:%d:%d", r.file, line, offset-r.lines[line-1]+1)
}

func (r *reader) problem(v *value, path, what, hint string) {
	if len(r.problems) < maxProblems {
		r.problems = append(r.problems, problem{v.offset, path, what, hint})
	}
}

func (r *reader) note(v *value, format string, args ...any) {
	text := secret.Mask(fmt.Sprintf(format, args...))
	if len(r.notes) == maxNotes {
		text = "there are more notes than these"
	}
	if len(r.notes) <= maxNotes {
		r.notes = append(r.notes, Note{Place: r.place(v.offset), Text: text, offset: v.offset})
	}
}

// list returns a member that is a list, nil if it is missing.
func (r *reader) list(v *value, name, path string) []*value {
	m := v.member(name)
	if m == nil {
		return nil
	}
	if m.kind != '[' {
		r.problem(m, path+name, "is "+m.what()+", not a list", "Save the configuration again.")
		return nil
	}
	return m.items
}

func (r *reader) objects(v *value, name, path string) []*value {
	list := slices.Clone(r.list(v, name, path))
	return slices.DeleteFunc(list, func(o *value) bool {
		if o.kind != '{' {
			r.problem(o, path+name, "has "+o.what()+", not an object",
				"Save the configuration again.")
		}
		return o.kind != '{'
	})
}

// object returns a member that is an object, an empty one if it is missing.
func (r *reader) object(v *value, name, path string) *value {
	m := v.member(name)
	if m != nil && m.kind != '{' {
		r.problem(m, path+name, "is "+m.what()+", not an object", "Save the configuration again.")
		m = nil
	}
	if m == nil {
		m = &value{offset: v.offset, kind: '{', used: map[string]bool{}}
	}
	return m
}

// str returns a member that is text or a number, "" if it is missing.
func (r *reader) str(v *value, name, path string) string {
	m := v.member(name)
	if m == nil {
		return ""
	}
	switch s := m.scalar.(type) {
	case string:
		return s
	case json.Number:
		return s.String()
	}
	r.problem(m, path+name, "is "+m.what()+", not text", "Write it in quotes.")
	return ""
}

// required returns a text and reports an error if it is missing.
func (r *reader) required(v *value, name, path string) string {
	s := r.str(v, name, path)
	if s == "" {
		r.problem(v, path+name, "is missing or empty", "Add it, or save the configuration again.")
	}
	return s
}

// strs returns the texts of a list.
func (r *reader) strs(v *value, name, path string) (list []string) {
	for _, m := range r.list(v, name, path) {
		switch s := m.scalar.(type) {
		case string:
			list = append(list, s)
		case json.Number:
			list = append(list, s.String())
		default:
			r.problem(m, path+name, "has "+m.what()+", not text", "Write it in quotes.")
		}
	}
	return list
}

// number returns a member that is a number, or text with digits; missing if there is none.
func (r *reader) number(v *value, name, path string, missing uint64) uint64 {
	m := v.member(name)
	if m == nil {
		return missing
	}
	n, err := strconv.ParseUint(fmt.Sprint(m.scalar), 10, 64)
	if m.kind != 0 || err != nil {
		r.problem(m, path+name, "is "+m.what()+", not a whole number from 0", "Correct it.")
		return missing
	}
	return n
}

// flag returns true for true, 1 or "1", and false for false, 0 or "0".
func (r *reader) flag(v *value, name, path string, missing bool) bool {
	m := v.member(name)
	if m == nil {
		return missing
	}
	switch fmt.Sprint(m.scalar) {
	case "true", "1":
		return true
	case "false", "0":
		return false
	}
	r.problem(m, path+name, "is "+m.what()+", not true or false", "Correct it.")
	return missing
}

// rest notes the unused members of an object, except the ones in silent, which need no counterpart.
func (r *reader) rest(v *value, path string, silent ...string) {
	for i, name := range v.names {
		if v.used[name] || slices.Contains(silent, name) {
			continue
		}
		if m := v.items[i]; m.kind == 0 {
			r.note(m, "%s: %s has no counterpart", short(path+name), m.what())
		} else if len(m.items) > 0 {
			r.note(m, "%s has no counterpart", short(path+name))
		}
	}
}
