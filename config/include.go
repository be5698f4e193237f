package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	// maxFiles is the number of files that may be included.
	maxFiles = 1024
	// maxMerged is more than the nodes copied for a configuration of maxValues.
	maxMerged = 4 * maxValues
)

// includeKey is the only key that is read before all files are known. It has no variable.
const includeKey = "include"

func (c *Config) includeKey() Key {
	return NewKey(includeKey, Sequence(&c.includes, 0, maxFiles, func(p *string) Value {
		return checked(p, "path", schema{"minLength": 1}, func(s string) (what, hint string) {
			if _, err := filepath.Match(s, ""); err != nil || s == "" {
				return fmt.Sprintf("%q is not a path or pattern", printable(s)),
					"Write for instance conf.d/*.yaml."
			}
			return "", ""
		})
	}), "More files, which are read as if they were part of this one. A pattern with `*`, `?` "+
		"or `[a-z]` names the files that match, sorted; files that begin with a dot do not. Paths "+
		"are relative to the directory of this file. Lists of listeners, hosts, referrals and "+
		"subsystems are appended to the lists of earlier files. Entries of several files with "+
		"the same `nqn` are one subsystem: one of them describes it, the others have only "+
		"`nqn`, `hosts` and `namespaces`. No other key may be in two files, and included files "+
		"include no others; no environment variable overrides this key. Set it when several "+
		"people or programs write parts of the configuration.").
		Without("none")
}

// merger adds included files to the file that includes them.
type merger struct {
	*decoder
	root *yaml.Node
	keys []Key
	// copies are the nodes made here. All other nodes may have aliases.
	copies map[*yaml.Node]bool
	// merged counts the nodes that were copied and added.
	merged int
	// described has the index of each NQN among the first entries of subsystems.
	described map[string]int
	entries   int
	// seen has the files that were read, left the number of bytes that may follow.
	seen map[string]bool
	left int
}

// include returns the file merged with the files that it includes, of which it reads at most left
// bytes.
func (d *decoder) include(c *Config, keys []Key, root *yaml.Node, left int) *yaml.Node {
	root = resolved(root)
	for i, k := range keys {
		if at := slot(root, k.Name); at != nil && (k.Name == includeKey || k.Name == managedKey) {
			d.value(keys[i].Value, *at, k.Name)
		}
	}
	if len(c.includes) == 0 && c.Managed == "" {
		return root
	}
	m := merger{
		decoder: d, root: root, keys: keys, copies: map[*yaml.Node]bool{},
		described: map[string]int{},
		seen:      map[string]bool{filepath.Clean(d.file): true}, left: left,
	}
	m.own(&m.root)
	for i, pattern := range c.includes {
		path := fmt.Sprintf("%s[%d]", includeKey, i)
		for _, name := range d.matches(pattern, path) {
			if len(m.seen) > maxFiles {
				m.tooMuch(path, maxFiles)
				return m.root
			}
			m.read(path, name, maxFiles)
		}
	}
	if c.Managed != "" {
		d.managed = filepath.Clean(c.Managed)
		for _, name := range d.managedFiles(d.managed) {
			m.read(managedKey, name, maxManaged)
		}
	}
	if m.merged > maxMerged {
		d.values = m.merged // too many
	}
	return m.root
}

// read reads the file that the key at path names, up to a number of files, and adds it to the root.
func (m *merger) read(path, name string, most int) {
	if m.seen[name] || m.left < 0 {
		return
	}
	m.seen[name] = true
	data, err := m.decoder.read(name, m.left)
	m.left -= len(data)
	switch {
	case err != nil:
		m.addAt(m.find(path), path, err.Error(), "Correct the path, or the file.")
	case m.left < 0:
		m.tooMuch(path, most)
	default:
		m.file(shown(name), data)
	}
}

func (m *merger) tooMuch(path string, most int) {
	m.add(path, fmt.Sprintf("more than %d files or %v", most, Size(maxFile)),
		"Are these files of a configuration?")
}

// matches returns the files that match a pattern.
func (d *decoder) matches(pattern, path string) []string {
	if d.bad[path] {
		return nil
	}
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(filepath.Dir(d.file), pattern)
	}
	if !strings.ContainsAny(pattern, "*?[") {
		return []string{filepath.Clean(pattern)}
	}
	names, _ := filepath.Glob(pattern) // the syntax of pattern was checked
	return slices.DeleteFunc(names, func(name string) bool {
		return strings.HasPrefix(filepath.Base(name), ".") &&
			!strings.HasPrefix(filepath.Base(pattern), ".")
	})
}

// readRegular reads up to most+1 bytes of a regular file.
func readRegular(name string, most int) ([]byte, error) {
	info, err := os.Stat(name) // before open, which may block or harm a special file
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &os.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, int64(most)+1))
}

