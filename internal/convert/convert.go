// Package convert makes configurations of this target from those that other targets save: nvmetcli
// for the target of the Linux kernel (nvmet), and SPDK.
//
// What makes a difference to who gets at the data is never loosened: what needs authentication or
// TLS is not converted without.
package convert

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nvmf-target/nvmf-target/config"
)

// Result is a configuration.
type Result struct {
	// YAML has the notes as comments at its beginning.
	YAML []byte
	// Notes are what has no counterpart, in the order of the file.
	Notes []Note

	file   string
	places map[string]string // of listeners, subsystems and namespaces in the file
}

// NVMet converts what nvmetcli saves; file is the name of text for messages. The error is a
// config.Problems; with it the result has only notes, and may be nil. The result still has to be
// checked by config.Parse.
func NVMet(file string, text []byte) (*Result, error) {
	return convert("nvmet", file, text, (*reader).nvmet)
}

// SPDK converts what SPDK's rpc.py save_config writes. See NVMet.
func SPDK(file string, text []byte) (*Result, error) {
	return convert("SPDK", file, text, (*reader).spdk)
}

func convert(kind, file string, text []byte, read func(*reader, *value)) (*Result, error) {
	r := newReader(file, text)
	if len(text) > MaxFile {
		return nil, config.Problems{{
			Place: file, What: fmt.Sprintf("has more than %d bytes", MaxFile),
			Hint: "Is it the right file?",
		}}
	}
	root, offset, err := parse(text)
	switch {
	case err != nil:
		r.problem(&value{offset: offset}, "", "is no JSON: "+err.Error(),
			"Name a file that "+kind+" has saved.")
	case root.kind != '{':
		r.problem(root, "", "is "+root.what()+", not an object",
			"Name a file that "+kind+" has saved.")
	default:
		read(r, root)
		r.finish()
	}
	slices.SortStableFunc(r.notes, func(a, b Note) int { return cmp.Compare(a.offset, b.offset) })
	if len(r.problems) > 0 {
		return &Result{Notes: r.notes}, r.problems
	}
	yaml, places := r.render(kind)
	return &Result{YAML: []byte(yaml), Notes: r.notes, file: file, places: places}, nil
}

// Place says where the part of the result that a path names ("subsystems[0].serial") was in the
// file.
func (r *Result) Place(path string) string {
	for end := len(path); end > 0; end-- {
		if place, ok := r.places[path[:end]]; ok {
			return place
		}
	}
	return cmp.Or(r.places[path], r.file)
}
