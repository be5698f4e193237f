package volumes

import (
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/block"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/backend/file"
	"github.com/nvmf-target/nvmf-target/backend/null"
	"github.com/nvmf-target/nvmf-target/backend/nvmedrive"
	"github.com/nvmf-target/nvmf-target/backend/ram"
	"github.com/nvmf-target/nvmf-target/backend/rbd"
	"github.com/nvmf-target/nvmf-target/backend/wrap"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/internal/rados"
)

// Backends is the table of the kinds of storage. A new kind is a package and a row.
var Backends = []config.Backend{
	{
		Name: "ram", Doc: "Memory of this machine; its content ends with the target.",
		AlwaysAnswers: true, Volatile: true, New: newRAM,
	},
	{Name: "file", Doc: "A file. If it is missing, it is created with `size`.", New: newFile},
	{
		Name: "block", Doc: "A disk or a partition that nothing else uses. The device " +
			"determines size and block size.", New: newBlock,
	},
	{
		Name: "nvme", Doc: "A namespace of an NVMe drive, accessed by NVMe commands that bypass " +
			"the block layer.", New: newNVMe,
	},
	{
		Name: "rbd", Doc: "An RBD image of a Ceph cluster, which determines the size. The " +
			"machine needs librbd1 and librados2 of Ceph 16 or later.",
		New: newRBD,
	},
	{
		Name: "null", Doc: "No storage: reads return zeroes and writes are dropped, which shows " +
			"the speed of the network. Write it with quotes, `\"null\"`: without them, it is " +
			"YAML's null.",
		AlwaysAnswers: true, New: newNull,
	},
	{
		Name: "delay", Doc: "Passes everything on to other storage, with a delay.",
		Wrapper: true, New: newDelay,
	},
	{
		Name: "error", Doc: "Passes operations on to other storage, and makes some of them fail.",
		Wrapper: true, New: newError,
	},
}

// store has the options of one storage and the functions that work on it.
type store struct {
	keys []lang.Key
	// check reports problems of several keys together; nil if there can be none.
	check func(report)
	// path is the place of the storage; nil if it has no path.
	path *string
	// image is the name of an image, which takes the place of a path; nil for other storage.
	image     *string
	ceph      *rados.Access
	blockSize *int // of an image
	// creates reports whether open creates a missing file; nil: never.
	creates func(env) bool
	// device reports whether the path leads to a device of this kind, even if the hardware behind
	// it is missing; nil: the backend works on no devices.
	device func(path string) bool
	// memory is the amount of memory that the storage may take, in bytes; nil: next to none.
	memory *int64
	// probe reports the problems that open would have, and changes nothing; nil of a wrapper.
	probe func(env) backend.Report
	// resize changes the size of closed storage, to at least that of least; nil: it is fixed.
	resize func(at env, size int64) error
	least  func() int64
	// open opens the storage; of is the storage below a wrapper.
	open func(at env, of backend.Device) (backend.Device, error)
}

// report reports a problem with a key.
type report = func(key, what, hint string)

// env has the surroundings of storage besides its keys.
type env struct {
	readOnly bool
	engine   disk.Engine
	log      *slog.Logger
	gate     *rbd.Gate // of images; nil: they are open
	journal  rados.Journal
	// companion belongs to an image with a gate; nil for none.
	companion rbd.Companion
}

func (s *store) Keys() []lang.Key { return s.keys }

func (s *store) Check(report func(key, what, hint string)) {
	if s.check != nil {
		s.check(report)
	}
}

// openStorage opens a storage and the storage below it.
func openStorage(s *config.Storage, at env) (of backend.Device, err error) {
	if s.Of != nil {
		if of, err = openStorage(s.Of, at); err != nil {
			return nil, err
		}
	}
	return s.Options.(*store).open(at, of)
}

func newRAM() config.Options {
	c := &ram.Config{BlockSize: defaultBlock}
	return &store{
		keys: sized(&c.Size, &c.BlockSize), check: wholeBlocks(&c.Size, &c.BlockSize),
		memory: &c.Size,
		probe:  func(env) backend.Report { return ram.Probe(*c) },
		open:   func(env, backend.Device) (backend.Device, error) { return ram.Open(*c) },
	}
}

func newNull() config.Options {
	c := &null.Config{BlockSize: defaultBlock}
	return &store{
		keys: sized(&c.Size, &c.BlockSize), check: wholeBlocks(&c.Size, &c.BlockSize),
		probe: func(env) backend.Report { return null.Probe(*c) },
		open:  func(env, backend.Device) (backend.Device, error) { return null.Open(*c) },
	}
}

