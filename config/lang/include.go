package lang

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	// maxFiles is the number of files that may be included.
	maxFiles = 1024
	// maxManaged is the number of files that a directory of DirectoryKey may have.
	maxManaged = 16 << 10
	// maxMerged is more than the nodes copied for a configuration of maxValues.
	maxMerged = 4 * maxValues
)

// IncludeKey is the key "include", a list of files that are read as if they were part of the file.
// It is read before the files are known, so no environment variable overrides it.
func IncludeKey(p *[]string, doc string) Key {
	return Key{Name: "include", Doc: doc, include: p, Value: Sequence(p, 0, maxFiles,
		func(p *string) Value {
			return Checked(p, "path", Schema{"minLength": 1}, func(s string) (what, hint string) {
				if _, err := filepath.Match(s, ""); err != nil || s == "" {
					return fmt.Sprintf("%q is not a path or pattern", Printable(s)),
						"Write for instance conf.d/*.yaml."
				}
				return "", ""
			})
		})}
}

// DirectoryKey is a key with a directory that has directories of files. They are read after all
// others, as if included. Only the program may write there, and no variable overrides the key.
func DirectoryKey(name string, p *string, doc string) Key {
	return Key{Name: name, Value: Path(p), Doc: doc, directory: p}
}

// merger adds included files to the file that includes them.
type merger struct {
	*Decoder
	root *yaml.Node
	// copies are the nodes made here. All other nodes may have aliases.
	copies map[*yaml.Node]bool
	// merged counts the nodes that were copied and added.
	merged int
	// described has the entries of shared lists, by the list.
	described map[string]*entries
	// seen has the files that were read, left the number of bytes that may follow.
	seen map[string]bool
	left int
}

// entries has the indexes of the names among the first entries of a shared list.
type entries struct {
	index map[string]int
	first int
}

// include returns the file merged with its includes, of which it reads at most left bytes.
func (d *Decoder) include(root *yaml.Node, left int) *yaml.Node {
	root = resolved(root)
	m := merger{
		Decoder: d, root: root, copies: map[*yaml.Node]bool{}, described: map[string]*entries{},
		seen: map[string]bool{filepath.Clean(d.file): true}, left: left,
	}
	for _, k := range d.format.Keys {
		if at := Slot(root, k.Name); at != nil && k.early() {
			d.value(k.Value, *at, k.Name)
		}
	}
	for _, k := range d.format.Keys {
		switch {
		case k.include != nil:
			m.patterns(k.Name, *k.include)
		case k.directory != nil && *k.directory != "":
			d.directory = filepath.Clean(*k.directory)
			for _, name := range d.filesOf(k.Name) {
				m.read(k.Name, name, maxManaged)
			}
		}
	}
	if m.merged > maxMerged {
		d.values = m.merged // too many
	}
	return m.root
}

// patterns reads the files that match the patterns in the list at path.
func (m *merger) patterns(path string, patterns []string) {
	for i, pattern := range patterns {
		path := fmt.Sprintf("%s[%d]", path, i)
		for _, name := range m.matches(pattern, path) {
			if len(m.seen) > maxFiles {
				m.tooMuch(path, maxFiles)
				return
			}
			m.read(path, name, maxFiles)
		}
	}
}

// read reads the file that the key at path names, up to a number of files, and adds it to the root.
func (m *merger) read(path, name string, most int) {
	if m.seen[name] || m.left < 0 {
		return
	}
	m.seen[name] = true
	data, err := m.content(name, m.left)
	m.left -= len(data)
	switch {
	case err != nil:
		m.addAt(m.find(path), path, err.Error(), HintUnreadable)
	case m.left < 0:
		m.tooMuch(path, most)
	default:
		m.file(Quoted(name), data)
	}
}

func (m *merger) tooMuch(path string, most int) {
	m.Add(path, fmt.Sprintf("more than %d files or %v", most, Size(maxFile)),
		"Are these files of a configuration?")
}

