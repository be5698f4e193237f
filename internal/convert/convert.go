// Package convert makes configurations of this target from files saved by other targets: by
// nvmetcli for the target of the Linux kernel (nvmet), and by SPDK.
//
// Access is never loosened: nothing that needs authentication or TLS is converted without it.
package convert

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/nvmf-target/nvmf-target/config"
)

// Options give the context of a text.
type Options struct {
	// Machine has the storage that the text names; nil means none is known.
	Machine Machine
	// Check validates a configuration. It returns config.Problems, another error, or nil.
	Check func(yaml []byte) error
	// Live: the text was read from a running target, not from a file.
	Live bool
}

// Result is a converted configuration.
type Result struct {
	// YAML has the notes as comments at its beginning.
	YAML []byte
	// Notes are about items without a counterpart, in the order of the file.
	Notes []Note
}

// NVMet converts a file saved by nvmetcli; file is the name of text for messages. Items that cannot
// be used are left out one by one, with a note and the reason. The error is a config.Problems if
// nothing is left; the result then has only notes, or is nil.
func NVMet(file string, text []byte, o Options) (*Result, error) {
	return convert("nvmet", file, text, o, (*reader).nvmet)
}

// SPDK converts the output of rpc.py save_config of SPDK. See NVMet.
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
		r.problem(&value{offset: offset}, "", "is not JSON: "+err.Error(),
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
		var ps config.Problems
		for _, p := range r.problems {
			ps = append(ps, config.Problem{
				Place: r.place(p.offset), Path: p.path, What: p.what, Hint: p.hint,
			})
		}
		return &Result{Notes: r.notes}, ps
	}
	return &Result{YAML: []byte(yaml), Notes: r.notes}, nil
}

func (r *reader) sortNotes() {
	slices.SortStableFunc(r.notes, func(a, b Note) int { return cmp.Compare(a.offset, b.offset) })
}

// maxRounds bounds the checks, repeated since items may depend on others that are left out.
const maxRounds = 8

// write makes the configuration of the usable items.
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
