// Package convert makes configurations of this target from those that other targets save: nvmetcli
// for the target of the Linux kernel (nvmet), and SPDK.
//
// What makes a difference to who gets at the data is never loosened: what needs authentication or
// TLS is not converted without.
package convert

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/nvmf-target/nvmf-target/config"
)

// Options say what is known besides the text.
type Options struct {
	// Machine knows the storage that the text names; nil: nothing does.
	Machine Machine
	// Check returns what is wrong with a configuration: config.Problems, another error, or nil.
	Check func(yaml []byte) error
	// Live: the text is of a running target, and no file has it.
	Live bool
}

// Result is a configuration.
type Result struct {
	// YAML has the notes as comments at its beginning.
	YAML []byte
	// Notes are what has no counterpart, in the order of the file.
	Notes []Note
}

// NVMet converts what nvmetcli saves; file is the name of text for messages. What cannot be used is
// left out, item by item, and notes say what and why. The error is a config.Problems if nothing is
// left; with it the result has only notes, and may be nil.
func NVMet(file string, text []byte, o Options) (*Result, error) {
	return convert("nvmet", file, text, o, (*reader).nvmet)
}

// SPDK converts what SPDK's rpc.py save_config writes. See NVMet.
func SPDK(file string, text []byte, o Options) (*Result, error) {
	return convert("SPDK", file, text, o, (*reader).spdk)
}

func convert(kind, file string, text []byte, o Options, read func(*reader, *value),
) (*Result, error) {
	r := newReader(file, text, o)
	if len(text) > MaxFile {
		return nil, config.Problems{{
			Place: file, What: fmt.Sprintf("has more than %d bytes", MaxFile),
			Hint: "Is it the right file?",
		}}
	}
	root, offset, err := parse(blankComments(text))
	yaml := ""
	switch {
	case err != nil:
		r.problem(&value{offset: offset}, "", "is no JSON: "+err.Error(),
			"Name a file that "+kind+" has saved.")
	case root.kind != '{':
		r.problem(root, "", "is "+root.what()+", not an object",
			"Name a file that "+kind+" has saved.")
	default:
		read(r, root)
		if yaml, err = r.write(kind); err != nil {
			return nil, err
		}
	}
	r.sortNotes()
	if len(r.problems) > 0 {
		return &Result{Notes: r.notes}, r.configProblems()
	}
	return &Result{YAML: []byte(yaml), Notes: r.notes}, nil
}

func (r *reader) sortNotes() {
	slices.SortStableFunc(r.notes, func(a, b Note) int { return cmp.Compare(a.offset, b.offset) })
}

// maxRounds is how often a configuration is checked: what is left out may be what something else
// needs.
const maxRounds = 8

// write makes the configuration of what can be used of it here.
func (r *reader) write(kind string) (yaml string, err error) {
	for round := 1; ; round++ {
		r.finish()
		if len(r.problems) > 0 {
			return "", nil
		}
		r.sortNotes()
		yaml = r.render(kind)
		if r.Check == nil {
			return yaml, nil
		}
		err = r.Check([]byte(yaml))
		problems, ok := errors.AsType[config.Problems](err)
		if !ok || round == maxRounds || !r.leaveOut(problems) {
			return yaml, err
		}
	}
}
