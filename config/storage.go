package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Storage says where the blocks of a namespace are. Backends delay, error and limit pass everything
// on to Of, slower or not at all, to rehearse what a disk may do. Which keys belong to which
// backend is in the table backends.
type Storage struct {
	Backend string `mapstructure:"backend" validate:"required,oneof=ram file block nvme null delay error limit"`
	// Size in bytes. A file that exists keeps its size if Size is 0.
	Size Size `mapstructure:"size"`
	// Path of the file, the block device, or the NVMe namespace.
	Path string `mapstructure:"path"`
	// BlockSize is the logical block size in bytes, a power of two.
	BlockSize Size `mapstructure:"block_size" default:"512" validate:"oneof=512 1024 2048 4096"`
	// Buffered keeps data in the kernel's page cache. Otherwise O_DIRECT is used where it is
	// possible.
	Buffered bool `mapstructure:"buffered"`
	// Preallocate says whether a new file gets its space at once ("full") or as it is written
	// ("sparse").
	Preallocate string `mapstructure:"preallocate" default:"sparse" validate:"oneof=sparse full"`
	// DAX says whether a file is mapped and its blocks are sent from there: "auto", where it is on
	// persistent memory, "on", which fails elsewhere, or "off".
	DAX string `mapstructure:"dax" default:"auto" validate:"oneof=auto on off"`

	// Of is the storage behind this one; nil unless the backend is delay, error or limit.
	Of *Storage `mapstructure:"of"`
	// Operations are those concerned: "read", "write", "flush", "write_zeroes", "discard". None
	// means all.
	Operations []string `mapstructure:"operations" validate:"max=5,dive,oneof=read write flush write_zeroes discard"`
	// Seed makes what happens at random repeatable.
	Seed uint32 `mapstructure:"seed" default:"0"`
	// Latency is added to each operation, and a random time up to Jitter.
	Latency time.Duration `mapstructure:"latency" default:"0s" validate:"min=0s,max=1h"`
	Jitter  time.Duration `mapstructure:"jitter" default:"0s" validate:"min=0s,max=1h"`
	// Error is what operations fail with: one in OneIn at random, if they touch the Length bytes at
	// Offset; 0 is all from there.
	Error  string `mapstructure:"error" default:"io" validate:"oneof=io no_space read_only gone aborted degraded"`
	OneIn  int    `mapstructure:"one_in" default:"1" validate:"min=1,max=1000000000"`
	Offset Size   `mapstructure:"offset" default:"0"`
	Length Size   `mapstructure:"length" default:"0"`
	// IOPS and Bandwidth, in bytes, are the most per second; 0 is no limit.
	IOPS      int  `mapstructure:"iops" default:"0" validate:"min=0,max=1000000000"`
	Bandwidth Size `mapstructure:"bandwidth" default:"0"`
}

// backends says which keys each backend has.
var backends = map[string][]string{
	"ram":   {"size", "block_size"},
	"null":  {"size", "block_size"},
	"file":  {"path", "size", "block_size", "buffered", "preallocate", "dax"},
	"block": {"path"},
	"nvme":  {"path"},
	"delay": {"of", "latency", "jitter", "operations", "seed"},
	"error": {"of", "error", "one_in", "offset", "length", "operations", "seed"},
	"limit": {"of", "iops", "bandwidth"},
}

// inMemory says that the storage cannot keep anybody waiting.
func (s *Storage) inMemory() bool { return s.Backend == "ram" || s.Backend == "null" }

// maxDepth is how many storages may stand behind each other.
const maxDepth = 8

// Layers is the storage and what stands behind it, in this order, each with its path below path.
func (s *Storage) Layers(path string) (paths []string, layers []*Storage) {
	for ; s != nil; s, path = s.Of, path+".of" {
		paths, layers = append(paths, path), append(layers, s)
	}
	return paths, layers
}

