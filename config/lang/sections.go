package lang

// Section is one mapping of the configuration, for the documentation.
type Section struct {
	// Path is empty for the file, "tcp" or "subsystems[].namespaces[]".
	Path, Doc string
	// Keys are the keys that are not sections themselves.
	Keys []Key
	// Restart: changes of its keys need a restart.
	Restart bool
}

// Documented is a Value with keys that the documentation lists in a section of their own.
type Documented interface{ Keys() []Key }

// Keys implements Documented.
func (m Mapping) Keys() []Key { return m }

// Sections lists the mappings of a file with these keys, in its order.
func Sections(keys []Key) []Section { return sections("", Key{Value: Mapping(keys)}) }

func sections(path string, of Key) []Section {
	out := []Section{{Path: path, Doc: of.Doc, Restart: of.Restart}}
	for _, k := range of.Value.(Documented).Keys() {
		at, section := join(path, k.Name), k
		if l, ok := k.Value.(interface{ entry() Value }); ok {
			at, section.Value = at+"[]", l.entry()
		}
		if _, ok := section.Value.(Documented); ok {
			out = append(out, sections(at, section)...)
		} else {
			out[0].Keys = append(out[0].Keys, k)
		}
	}
	return out
}
