package config

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Backend is a kind of storage, as the program that assembles the backends describes it.
type Backend struct {
	// Name is what the key backend is set to, Doc what the storage is, for the documentation.
	Name, Doc string
	// Wrapper: storage of this kind passes everything on to other storage, under the key of.
	Wrapper bool
	// AlwaysAnswers: no command takes longer than it takes to copy its data.
	AlwaysAnswers bool
	// New makes the options of one storage, with their defaults.
	New func() Options
}

// Options are what one storage is configured with.
type Options interface {
	// Keys are the keys besides backend and of.
	Keys() []Key
	// Check reports what is wrong with several keys together; key "" is the storage.
	Check(report func(key, what, hint string))
}

// Storage is where the blocks of a namespace are.
type Storage struct {
	// Backend is the name of its kind, Options what that kind made.
	Backend string
	Options Options
	// Of is the storage behind a wrapper, else nil.
	Of *Storage
}

// maxLayers is how many storages may stand behind each other.
const maxLayers = 8

// Layers is the storage and what stands behind it, in this order, each with its path below path.
func (s *Storage) Layers(path string) (paths []string, layers []*Storage) {
	for ; s != nil; s, path = s.Of, path+".of" {
		paths, layers = append(paths, path), append(layers, s)
	}
	return paths, layers
}

// storageValue decodes a storage and the keys of what it is part of.
type storageValue struct {
	s      *Storage
	common []Key
}

// Type implements Value.
func (v *storageValue) Type() string { return "mapping" }

// String implements Value.
func (v *storageValue) String() string { return "" }

func (v *storageValue) decode(d *decoder, n *yaml.Node, path string) {
	b := d.backendOf(n)
	keys := append(slices.Clone(v.common), backendKey(&v.s.Backend, d.backends))
	foreign := func(name string) (what, hint string) { return d.foreignKey(b, name) }
	if b == nil { // which is reported; the keys may be right
		for _, name := range d.backendKeys() {
			keys = append(keys, Key{Name: name, Value: ignored{}})
		}
	} else {
		v.s.Options = b.New()
		keys = append(keys, v.s.Options.Keys()...)
		if b.Wrapper {
			keys = append(keys, Key{
				Name: "of", Value: &ofValue{s: v.s}, Required: "backend " + b.Name +
					" needs a storage behind it: of: {backend: ram, size: 1GiB}.",
			})
		}
	}
	given := d.entries(n, path, keys, foreign)
	for _, e := range given {
		d.value(e.key.Value, e.node, e.path)
	}
	d.required(keys, given, path)
	if b != nil {
		v.s.Options.Check(func(key, what, hint string) {
			d.add(strings.TrimSuffix(join(path, key), "."), what, hint)
		})
	}
}

func backendKey(name *string, backends []Backend) Key {
	names := make([]string, len(backends))
	for i, b := range backends {
		names[i] = b.Name
	}
	return Key{
		Name: "backend", Value: OneOf(name, names...),
		Required: "Use one of: " + strings.Join(names, ", ") + ".",
		Doc:      "Where the blocks are; each backend has keys of its own, see below.",
	}
}

// backendOf is the backend that a mapping names, or nil.
func (d *decoder) backendOf(n *yaml.Node) *Backend {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value != "backend" {
			continue
		}
		value := n.Content[i+1]
		for value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		return d.backend(value.Value)
	}
	return nil
}

// backend is the backend with this name, or nil.
func (d *decoder) backend(name string) *Backend {
	i := slices.IndexFunc(d.backends, func(b Backend) bool { return b.Name == name })
	if i < 0 {
		return nil
	}
	return &d.backends[i]
}

// keys are the names of a backend's keys.
func (b *Backend) keys() []string {
	var names []string
	for _, k := range b.New().Keys() {
		names = append(names, k.Name)
	}
	if b.Wrapper {
		names = append(names, "of")
	}
	return names
}

// backendKeys are the names of the keys of all backends.
func (d *decoder) backendKeys() (names []string) {
	for _, b := range d.backends {
		for _, name := range b.keys() {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// foreignKey says that a key belongs to other backends than b; what is "" if it belongs to none.
func (d *decoder) foreignKey(b *Backend, name string) (what, hint string) {
	var others []string
	for _, o := range d.backends {
		if !slices.Contains(o.keys(), name) {
			continue
		}
		others = append(others, o.Name)
		if b.Wrapper && !o.Wrapper {
			hint = "Write it below of."
		}
	}
	if others == nil {
		return "", ""
	}
	if hint == "" {
		hint = "Delete it, or use backend: " + strings.Join(others, " or ") + "."
	}
	return fmt.Sprintf("backend %s has no %s", b.Name, name), hint
}

// ofValue is the storage behind a wrapper.
type ofValue struct {
	storageValue
	s *Storage
}

func (v *ofValue) decode(d *decoder, n *yaml.Node, path string) {
	if strings.Count(path, ".of") >= maxLayers {
		d.add(path, fmt.Sprintf("more than %d backends behind each other", maxLayers),
			"Leave some out.")
		return
	}
	v.s.Of = new(Storage)
	(&storageValue{s: v.s.Of}).decode(d, n, path)
}

// ignored accepts any value.
type ignored struct{ Mapping }

func (ignored) decode(*decoder, *yaml.Node, string) {}
