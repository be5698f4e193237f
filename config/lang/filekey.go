package lang

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/internal/secret"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

const (
	// FileSuffix is appended to the name of a key for the key that names a file with its value.
	FileSuffix = "_file"
	// maxValueFile is the size limit of such a file, in bytes.
	maxValueFile = 4 << 10
)

// fileKey returns the index of the key with its value in the file or program of name, or -1.
func fileKey(keys []Key, name string) int {
	return slices.IndexFunc(keys, func(k Key) bool {
		return k.File && name == k.Name+FileSuffix || k.Secret && name == k.Name+commandSuffix
	})
}

// HintUnreadable is the hint for a value file that cannot be read.
const HintUnreadable = "Correct the path, or the file."

// fromFile returns the content of the file that n names, less the final newline, in place of n. It
// reports errors at path. If isSecret is set, others must not be able to read the file.
func (d *Decoder) fromFile(n *yaml.Node, path string, isSecret bool) *yaml.Node {
	d.places[path] = d.placeOf(n)
	name, what, hint := d.expand(resolved(n))
	switch {
	case what != "":
	case resolved(n).Tag != "!!str" || name == "":
		what, hint = "must be the path of a file, not "+KindName(resolved(n)), "Write its path."
	case isSecret && secret.Mask(name) != name: // the error of the file would repeat it
		what, hint = "must be the path of a file, not a key", "Write the path of its file."
	default:
		var text []byte
		var err error
		if text, err = sys.ReadFile(d.beside(n, name), maxValueFile, false); err != nil {
			what, hint = err.Error(), HintUnreadable
		} else if isSecret && public(d.beside(n, name)) {
			what, hint = "everybody can read "+Quoted(name), "chmod 600 it, and make another key."
		} else if len(text) > maxValueFile {
			what = fmt.Sprintf("%s is larger than %v", Quoted(name), Size(maxValueFile))
			hint = "Is it the right file?"
		}
		n = d.literal(n, strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r"))
	}
	if what != "" {
		d.Add(path, what, hint)
	}
	return n
}

// literal returns a node with this text in place of n.
func (d *Decoder) literal(n *yaml.Node, text string) *yaml.Node {
	out := &yaml.Node{
		Kind: yaml.ScalarNode, Tag: "!!str", Value: quoteVariables(text), Line: n.Line,
		Column: n.Column,
	}
	d.files[out] = d.files[n]
	return out
}

// public reports whether users other than the owner and the group can read a file.
func public(name string) bool {
	info, err := os.Stat(name)
	return err != nil || info.Mode().Perm()&0o004 != 0
}

// beside returns the path that n names, a relative one below the directory of the file with n.
func (d *Decoder) beside(n *yaml.Node, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(d.fileOf(n)), name)
}

// fileOf returns the file that contains n.
func (d *Decoder) fileOf(n *yaml.Node) string {
	file := cmp.Or(d.files[n], d.file)
	if text, err := strconv.Unquote(file); err == nil {
		file = text // see Quoted
	}
	return file
}

// nameFromFile replaces name_file of an entry by name with the content, to make entries comparable.
func (d *Decoder) nameFromFile(entry *yaml.Node, name string) {
	at := Slot(entry, name+FileSuffix)
	if at == nil || Slot(entry, name) != nil {
		return
	}
	for i := 0; i+1 < len(entry.Content); i += 2 {
		if &entry.Content[i+1] == at {
			key := *entry.Content[i]
			key.Value = name
			d.files[&key] = d.files[entry.Content[i]]
			*at, entry.Content[i] = d.fromFile(*at, name, false), &key
		}
	}
}