func newFile() config.Options {
	c := &file.Config{BlockSize: defaultBlock}
	in := func(at env) file.Config {
		c := *c
		c.ReadOnly, c.Engine, c.Log = at.readOnly, at.engine, at.log
		return c
	}
	return &store{
		path: &c.Path, check: wholeBlocks(&c.Size, &c.BlockSize),
		creates: func(at env) bool { return c.Size > 0 && !at.readOnly },
		probe:   func(at env) backend.Report { return file.Probe(in(at)) },
		open: func(at env, _ backend.Device) (backend.Device, error) {
			return file.Open(in(at))
		},
		resize: func(at env, size int64) error { return file.Resize(in(at), size) },
		least:  func() int64 { return c.Size },
		keys: []lang.Key{
			pathKey(&c.Path, "file", "Path of the file."),
			lang.NewKey("size", lang.Doubtful(
				lang.Bytes(&c.Size, 0, lang.NoLimit, lang.AnySize), lang.BareSize),
				"Size in bytes of a new file. Set it when the file does not exist yet. A reload "+
					"with a larger size makes a file that is served larger. It never makes a "+
					"file smaller.").
				Without("that of the file"),
			blockSizeKey(&c.BlockSize),
			lang.NewKey("buffered", lang.Bool(&c.Buffered),
				"The page cache is used instead of O_DIRECT. Set it when hosts read the same "+
					"data again and the machine has memory to spare."),
			lang.NewKey("preallocate", lang.Either(&c.Preallocate, "sparse", "full"),
				"With `sparse`, the file gets space as it is written, and hosts free space by "+
					"discarding. With `full`, it gets all its space at once and keeps it. Set "+
					"it to `full` when no write may fail because the file system is full."),
		},
	}
}

func newBlock() config.Options {
	return newDevice("block device",
		"Path of the device, preferably below `/dev/disk/by-id`, where it stays the same.",
		isBlock, block.Probe, block.Open)
}

func isBlock(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&(fs.ModeDevice|fs.ModeCharDevice) == fs.ModeDevice
}

func isNVMe(path string) bool {
	_, err := nvmedrive.Find(path)
	return err == nil || offline(err)
}

func newNVMe() config.Options {
	return newDevice("namespace of an NVMe drive",
		"Path of the namespace, `/dev/ng0n1`, or of its block device.",
		isNVMe, nvmedrive.Probe, nvmedrive.Open)
}

// newDevice returns storage on hardware, which is never created.
func newDevice(what, doc string, device func(path string) bool,
	probe func(block.Config) backend.Report, open func(block.Config) (backend.Device, error),
) *store {
	var path string
	in := func(at env) block.Config {
		return block.Config{Path: path, ReadOnly: at.readOnly, Engine: at.engine, Log: at.log}
	}
	return &store{
		path: &path, device: device, keys: []lang.Key{pathKey(&path, what, doc)},
		probe: func(at env) backend.Report { return probe(in(at)) },
		open:  func(at env, _ backend.Device) (backend.Device, error) { return open(in(at)) },
	}
}

func newRBD() config.Options {
	c := &rbd.Config{BlockSize: defaultBlock, Ceph: rados.Access{
		Conf: "/etc/ceph/ceph.conf", User: "admin",
	}}
	in := func(at env) rbd.Config {
		c := *c
		c.ReadOnly, c.Log, c.Gate, c.Journal = at.readOnly, at.log, at.gate, at.journal
		c.Companion = at.companion
		return c
	}
	return &store{
		image: &c.Image, ceph: &c.Ceph, blockSize: &c.BlockSize,
		probe: func(at env) backend.Report { return rbd.Probe(in(at)) },
		open: func(at env, _ backend.Device) (backend.Device, error) {
			return rbd.Open(in(at))
		},
		keys: []lang.Key{
			lang.NewKey("image", imageName(&c.Image),
				"Name of the image, `pool/image` or `pool/namespace/image`, with `@snapshot` for "+
					"a snapshot, which needs `read_only`.").
				Require("Write, for instance, image: rbd/disk0."),
			lang.NewKey("ceph", lang.Mapping{
				lang.NewKey("conf", lang.Path(&c.Ceph.Conf), "Path of the cluster's ceph.conf. "+
					"Set it when the machine uses several clusters."),
				lang.NewKey("user", lang.Text(&c.Ceph.User), "Name of the client, without "+
					"`client.`. Set it to a client that may use only the pool."),
				lang.NewKey("keyring", lang.Path(&c.Ceph.Keyring), "Path of the file with the "+
					"client's key. Set it when ceph.conf does not name it.").
					Without("the one of ceph.conf"),
			}, "Access to the cluster. Set it when the cluster is not that of "+
				"`/etc/ceph/ceph.conf`, or the client is not its administrator."),
			blockSizeKey(&c.BlockSize),
		},
	}
}

// imageName is the name of an image.
func imageName(p *string) lang.Value {
	return lang.Checked(p, "name of an image", lang.Schema{"pattern": "^[^/]+/"},
		func(text string) (what, hint string) {
			if _, err := rbd.ParseName(text); err != nil {
				return fmt.Sprintf("%q is not the name of an image", lang.Printable(text)),
					"Write pool/image, pool/namespace/image, or one of them with @snapshot."
			}
			return "", ""
		})
}