func (c *Config) storage(s *Storage, path string, seen once) {
	paths, layers := s.Layers(path)
	for i, s := range layers {
		if i == maxDepth {
			c.src.add(paths[i], fmt.Sprintf("more than %d backends behind each other", maxDepth),
				"Leave some out.")
			return
		}
		if c.src.bad[paths[i]+".backend"] || s.Backend == "" {
			continue
		}
		c.foreignKeys(s, paths[i])
		switch s.Backend {
		case "file":
			c.path(s, paths[i], seen)
			c.sizes(s, paths[i])
		case "block", "nvme":
			c.path(s, paths[i], seen)
		case "ram", "null":
			if s.Size == 0 {
				c.src.add(paths[i]+".size", "is missing or zero",
					"Write, for instance, size: 1GiB.")
			}
			c.sizes(s, paths[i])
		default:
			c.wrapper(s, paths[i])
		}
	}
}

// foreignKeys reports the keys that were given although the backend does not have them.
func (c *Config) foreignKeys(s *Storage, path string) {
	for _, key := range keysOf(storageType) {
		if _, given := c.src.places[path+"."+key]; !given || key == "backend" ||
			slices.Contains(backends[s.Backend], key) {
			continue
		}
		var others []string
		for b, keys := range backends {
			if slices.Contains(keys, key) {
				others = append(others, b)
			}
		}
		slices.Sort(others)
		mend := "Delete it, or use backend: " + strings.Join(others, " or ") + "."
		if slices.Contains(backends[s.Backend], "of") &&
			!slices.Contains(backends[others[0]], "of") {
			mend = "Write it below of."
		}
		c.src.add(path+"."+key, fmt.Sprintf("backend %s has no %s", s.Backend, key), mend)
	}
}

func (c *Config) path(s *Storage, path string, seen once) {
	at := path + ".path"
	switch {
	case s.Path == "":
		c.src.add(at, "is missing",
			fmt.Sprintf("backend %s needs the path of a %s.", s.Backend,
				map[string]string{
					"file": "file", "block": "block device",
					"nvme": "namespace of an NVMe drive",
				}[s.Backend]))
	case !filepath.IsAbs(s.Path):
		c.src.add(at, fmt.Sprintf("%q is not an absolute path", printable(s.Path)),
			"Begin it with /.")
	default:
		seen.check("path", filepath.Clean(s.Path), at,
			"Two namespaces on one would overwrite each other; give each its own.")
	}
}

func (c *Config) sizes(s *Storage, path string) {
	if bs := s.BlockSize; bs > 0 && !c.src.bad[path+".block_size"] && s.Size%bs != 0 {
		c.src.add(path+".size",
			fmt.Sprintf("%d bytes is not a multiple of block_size, %d", s.Size, bs),
			fmt.Sprintf("Use %d or %d.", s.Size/bs*bs, (s.Size/bs+1)*bs))
	}
}

// wrapper checks a storage that passes everything on.
func (c *Config) wrapper(s *Storage, path string) {
	if s.Of == nil {
		c.src.add(path+".of", "is missing",
			fmt.Sprintf("backend %s needs a storage behind it: of: {backend: ram, size: 1GiB}.",
				s.Backend))
	}
	switch {
	case s.Backend == "delay" && s.Latency == 0 && s.Jitter == 0:
		c.src.add(path+".latency", "is missing or zero", "Write, for instance, latency: 2ms.")
	case s.Backend == "limit" && s.IOPS == 0 && s.Bandwidth == 0:
		c.src.add(path, "backend limit without a limit",
			"Write iops, bandwidth or both: iops: 1000, bandwidth: 100MiB.")
	}
	for i, op := range s.Operations {
		if slices.Contains(s.Operations[:i], op) {
			c.src.add(fmt.Sprintf("%s.operations[%d]", path, i), printable(op)+" is listed twice",
				"Delete one of the two.")
		}
	}
}
