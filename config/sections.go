package config

// Section is one mapping of the configuration, for the documentation.
type Section struct {
	// Path is empty for the file, "tcp" or "subsystems[].namespaces[]".
	Path, Doc string
	// Keys are those that are not sections themselves.
	Keys []Key
}

// Sections lists the mappings of the file but for the keys of backends, in the order of the file.
func Sections(backends []Backend) []Section {
	return sections("", "", Mapping(new(Config).keys()), backends)
}

func sections(path, doc string, v Value, backends []Backend) []Section {
	var keys []Key
	switch v := v.(type) {
	case Mapping:
		keys = v
	case *storageValue:
		keys = append(v.common, backendKey(&(*v.p).Backend, backends))
	}
	out := []Section{{Path: path, Doc: doc}}
	for _, k := range keys {
		at, v := join(path, k.Name), k.Value
		if l, ok := v.(interface{ entry() Value }); ok {
			at, v = at+"[]", l.entry()
		}
		switch v.(type) {
		case Mapping, *storageValue:
			out = append(out, sections(at, k.Doc, v, backends)...)
		default:
			out[0].Keys = append(out[0].Keys, k)
		}
	}
	return out
}
