package backend

import (
	"errors"
	"fmt"
	"strings"
)

// Problem is a fault in configured storage, or one that may appear later.
type Problem struct {
	// What describes the problem: a phrase that follows the name of the storage.
	What string
	// Hint is a sentence that explains how to fix it; "" if What is enough.
	Hint string
	// InUse reports whether the storage is in use, possibly by a process that is about to end.
	InUse bool
	// Offline reports whether the storage does not answer for now.
	Offline bool
}

// ErrInUse is the error of Open for storage that is in use.
var ErrInUse = errors.New("is in use")

// Report is the result of the Probe function of a backend, which changes nothing. Every backend has
// one,
//
//	func Probe(cfg Config) backend.Report
//
// "check" calls it, and "serve" calls it before it opens the storage. The storage may change in
// between, so Open checks again.
type Report struct {
	// Errors make Open fail.
	Errors []Problem
	// Warnings are about storage that works now and may fail later.
	Warnings []Problem
	// Space is the space that the storage may take from a file system.
	Space Space
	// Identity names storage that can have several names, as Info.Identity; "" if it is not known.
	Identity string
}

// Space is the possible growth of storage, in bytes; zero means none.
type Space struct {
	// FileSystem is the device number of the file system, which has Free bytes left.
	FileSystem uint64
	Free       int64
	// Growth is the space that is not allocated yet. If AtOnce is set, Open allocates all of it.
	Growth int64
	AtOnce bool
}

// Errorf adds an error; format and args describe it.
func (r *Report) Errorf(hint, format string, args ...any) {
	r.Errors = append(r.Errors, Problem{What: fmt.Sprintf(format, args...), Hint: hint})
}

// Warnf adds a warning; format and args describe it.
func (r *Report) Warnf(hint, format string, args ...any) {
	r.Warnings = append(r.Warnings, Problem{What: fmt.Sprintf(format, args...), Hint: hint})
}

// Add adds err, with its hint if WithHint made it.
func (r *Report) Add(err error) {
	p := Problem{
		What: err.Error(), InUse: errors.Is(err, ErrInUse), Offline: errors.Is(err, ErrOffline),
	}
	if h, ok := err.(*hinted); ok {
		p.What, p.Hint = h.error.Error(), h.hint
	}
	r.Errors = append(r.Errors, p)
}

// Err returns the errors as one, each with its hint, or nil if there are none.
func (r *Report) Err() error {
	var errs []error
	for _, p := range r.Errors {
		errs = append(errs, WithHint(errors.New(p.What), p.Hint))
	}
	return errors.Join(errs...)
}

// WithHint returns err with a hint, a sentence that explains how to fix it. The text of the result
// is "err (hint)", with the hint as part of that sentence.
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
