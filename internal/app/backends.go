package app

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/block"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/backend/file"
	"github.com/nvmf-target/nvmf-target/backend/null"
	"github.com/nvmf-target/nvmf-target/backend/nvmedrive"
	"github.com/nvmf-target/nvmf-target/backend/ram"
	"github.com/nvmf-target/nvmf-target/backend/wrap"
	"github.com/nvmf-target/nvmf-target/config"
)

// backends is the table of the kinds of storage. A new one is a package and a row.
var backends = []config.Backend{
	kind[ram.Config]{
		name: "ram", doc: "Memory of this machine; its content ends with the target.",
		inMemory: true, defaults: ram.Config{BlockSize: defaultBlock},
		keys: func(c *ram.Config) []config.Key { return sized(&c.Size, &c.BlockSize) },
		check: func(c *ram.Config, report report) {
			wholeBlocks(c.Size, c.BlockSize, report)
		},
		memory: func(c *ram.Config) int64 { return c.Size },
		probe:  ram.Probe, open: ram.Open,
	}.row(),
	kind[file.Config]{
		name: "file", doc: "A file; one that is missing is created with `size`.",
		defaults: file.Config{BlockSize: defaultBlock}, keys: fileKeys,
		check: func(c *file.Config, report report) {
			wholeBlocks(c.Size, c.BlockSize, report)
		},
		complete: func(c *file.Config, at env) {
			c.ReadOnly, c.Engine, c.Log = at.readOnly, at.engine, at.log
		},
		creates: func(c *file.Config) bool { return c.Size > 0 && !c.ReadOnly },
		probe:   file.Probe, open: file.Open,
	}.row(),
	kind[block.Config]{
		name: "block",
		doc: "A disk or a partition that nothing else uses; its size and block size are the " +
			"device's.",
		keys: func(c *block.Config) []config.Key {
			return []config.Key{pathKey(&c.Path, "block device",
				"Path of the device, best one below `/dev/disk/by-id`, which stays the same.")}
		},
		complete: func(c *block.Config, at env) {
			c.ReadOnly, c.Engine, c.Log = at.readOnly, at.engine, at.log
		},
		probe: block.Probe, open: block.Open,
	}.row(),
	kind[nvmedrive.Config]{
		name: "nvme", doc: "A namespace of an NVMe drive, worked on by NVMe commands past the " +
			"block layer.",
		keys: func(c *nvmedrive.Config) []config.Key {
			return []config.Key{pathKey(&c.Path, "namespace of an NVMe drive",
				"Path of the namespace, `/dev/ng0n1`, or of its block device.")}
		},
		complete: func(c *nvmedrive.Config, at env) {
			c.ReadOnly, c.Engine, c.Log = at.readOnly, at.engine, at.log
		},
		probe: nvmedrive.Probe, open: nvmedrive.Open,
	}.row(),
	kind[null.Config]{
		name: "null",
		doc: "Nothing: reads give zeroes and writes vanish, which shows what the network can do. " +
			"Write it with quotes, `\"null\"`: without them it is nothing in YAML.",
		inMemory: true,
		defaults: null.Config{BlockSize: defaultBlock},
		keys:     func(c *null.Config) []config.Key { return sized(&c.Size, &c.BlockSize) },
		check:    func(c *null.Config, report report) { wholeBlocks(c.Size, c.BlockSize, report) },
		probe:    null.Probe, open: null.Open,
	}.row(),
	kind[delay]{
		name: "delay", doc: "Passes everything on to other storage, late.",
		keys: func(c *delay) []config.Key {
			return []config.Key{
				{
					Name: "latency", Value: config.Duration(&c.Latency, 0, time.Hour),
					Doc: "Added to each operation. Set it to try hosts with a slow disk or, " +
						"above `io_timeout`, with one that hangs.",
				},
				{
					Name: "jitter", Value: config.Duration(&c.Jitter, 0, time.Hour),
					Doc: "A random time up to this is added as well. Set it to let operations " +
						"overtake each other.",
				},
				c.ops.key(), seedKey(&c.Seed),
			}
		},
		check: func(c *delay, report report) {
			if c.Latency == 0 && c.Jitter == 0 {
				report("latency", "is missing or zero", "Write, for instance, latency: 2ms.")
			}
		},
		wrap: func(c delay, of backend.Device) backend.Device {
			c.Ops = c.ops.set()
			return wrap.Delay(of, c.DelayConfig)
		},
	}.row(),
	kind[failing]{
		name: "error", doc: "Passes everything on to other storage, but for operations that fail.",
		defaults: failing{ErrorConfig: wrap.ErrorConfig{Err: backend.ErrIO, OneIn: 1}},
		keys: func(c *failing) []config.Key {
			return []config.Key{
				{
					Name: "error", Value: config.Choose(&c.Err, outcomes...),
					Doc: "The outcome of operations that fail: `io` looks like a broken medium, " +
						"`no_space` like a full file system, `offline` like a disk that was " +
						"pulled out, `degraded` like one whose flush failed. Set it to what you " +
						"want to try.",
				},
				{
					Name: "one_in", Value: config.Int(&c.OneIn, 1, 1e9),
					Doc: "One operation in so many fails, at random. Set it to let only some fail.",
				},
				{
					Name:  "offset",
					Value: config.Bytes(&c.Offset, 0, config.NoLimit, config.AnySize),
					Doc: "Only operations that touch bytes from here on fail. Set it to try a " +
						"disk with a bad spot.",
				},
				{
					Name:    "length",
					Value:   config.Bytes(&c.Length, 0, config.NoLimit, config.AnySize),
					Default: "to the end",
					Doc:     "The number of those bytes. Set it with `offset`.",
				},
				c.ops.key(), seedKey(&c.Seed),
			}
		},
		wrap: func(c failing, of backend.Device) backend.Device {
			c.Ops = c.ops.set()
			return wrap.Error(of, c.ErrorConfig)
		},
	}.row(),
	kind[wrap.LimitConfig]{
		name: "limit", doc: "Passes everything on to other storage, not faster than this.",
		keys: func(c *wrap.LimitConfig) []config.Key {
			return []config.Key{
				{
					Name: "iops", Value: config.Int(&c.IOPS, 0, 1e9), Default: "no limit",
					Doc: "The most operations per second. Set it to share a disk, or to try " +
						"hosts with a slow one.",
				},
				{
					Name:    "bandwidth",
					Value:   config.Bytes(&c.Bandwidth, 0, config.NoLimit, config.AnySize),
					Default: "no limit",
					Doc:     "The most bytes per second. Set it for the same reasons.",
				},
			}
		},
		check: func(c *wrap.LimitConfig, report report) {
			if c.IOPS == 0 && c.Bandwidth == 0 {
				report("", "backend limit without a limit",
					"Write iops, bandwidth or both: iops: 1000, bandwidth: 100MiB.")
			}
		},
		wrap: func(c wrap.LimitConfig, of backend.Device) backend.Device {
			return wrap.Limit(of, c)
		},
	}.row(),
}

