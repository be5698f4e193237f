package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config/lang"
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
	Keys() []lang.Key
	// Check reports conflicts between keys; key "" is the storage itself.
	Check(report func(key, what, hint string))
}

// Storage is the storage of a namespace.
type Storage struct {
	// Backend is the name of its kind. Options is the result of New of that kind.
	Backend string
	Options Options
	// Of is the storage below a wrapper, else nil.
	Of *Storage
}

// Path is the path of a storage.
func Path(p *string) lang.Value {
	return lang.UniquePath(p,
		"Two namespaces on one would overwrite each other; give each its own.")
}

// maxLayers is the maximum number of nested storages.
const maxLayers = 8

// Layers returns the storage and all below it, outermost first, with their keys from path.
func (s *Storage) Layers(path string) (paths []string, layers []*Storage) {
	for ; s != nil; s, path = s.Of, path+".of" {
		paths, layers = append(paths, path), append(layers, s)
	}
	return paths, layers
}

// storageValue decodes a storage, which it makes if *p is nil, and the keys of its mapping.
type storageValue struct {
	p        **Storage
	common   []lang.Key
	backends kinds

	// backend and keys are set by Decode. keys begins with common.
	backend *Backend
	keys    []lang.Key
}

func (v *storageValue) Type() string { return "mapping" }

func (v *storageValue) String() string { return "" }

// Keys are the keys of every backend.
func (v *storageValue) Keys() []lang.Key {
	return append(v.common, backendKey(new(string), v.backends))
}

func (v *storageValue) Decode(d *lang.Decoder, n *yaml.Node, path string) {
	switch {
	case n.Kind != yaml.MappingNode:
		d.Add(path, "must be a mapping of keys to values, not "+lang.KindName(n),
			"Write, for instance, {backend: ram, size: 1GiB}.")
		return
	case strings.Count(path, ".of") >= maxLayers:
		d.Add(path, fmt.Sprintf("more than %d nested backends", maxLayers),
			"Leave some out.")
		return
	}
	if *v.p == nil {
		*v.p = new(Storage)
	}
	s, b := *v.p, v.backends.find(d.Text(n, "backend"))
	v.backend = b
	v.keys = append(slices.Clone(v.common), backendKey(&s.Backend, v.backends))
	if b != nil {
		s.Options = b.New()
		v.keys = append(v.keys, s.Options.Keys()...)
		if b.Wrapper {
			v.keys = append(v.keys, lang.Key{
				Name: "of", Value: &storageValue{p: &s.Of, backends: v.backends},
				Required: "backend " + b.Name +
					" needs storage below it: of: {backend: ram, size: 1GiB}.",
			})
		}
	}
	d.Mapping(n, path, v.keys, func(name string) (what, hint string) {
		return v.backends.foreign(b, name)
	})
	if b != nil {
		s.Options.Check(func(key, what, hint string) {
			d.Add(strings.TrimSuffix(path+"."+key, "."), what, hint)
		})
	}
}

func (v *storageValue) Flatten(all *lang.Settings, at lang.Setting) {
	if v.backend != nil {
		all.Volatile = v.backend.Volatile // the storage below a wrapper comes later and decides
	}
	for i, k := range v.keys {
		at.Storage = at.Storage || i >= len(v.common)
		k.Flatten(all, at)
	}
}

// Schema implements lang.Value: the keys of a storage depend on its backend.
func (v *storageValue) Schema() lang.Schema {
	common := lang.Mapping(v.Keys())
	s := common.Schema()
	delete(s, "additionalProperties")
	var kinds []lang.Schema
	for _, b := range v.backends {
		keys := lang.Mapping(b.New().Keys())
		if b.Volatile {
			for i := range keys {
				keys[i].Restart = true
			}
		}
		kind := keys.Schema()
		properties := kind["properties"].(lang.Schema)
		for _, k := range common {
			properties[k.Name] = true
		}
		if b.Wrapper {
			properties["of"] = lang.Schema{"$ref": "#/$defs/storage"}
			kind["required"] = append(kind["required"].([]string), "of")
		}
		kinds = append(kinds, lang.Schema{
			"if": lang.Schema{
				"properties": lang.Schema{"backend": lang.Schema{"const": b.Name}},
				"required":   []string{"backend"},
			},
			"then": kind,
		})
	}
	s["allOf"] = kinds
	return s
}

func backendKey(name *string, backends kinds) lang.Key {
	return lang.Key{
		Name: "backend", Value: elsewhere{lang.OneOf(name, backends.names()...), backends},
		Required: "Use one of: " + strings.Join(backends.names(), ", ") + ".",
		Doc:      "Where the blocks are stored; each backend has keys of its own, see below.",
	}
}

// elsewhere is the name of a backend. Its hints know the names that other targets use.
type elsewhere struct {
	lang.Value
	backends kinds
}

func (v elsewhere) Decode(d *lang.Decoder, n *yaml.Node, path string) {
	if n.Kind == yaml.ScalarNode && v.backends.find(n.Value) == nil {
		if hint := v.backends.hint(n.Value); hint != "" {
			d.Add(path, fmt.Sprintf("%q is not possible here", lang.Printable(n.Value)), hint)
			return
		}
	}
	v.Value.Decode(d, n, path)
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
	"raid": "block, with a RAID of Linux (mdadm)",
	"pcie": "nvme", "nvmf": "block, with the device that nvme connect makes",
	"iscsi": "block, with the device that iscsiadm makes", "none": `"null", with quotes`,
	"limit": "limits: {iops: 1000} of the namespace, which has replaced it",
}

// kinds are the known backends.
type kinds []Backend

func (all kinds) names() []string {
	names := make([]string, len(all))
	for i, b := range all {
		names[i] = b.Name
	}
	return names
}

// find returns the backend with this name, or nil.
func (all kinds) find(name string) *Backend {
	i := slices.IndexFunc(all, func(b Backend) bool { return b.Name == name })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// hint returns a hint for the name of a backend of another target, "" for other names.
func (all kinds) hint(name string) string {
	word := strings.ToLower(name)
	word = strings.TrimSuffix(strings.TrimPrefix(word, "bdev_"), "_create")
	if here := cmp.Or(others[word], lang.Nearest(name, all.names())); here != "" {
		return "Did you mean " + here + "?"
	}
	return ""
}

// foreign returns the error for a key that belongs to backends other than b. The text is "" if it
// belongs to none, and lang.Known if b is nil, which has been reported.
func (all kinds) foreign(b *Backend, key string) (what, hint string) {
	var others []string
	for _, o := range all {
		if !o.has(key) {
			continue
		}
		if b == nil {
			return lang.Known, ""
		}
		others = append(others, o.Name)
		if b.Wrapper && !o.Wrapper {
			hint = "Write it below of."
		}
	}
	if others == nil {
		return "", ""
	}
	hint = cmp.Or(hint, "Delete it, or use backend: "+strings.Join(others, " or ")+".")
	return fmt.Sprintf("backend %s has no %s", b.Name, key), hint
}

// has reports whether the backend has a key of its own with this name.
func (b *Backend) has(key string) bool {
	return b.Wrapper && key == "of" ||
		slices.ContainsFunc(b.New().Keys(), func(k lang.Key) bool { return k.Name == key })
}