// matches returns the files that match a pattern.
func (d *Decoder) matches(pattern, path string) []string {
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

// file adds a file to the root.
func (m *merger) file(name string, data []byte) {
	doc := m.document(name, data)
	if doc == nil {
		return
	}
	m.belongs(doc, name)
	if doc = resolved(doc); doc.Kind != yaml.MappingNode {
		m.addAt(m.placeOf(doc), "", "must be a mapping of keys to values, not "+KindName(doc),
			"Write it like the file that includes it.")
		return
	}
	keys := m.format.Keys
	for i := 0; i+1 < len(doc.Content); i += 2 {
		key := doc.Content[i]
		switch k := find(keys, key.Value); {
		case k == nil:
		case k.include != nil:
			m.addAt(m.placeOf(key), key.Value, "included files cannot include others",
				"Name these files in "+m.Source.file+".")
			return
		case k.directory != nil:
			m.addAt(m.placeOf(key), key.Value, "included files cannot have this key",
				"Write it in "+m.Source.file+".")
			return
		}
	}
	m.own(&m.root)
	m.mapping(m.root, doc, keys)
}

// belongs records the file of a node and of the nodes below it.
func (d *Decoder) belongs(n *yaml.Node, file string) {
	d.files[n] = file
	for _, c := range n.Content {
		d.belongs(c, file)
	}
}

// mapping adds the entries of from to the copy into, a mapping with these keys. An entry that
// cannot be merged appears twice, which is reported when it is decoded.
func (m *merger) mapping(into, from *yaml.Node, keys []Key) {
	for i := 0; i+1 < len(from.Content) && m.merged <= maxMerged; i += 2 {
		key, value := from.Content[i], from.Content[i+1]
		m.merged++
		at := Slot(into, key.Value)
		if at == nil || !m.extend(at, resolved(value), find(keys, key.Value)) {
			into.Content = append(into.Content, key, value)
		}
	}
}

// extend adds a section or list to the one at *at, if files extend the key.
func (m *merger) extend(at **yaml.Node, from *yaml.Node, k *Key) bool {
	if k == nil || resolved(*at).Kind != from.Kind {
		return false
	}
	section, isSection := k.Value.(Mapping)
	switch {
	case isSection && from.Kind == yaml.MappingNode:
		m.own(at)
		m.mapping(*at, from, section)
	case !k.extended || from.Kind != yaml.SequenceNode:
		return false
	case k.name != "":
		m.own(at)
		m.share(*at, from, k)
	default:
		m.own(at)
		if m.merged += len(from.Content); m.merged <= maxMerged {
			(*at).Content = append((*at).Content, from.Content...)
		}
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

// share appends the entries of from to a list, or merges them into entries of the same name.
func (m *merger) share(list, from *yaml.Node, k *Key) {
	known := m.described[k.Name]
	if known == nil {
		known = &entries{index: map[string]int{}}
		m.described[k.Name] = known
	}
	for ; known.first < len(list.Content); known.first++ {
		if name := m.nameOf(list.Content[known.first], k); name != "" {
			known.index[name] = known.first
		}
	}
	for _, entry := range from.Content {
		if i, ok := known.index[m.nameOf(entry, k)]; ok {
			m.merge(&list.Content[i], resolved(entry), k, i)
		} else {
			list.Content = append(list.Content, entry)
		}
	}
}

// merge merges an entry into the entry at *at, entry i of its list.
func (m *merger) merge(at **yaml.Node, from *yaml.Node, k *Key, i int) {
	first, second := description(resolved(*at), k), description(from, k)
	if first != nil && second != nil {
		m.addAt(m.placeOf(second), fmt.Sprintf("%s[%d].%s", k.Name, i, Printable(second.Value)),
			"this "+strings.TrimSuffix(k.Name, "s")+" is described in "+m.where(m.placeOf(first))+
				" already",
			"Write it there: this entry can only have "+k.name+", "+
				strings.Join(k.shared, " and ")+".")
		return
	}
	m.own(at)
	rest := *from
	rest.Content = nil
	for i := 0; i+1 < len(from.Content); i += 2 {
		if from.Content[i].Value != k.name {
			rest.Content = append(rest.Content, from.Content[i:i+2]...)
		}
	}
	lists := make([]Key, len(k.shared))
	for i, name := range k.shared {
		lists[i] = Key{Name: name, extended: true}
	}
	m.mapping(*at, &rest, lists)
}

// nameOf returns the name of an entry of a shared list, or "".
func (m *merger) nameOf(entry *yaml.Node, k *Key) string {
	m.nameFromFile(resolved(entry), k.name)
	return m.Text(resolved(entry), k.name)
}

// description returns the first key of an entry that only one entry of a name may have, or nil.
func description(entry *yaml.Node, k *Key) *yaml.Node {
	for i := 0; i+1 < len(entry.Content); i += 2 {
		if key := entry.Content[i]; key.Value != k.name && !slices.Contains(k.shared, key.Value) {
			return key
		}
	}
	return nil
}

// find returns the key called name, or nil.
func find(keys []Key, name string) *Key {
	i := slices.IndexFunc(keys, func(k Key) bool { return k.Name == name })
	if i < 0 {
		return nil
	}
	return &keys[i]
}

// Slot returns a pointer to the value of a key in a mapping, or nil.
func Slot(n *yaml.Node, key string) **yaml.Node {
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
