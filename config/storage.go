package config

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Backend describes a kind of storage. The program that assembles the backends provides it.
type Backend struct {
	// Name is the value of the key backend. Doc describes the storage, for the documentation.
	Name, Doc string
	// Wrapper: storage of this kind passes everything on to other storage, under the key of.
	Wrapper bool
	// AlwaysAnswers: a command takes no longer than copying its data.
	AlwaysAnswers bool
	// Volatile: the content ends with the target.
	Volatile bool
	// New makes the options of one storage, with their defaults.
	New func() Options
}

// Options is the configuration of one storage.
type Options interface {
	// Keys are the keys besides backend and of.
	Keys() []Key
	// Check reports conflicts between keys; key "" is the storage itself.
	Check(report func(key, what, hint string))
}

// Storage is the storage of a namespace.
type Storage struct {
	// Backend is the name of its kind. Options is the result of New of that kind.
	Backend string
	Options Options
	// Of is the storage behind a wrapper, else nil.
	Of *Storage
}

// maxLayers is the maximum number of storages behind each other.
const maxLayers = 8

// Layers returns the storage and the storages behind it, outermost first, with their keys. path is
// the key of the first.
func (s *Storage) Layers(path string) (paths []string, layers []*Storage) {
	for ; s != nil; s, path = s.Of, path+".of" {
		paths, layers = append(paths, path), append(layers, s)
	}
	return paths, layers
}

// storageValue decodes a storage, which it makes if *p is nil, and the keys of the mapping around
// it.
type storageValue struct {
	p      **Storage
	common []Key

	// backend and keys are set by decode. keys begins with common.
	backend *Backend
	keys    []Key
}

// Type implements Value.
func (v *storageValue) Type() string { return "mapping" }

// String implements Value.
func (v *storageValue) String() string { return "" }

func (v *storageValue) decode(d *decoder, n *yaml.Node, path string) {
	switch {
	case n.Kind != yaml.MappingNode:
		d.add(path, "must be a mapping of keys to values, not "+kindName(n),
			"Write, for instance, {backend: ram, size: 1GiB}.")
		return
	case strings.Count(path, ".of") >= maxLayers:
		d.add(path, fmt.Sprintf("more than %d backends behind each other", maxLayers),
			"Leave some out.")
		return
	}
	if *v.p == nil {
		*v.p = new(Storage)
	}
	v.backend = d.backendOf(n)
	s, b := *v.p, v.backend
	keys := append(slices.Clone(v.common), backendKey(&s.Backend, d.backends))
	if b != nil {
		s.Options = b.New()
		keys = append(keys, s.Options.Keys()...)
		if b.Wrapper {
			keys = append(keys, Key{
				Name: "of", Value: &storageValue{p: &s.Of}, Required: "backend " + b.Name +
					" needs a storage behind it: of: {backend: ram, size: 1GiB}.",
			})
		}
	}
	v.keys = keys
	given := d.entries(n, path, keys, func(name string) (what, hint string) {
		return d.foreignKey(b, name)
	})
	for _, e := range given {
		d.value(e.key.Value, e.node, e.path)
	}
	d.required(keys, given, path)
	if b != nil {
		s.Options.Check(func(key, what, hint string) {
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
		Name: "backend", Value: elsewhere{OneOf(name, names...)},
		Required: "Use one of: " + strings.Join(names, ", ") + ".",
		Doc:      "Where the blocks are; each backend has keys of its own, see below.",
	}
}

// elsewhere is the name of a backend. Its hints know the names that other targets use.
type elsewhere struct{ Value }

func (v elsewhere) decode(d *decoder, n *yaml.Node, path string) {
	if n.Kind == yaml.ScalarNode && d.backend(n.Value) == nil {
		if hint := backendHint(n.Value, d.backends); hint != "" {
			d.add(path, fmt.Sprintf("%q is not possible here", printable(n.Value)), hint)
			return
		}
	}
	v.Value.decode(d, n, path)
}

// others maps backends of SPDK, nvmet, LIO and QEMU to their counterparts here.
var others = map[string]string{
	"malloc": "ram", "memory": "ram", "brd": "ram", "ramdisk": "ram", "rd_mcp": "ram",
	"aio":   "file, or block for a disk",
	"uring": "file, or block for a disk", "io_uring": "file, or block for a disk",
	"xnvme": "file, or block for a disk", "fileio": "file", "raw": "file",
	"disk": "block", "device": "block", "bdev": "block", "iblock": "block", "pscsi": "block",
	"zvol": "block, with the device below /dev/zvol",
	"lvol": "block, with a logical volume of Linux (LVM)",
	"lvm":  "block, with the device of the logical volume",
	"rbd":  "block, with the device that rbd map makes",
	"raid": "block, with a RAID of Linux (mdadm)",
	"pcie": "nvme", "nvmf": "block, with the device that nvme connect makes",
	"iscsi": "block, with the device that iscsiadm makes", "none": `"null", with quotes`,
}

// backendHint returns a hint for the name of a backend of another target, "" for other names.
func backendHint(name string, backends []Backend) string {
	word := strings.ToLower(name)
	word = strings.TrimSuffix(strings.TrimPrefix(word, "bdev_"), "_create")
	if here := others[word]; here != "" {
		return "Did you mean " + here + "?"
	}
	var names []string
	for _, b := range backends {
		names = append(names, b.Name)
	}
	if like := nearest(name, names); like != "" {
		return fmt.Sprintf("Did you mean %s?", like)
	}
	return ""
}

// backendOf returns the backend named in a mapping, or nil.
func (d *decoder) backendOf(n *yaml.Node) *Backend {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value != "backend" {
			continue
		}
		name, _, _ := d.expand(resolved(n.Content[i+1]))
		return d.backend(name)
	}
	return nil
}

// backend returns the backend with this name, or nil.
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

// known is the result of foreignKey for a key that need not be reported.
const known = "known"

// foreignKey returns the error for a key that belongs to backends other than b. The text is "" if
// it belongs to none, and known if b is nil, which has been reported.
func (d *decoder) foreignKey(b *Backend, name string) (what, hint string) {
	var others []string
	for _, o := range d.backends {
		if !slices.Contains(o.keys(), name) {
			continue
		}
		if b == nil {
			return known, ""
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