// kind describes storage of one kind. C is the Config of its package, or has it.
type kind[C any] struct {
	name, doc string
	inMemory  bool // always answers
	defaults  C
	keys      func(*C) []config.Key
	// check reports what is wrong with several keys together; nil: nothing can be.
	check func(*C, report)
	// complete adds what does not come from the keys; nil: there is nothing.
	complete func(*C, env)
	// creates says whether open makes what is missing at the path; nil: never.
	creates func(*C) bool
	// memory is how much memory the storage may take; nil: next to none.
	memory func(*C) int64
	// probe says what open would fail with, without changing anything; see backend.Report.
	probe func(C) backend.Report
	open  func(C) (backend.Device, error)
	// wrap, of a wrapper, takes the place of probe and open.
	wrap func(c C, of backend.Device) backend.Device
}

// report takes what is wrong with a key.
type report = func(key, what, hint string)

// env is what storage depends on besides its keys.
type env struct {
	readOnly bool
	engine   disk.Engine
	log      *slog.Logger
}

func (k kind[C]) row() config.Backend {
	return config.Backend{
		Name: k.name, Doc: k.doc, Wrapper: k.wrap != nil, AlwaysAnswers: k.inMemory,
		New: func() config.Options { return &options[C]{&k, k.defaults} },
	}
}

// backingStore is what is done with the options of any kind.
type backingStore interface {
	config.Options
	// name is that of the kind, path where the storage is, "" if it has no path.
	name() string
	path() string
	creates(env) bool
	memory() int64
	probe(env) backend.Report
	open(at env, of backend.Device) (backend.Device, error)
}

// options are those of one storage.
type options[C any] struct {
	kind *kind[C]
	c    C
}

// Keys implements config.Options.
func (o *options[C]) Keys() []config.Key { return o.kind.keys(&o.c) }

// Check implements config.Options.
func (o *options[C]) Check(report func(key, what, hint string)) {
	if o.kind.check != nil {
		o.kind.check(&o.c, report)
	}
}

func (o *options[C]) name() string { return o.kind.name }

func (o *options[C]) path() string {
	for _, k := range o.Keys() {
		if k.Name == "path" {
			return k.Value.String()
		}
	}
	return ""
}

// config is what the package of the storage is given.
func (o *options[C]) config(at env) C {
	c := o.c
	if o.kind.complete != nil {
		o.kind.complete(&c, at)
	}
	return c
}

func (o *options[C]) creates(at env) bool {
	c := o.config(at)
	return o.kind.creates != nil && o.kind.creates(&c)
}

func (o *options[C]) memory() int64 {
	if o.kind.memory == nil {
		return 0
	}
	return o.kind.memory(&o.c)
}

func (o *options[C]) probe(at env) backend.Report { return o.kind.probe(o.config(at)) }