// file adds a file to the root.
func (m *merger) file(name string, data []byte) {
	doc := m.document(name, data)
	if doc == nil {
		return
	}
	m.belongs(doc, name)
	if doc = resolved(doc); doc.Kind != yaml.MappingNode {
		m.addAt(m.placeOf(doc), "", "must be a mapping of keys to values, not "+kindName(doc),
			"Write it like the file that includes it.")
		return
	}
	for i := 0; i+1 < len(doc.Content); i += 2 {
		switch key := doc.Content[i]; key.Value {
		case includeKey:
			m.addAt(m.placeOf(key), key.Value, "included files cannot include others",
				"Name these files in "+m.source.file+".")
			return
		case managedKey:
			m.addAt(m.placeOf(key), key.Value, "included files cannot have this key",
				"Write it in "+m.source.file+".")
			return
		}
	}
	m.mapping(m.root, doc, func(key *yaml.Node, at **yaml.Node, value *yaml.Node) bool {
		switch key.Value {
		case "subsystems":
			return m.subsystems(at, value)
		case "listeners", "hosts":
			return m.extend(at, value, yaml.SequenceNode)
		}
		i := slices.IndexFunc(m.keys, func(k Key) bool { return k.Name == key.Value })
		if i < 0 {
			return false
		}
		_, section := m.keys[i].Value.(Mapping)
		if !section || resolved(*at).Kind != yaml.MappingNode || value.Kind != yaml.MappingNode {
			return false
		}
		m.own(at)
		m.mapping(*at, value, func(key *yaml.Node, at **yaml.Node, value *yaml.Node) bool {
			return key.Value == "referrals" && m.extend(at, value, yaml.SequenceNode)
		})
		return true
	})
}

// belongs records the file of a node and of the nodes below it.
func (d *decoder) belongs(n *yaml.Node, file string) {
	d.files[n] = file
	for _, c := range n.Content {
		d.belongs(c, file)
	}
}

// mapping adds the entries of from to the copy into. extend merges an entry of both. If it returns
// false, the key appears twice, which is reported when it is decoded.
func (m *merger) mapping(into, from *yaml.Node,
	extend func(key *yaml.Node, at **yaml.Node, value *yaml.Node) bool,
) {
	for i := 0; i+1 < len(from.Content) && m.merged <= maxMerged; i += 2 {
		key, value := from.Content[i], from.Content[i+1]
		m.merged++
		if at := slot(into, key.Value); at == nil || !extend(key, at, resolved(value)) {
			into.Content = append(into.Content, key, value)
		}
	}
}

// extend appends the content of from to the content of *at if both are of this kind.
func (m *merger) extend(at **yaml.Node, from *yaml.Node, kind yaml.Kind) bool {
	if resolved(*at).Kind != kind || from.Kind != kind {
		return false
	}
	m.own(at)
	if m.merged += len(from.Content); m.merged <= maxMerged {
		(*at).Content = append((*at).Content, from.Content...)
	}
	return true
}

// own replaces a node by a copy that may be changed.
func (m *merger) own(at **yaml.Node) {
	if m.copies[*at] {
		return
	}
	n := *resolved(*at)
	n.Content = slices.Clone(n.Content)
	m.merged += len(n.Content)
	m.files[&n] = m.files[*at]
	m.copies[&n] = true
	*at = &n
}

// subsystems appends subsystems to the list at *at, or merges them into subsystems of earlier
// files.
func (m *merger) subsystems(at **yaml.Node, from *yaml.Node) bool {
	if resolved(*at).Kind != yaml.SequenceNode || from.Kind != yaml.SequenceNode {
		return false
	}
	m.own(at)
	list := *at
	for ; m.entries < len(list.Content); m.entries++ {
		if nqn := m.nqn(list.Content[m.entries]); nqn != "" {
			m.described[nqn] = m.entries
		}
	}
	for _, entry := range from.Content {
		if i, ok := m.described[m.nqn(entry)]; ok {
			m.subsystem(&list.Content[i], resolved(entry), i)
		} else {
			list.Content = append(list.Content, entry)
		}
	}
	return true
}

// subsystem merges an entry into the subsystem at *at, entry i of its list.
func (m *merger) subsystem(at **yaml.Node, from *yaml.Node, i int) {
	first, second := description(resolved(*at)), description(from)
	if first != nil && second != nil {
		m.addAt(m.placeOf(second), fmt.Sprintf("subsystems[%d].%s", i, printable(second.Value)),
			"this subsystem is described in "+m.where(m.placeOf(first))+" already",
			"Write it there: this entry can only have nqn, hosts and namespaces.")
		return
	}
	m.own(at)
	m.mapping(*at, from, func(key *yaml.Node, at **yaml.Node, value *yaml.Node) bool {
		switch key.Value {
		case "nqn":
			return true
		case "hosts", "namespaces":
			return m.extend(at, value, yaml.SequenceNode)
		}
		return false
	})
}

// nqn is the NQN of an entry of subsystems, or "".
func (m *merger) nqn(entry *yaml.Node) string {
	m.nameFromFile(resolved(entry))
	if at := slot(resolved(entry), "nqn"); at != nil {
		text, _, _ := m.expand(resolved(*at))
		return text
	}
	return ""
}

// description returns the first key of an entry that only one entry of a subsystem may have, or
// nil.
func description(entry *yaml.Node) *yaml.Node {
	for i := 0; i+1 < len(entry.Content); i += 2 {
		if !slices.Contains([]string{"nqn", "hosts", "namespaces"}, entry.Content[i].Value) {
			return entry.Content[i]
		}
	}
	return nil
}

// slot returns a pointer to the value of a key in a mapping, or nil.
func slot(n *yaml.Node, key string) **yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Kind == yaml.ScalarNode && n.Content[i].Value == key {
			return &n.Content[i+1]
		}
	}
	return nil
}

// resolved follows an alias.
func resolved(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}
