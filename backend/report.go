package backend

import "fmt"

// Problem is one thing that is wrong with configured storage, or that may go wrong later.
type Problem struct {
	// What says what is wrong: a phrase that follows the name of the storage.
	What string
	// Hint says how to fix it, as a sentence.
	Hint string
}

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
}

// Errorf adds an error; format and args say what is wrong.
func (r *Report) Errorf(hint, format string, args ...any) {
	r.Errors = append(r.Errors, Problem{fmt.Sprintf(format, args...), hint})
}

// Warnf adds a warning; format and args say what may go wrong.
func (r *Report) Warnf(hint, format string, args ...any) {
	r.Warnings = append(r.Warnings, Problem{fmt.Sprintf(format, args...), hint})
}
