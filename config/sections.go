package config

// Section is one mapping of the configuration, for the documentation.
type Section struct {
	// Path is empty for the file, "tcp" or "subsystems[].namespaces[]".
	Path, Doc string
	// Keys are the keys that are not sections themselves.
	Keys []Key
	// Restart: changes of its keys need a restart.
	Restart bool
}

// Sections lists the mappings of the file in its order, without the mappings of backends.
func Sections(backends []Backend) []Section {
	return sections("", Key{Value: Mapping(new(Config).keys())}, backends)
}

func sections(path string, of Key, backends []Backend) []Section {
	var keys []Key
	switch v := of.Value.(type) {
	case Mapping:
		keys = v
	case *storageValue:
		keys = append(v.common, backendKey(&(*v.p).Backend, backends))
	}
	out := []Section{{Path: path, Doc: of.Doc, Restart: of.Restart}}
	for _, k := range keys {
		at, section := join(path, k.Name), k
		if l, ok := k.Value.(interface{ entry() Value }); ok {
			at, section.Value = at+"[]", l.entry()
		}
		switch section.Value.(type) {
		case Mapping, *storageValue:
			out = append(out, sections(at, section, backends)...)
		default:
			out[0].Keys = append(out[0].Keys, k)
		}
	}
	return out
}
