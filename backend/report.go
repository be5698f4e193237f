package backend

import (
	"errors"
	"fmt"
	"strings"
)

// Problem is one thing that is wrong with configured storage, or that may go wrong later.
type Problem struct {
	// What says what is wrong: a phrase that follows the name of the storage.
	What string
	// Hint says how to fix it, in a sentence; "" if What says all.
	Hint string
	// InUse: something else has the storage, possibly a process that is about to end.
	InUse bool
}

// ErrInUse is that of Open if something else has the storage.
var ErrInUse = errors.New("is in use")

// Report is what the Probe of a backend finds without changing anything. Every backend has one,
//
//	func Probe(cfg Config) backend.Report
//
// which "check" calls, and "serve" before it opens the storage. Things may change in between, so
// Open checks again.
type Report struct {
	// Errors make Open fail.
	Errors []Problem
	// Warnings are about what works now and may fail later.
	Warnings []Problem
	// Space is what the storage may take of a file system that others may share.
	Space Space
}

// Space is how far storage may grow, in bytes. The zero value is that of storage which does not.
type Space struct {
	// FileSystem is the device number of the file system, which has Free bytes left.
	FileSystem uint64
	Free       int64
	// Growth is what the storage does not have yet. If AtOnce is set, Open takes all of it.
	Growth int64
	AtOnce bool
}

// Errorf adds an error; format and args say what is wrong.
func (r *Report) Errorf(hint, format string, args ...any) {
	r.Errors = append(r.Errors, Problem{What: fmt.Sprintf(format, args...), Hint: hint})
}

// Warnf adds a warning; format and args say what may go wrong.
func (r *Report) Warnf(hint, format string, args ...any) {
	r.Warnings = append(r.Warnings, Problem{What: fmt.Sprintf(format, args...), Hint: hint})
}

// Add adds err, with its hint if WithHint made it.
func (r *Report) Add(err error) {
	p := Problem{What: err.Error(), InUse: errors.Is(err, ErrInUse)}
	if h, ok := err.(*hinted); ok {
		p.What, p.Hint = h.error.Error(), h.hint
	}
	r.Errors = append(r.Errors, p)
}

// Err returns the errors as one, each with its hint, nil if there are none.
func (r *Report) Err() error {
	var errs []error
	for _, p := range r.Errors {
		errs = append(errs, WithHint(errors.New(p.What), p.Hint))
	}
	return errors.Join(errs...)
}

// WithHint returns err with a hint, a sentence that says how to fix it. The text of the result is
// "err (hint)", the hint as part of that sentence.
func WithHint(err error, hint string) error {
	if hint == "" {
		return err
	}
	return &hinted{err, hint}
}

type hinted struct {
	error
	hint string
}

func (h *hinted) Error() string {
	hint := strings.ToLower(h.hint[:1]) + strings.TrimSuffix(h.hint[1:], ".")
	return h.error.Error() + " (" + hint + ")"
}

// Unwrap returns the error without the hint.
func (h *hinted) Unwrap() error { return h.error }