func newDelay() config.Options {
	c := &wrap.DelayConfig{}
	return &store{
		keys: []lang.Key{
			lang.NewKey("latency", lang.Duration(&c.Latency, 0, time.Hour),
				"Added to each operation. Set it to try hosts with a slow disk or, above "+
					"`io_timeout`, with one whose commands are given up."),
			lang.NewKey("jitter", lang.Duration(&c.Jitter, 0, time.Hour),
				"A random time up to this value is added as well. Set it to let operations "+
					"overtake each other."),
			operationsKey(&c.Ops), seedKey(&c.Seed),
		},
		check: func(report report) {
			if c.Latency == 0 && c.Jitter == 0 {
				report("latency", "is missing or zero", "Write, for instance, latency: 2ms.")
			}
		},
		open: func(_ env, of backend.Device) (backend.Device, error) {
			return wrap.Delay(of, *c), nil
		},
	}
}

func newError() config.Options {
	c := &wrap.ErrorConfig{Err: backend.ErrIO, OneIn: 1}
	return &store{
		keys: []lang.Key{
			lang.NewKey("error", lang.Choose(&c.Err, outcomes...),
				"The outcome of operations that fail: `io` looks like a broken medium, "+
					"`no_space` like a full file system, `offline` like a disk that was pulled "+
					"out, `degraded` like one whose flush failed. Set it to the failure that "+
					"you want to try."),
			lang.NewKey("one_in", lang.Int(&c.OneIn, 1, 1e9),
				"On average, one operation in this many fails. Set it to let only some fail."),
			lang.NewKey("offset", lang.Bytes(&c.Offset, 0, lang.NoLimit, lang.AnySize),
				"Only operations that touch bytes from this offset on fail. Set it to try a "+
					"disk with a bad spot."),
			lang.NewKey("length", lang.Bytes(&c.Length, 0, lang.NoLimit, lang.AnySize),
				"The length of this range. Set it with `offset`.").Without("to the end"),
			operationsKey(&c.Ops), seedKey(&c.Seed),
		},
		open: func(_ env, of backend.Device) (backend.Device, error) {
			return wrap.Error(of, *c), nil
		},
	}
}

// pathKey returns the key for the path of storage.
func pathKey(p *string, what, doc string) lang.Key {
	return lang.NewKey("path", config.Path(p), doc).Require("Write the path of a " + what + ".")
}

// The block sizes that every Linux host takes. None is larger than a page.
const defaultBlock, maxBlock = 512, 4096

func blockSizeKey(p *int) lang.Key {
	return lang.NewKey("block_size",
		lang.Bytes(p, backend.MinBlockSize, maxBlock, lang.PowerOfTwo),
		"Logical block size in bytes. Set it to 4096 when hosts use such blocks anyway; "+
			"partitions that were made with another block size are lost to hosts.")
}

// sized returns the keys of storage in memory.
func sized(size *int64, blockSize *int) []lang.Key {
	return []lang.Key{
		lang.NewKey("size", lang.Doubtful(
			lang.Bytes(size, 512, lang.NoLimit, lang.AnySize), lang.BareSize),
			"Size in bytes.").Require("Write, for instance, size: 1GiB."),
		blockSizeKey(blockSize),
	}
}

// wholeBlocks returns a check that a size is a multiple of the block size.
func wholeBlocks(size *int64, blockSize *int) func(report) {
	return func(report report) {
		n, bs := *size, int64(*blockSize)
		if n%bs == 0 {
			return
		}
		hint := fmt.Sprintf("Use %d or %d.", n/bs*bs, (n/bs+1)*bs)
		switch {
		case n < bs:
			hint = fmt.Sprintf("Use %d.", bs)
		case n > math.MaxInt64-bs:
			hint = fmt.Sprintf("Use %d.", n/bs*bs)
		}
		report("size", fmt.Sprintf("%d bytes is not a multiple of block_size, %d", n, bs), hint)
	}
}

// operationsKey returns the key for the operations that a wrapper concerns.
func operationsKey(p *[]backend.Op) lang.Key {
	choices := []lang.Choice[backend.Op]{
		{Word: "read", Meaning: backend.OpRead},
		{Word: "write", Meaning: backend.OpWrite},
		{Word: "flush", Meaning: backend.OpFlush},
		{Word: "write_zeroes", Meaning: backend.OpWriteZeroes},
		{Word: "discard", Meaning: backend.OpDiscard},
	}
	one := func(op *backend.Op) lang.Value {
		return lang.Unique(lang.Choose(op, choices...), "Delete one of the two.")
	}
	return lang.NewKey("operations", lang.List(p, 0, len(choices), one),
		"The kinds of operations that are affected. Set it to leave the others alone.").
		Without("all")
}

func seedKey(p *uint64) lang.Key {
	return lang.NewKey("seed", lang.Int(p, 0, 1<<32-1),
		"Seed of the random numbers. Set it to repeat a run: the same operations then have the "+
			"same outcomes.")
}

// outcomes are the errors of backend error, by their words in the configuration.
var outcomes = []lang.Choice[error]{
	{Word: "io", Meaning: backend.ErrIO},
	{Word: "no_space", Meaning: backend.ErrNoSpace},
	{Word: "read_only", Meaning: backend.ErrReadOnly},
	{Word: "offline", Meaning: backend.ErrOffline},
	{Word: "aborted", Meaning: backend.ErrAborted},
	{Word: "degraded", Meaning: backend.ErrDegraded},
}