func (o *options[C]) open(at env, of backend.Device) (backend.Device, error) {
	if o.kind.wrap != nil {
		return o.kind.wrap(o.c, of), nil
	}
	return o.kind.open(o.config(at))
}

// openStorage opens a storage and what is behind it.
func openStorage(s *config.Storage, at env) (of backend.Device, err error) {
	if s.Of != nil {
		if of, err = openStorage(s.Of, at); err != nil {
			return nil, err
		}
	}
	return s.Options.(backingStore).open(at, of)
}

// pathKey is the path of what a backend is named after.
func pathKey(p *string, what, doc string) config.Key {
	return config.Key{
		Name: "path", Value: config.Path(p), Required: "Write the path of a " + what + ".",
		Doc: doc,
	}
}

// The block sizes that every Linux host takes; larger than a page are not among them.
const defaultBlock, maxBlock = 512, 4096

func blockSizeKey(p *int) config.Key {
	return config.Key{
		Name:  "block_size",
		Value: config.Bytes(p, backend.MinBlockSize, maxBlock, config.PowerOfTwo),
		Doc: "Logical block size in bytes. Set it to 4096 when hosts work in such blocks anyway; " +
			"partitions that were made with another block size are lost to hosts.",
	}
}

// sized are the keys of storage in memory.
func sized(size *int64, blockSize *int) []config.Key {
	return []config.Key{{
		Name: "size", Value: config.Bytes(size, 512, config.NoLimit, config.AnySize),
		Required: "Write, for instance, size: 1GiB.", Doc: "Size in bytes.",
	}, blockSizeKey(blockSize)}
}

func fileKeys(c *file.Config) []config.Key {
	return []config.Key{
		pathKey(&c.Path, "file", "Path of the file."),
		{
			Name: "size", Value: config.Bytes(&c.Size, 0, config.NoLimit, config.AnySize),
			Default: "that of the file",
			Doc:     "Size in bytes of a new file. Set it when the file does not exist yet.",
		},
		blockSizeKey(&c.BlockSize),
		{
			Name: "buffered", Value: config.Bool(&c.Buffered),
			Doc: "The page cache is used instead of O_DIRECT. Set it when hosts read the same " +
				"data again and the machine has memory to spare.",
		},
		{
			Name: "preallocate", Value: config.Choose(&c.Preallocate,
				config.Choice[bool]{Word: "sparse", Meaning: false},
				config.Choice[bool]{Word: "full", Meaning: true}),
			Doc: "A file gets its space as it is written, and hosts give it back by discarding, " +
				"or all at once and for good. Set it to `full` when no write may fail because " +
				"the file system is full.",
		},
	}
}

// wholeBlocks checks that a size is a multiple of the block size.
func wholeBlocks(size int64, blockSize int, report report) {
	if bs := int64(blockSize); size%bs != 0 {
		report("size", fmt.Sprintf("%d bytes is not a multiple of block_size, %d", size, bs),
			fmt.Sprintf("Use %d or %d.", size/bs*bs, (size/bs+1)*bs))
	}
}

// delay and failing are wrappers with the operations that they concern as the file lists them.
type (
	delay struct {
		wrap.DelayConfig
		ops operations
	}
	failing struct {
		wrap.ErrorConfig
		ops operations
	}
)

type operations []backend.Op

func (o *operations) key() config.Key {
	choices := []config.Choice[backend.Op]{
		{Word: "read", Meaning: backend.OpRead},
		{Word: "write", Meaning: backend.OpWrite},
		{Word: "flush", Meaning: backend.OpFlush},
		{Word: "write_zeroes", Meaning: backend.OpWriteZeroes},
		{Word: "discard", Meaning: backend.OpDiscard},
	}
	return config.Key{
		Name: "operations", Default: "all",
		Value: config.List((*[]backend.Op)(o), 0, len(choices), func(op *backend.Op) config.Value {
			return config.Unique(config.Choose(op, choices...), "Delete one of the two.")
		}),
		Doc: "The kinds of operations that are affected. Set it to leave the others alone.",
	}
}

// set is the operations as wrappers take them.
func (o operations) set() (ops wrap.Ops) {
	for _, op := range o {
		ops |= 1 << op
	}
	return ops
}

func seedKey(p *uint64) config.Key {
	return config.Key{
		Name: "seed", Value: config.Int(p, 0, 1<<32-1),
		Doc: "Seed of the randomness. Set it to repeat what happened: the same operations then " +
			"have the same outcomes.",
	}
}

// outcomes are what operations of backend error fail with.
var outcomes = []config.Choice[error]{
	{Word: "io", Meaning: backend.ErrIO},
	{Word: "no_space", Meaning: backend.ErrNoSpace},
	{Word: "read_only", Meaning: backend.ErrReadOnly},
	{Word: "offline", Meaning: backend.ErrOffline},
	{Word: "aborted", Meaning: backend.ErrAborted},
	{Word: "degraded", Meaning: backend.ErrDegraded},
}
