package file

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// A file on persistent memory, of a file system that is mounted with -o dax, is memory: nothing of
// it is in the page cache, and what maps it sees what is written at once. So the file is mapped,
// for reading, and its blocks are lent from there; package disk does all else, by system calls,
// which on such a file copy past the caches of the CPU and report broken memory as an error.
//
//	Lend, Return  the fence counts the loan; refused while the blocks change or are about to, and then read by the disk
//	Submit        a change announces itself to the fence and goes to the disk, or is parked while loans of its blocks are out
//	Poll          what is parked goes on when the last such loan is back, on whatever reactor; a change that is done leaves the fence
//
// A read by the disk waits for no loan and for nothing that is parked.

// The values of Config.DAX; "" means Auto.
const (
	Auto = "auto" // map the file if it is on DAX
	On   = "on"   // nothing else
	Off  = "off"  // never
)

const purpose = "file namespace mapping"

// isDAX says whether mappings of fd are the medium itself (statx(2), STATX_ATTR_DAX, of Linux 5.8).
// Tests replace it.
var isDAX = func(fd int) (bool, error) {
	var stx unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, 0, &stx); err != nil {
		return false, fmt.Errorf("statx: %w", err)
	}
	return stx.Attributes&unix.STATX_ATTR_DAX != 0, nil
}

// mapped maps the file if it is to be; nil: it is not.
func mapped(cfg Config, d *disk.Config) (*mem.Region, error) {
	switch cfg.DAX {
	case Off:
		return nil, nil
	case "", Auto, On:
	default:
		return nil, fmt.Errorf("dax %q is not known; use %s, %s or %s", cfg.DAX, Auto, On, Off)
	}
	yes, err := isDAX(d.FD)
	var region *mem.Region
	if yes {
		region, err = mem.MapFile(purpose, d.FD, d.Info.Size)
	}
	switch {
	case err != nil && cfg.DAX == On:
		return nil, err
	case err != nil:
		cfg.Log.Warn("a file is not mapped: what is read of it is copied", "path", cfg.Path,
			"error", err)
	case !yes && cfg.DAX == On:
		return nil, errors.New(
			"dax is on, but the file is not on DAX: put it on ext4 or xfs on persistent memory, mounted with -o dax, or let " +
				"dax be auto")
	case yes:
		cfg.Log.Info("a file on DAX is mapped: its blocks are sent from where they are", "path",
			cfg.Path)
	}
	return region, nil
}

// daxDevice is a disk whose blocks are lent.
type daxDevice struct {
	*disk.Disk
	region *mem.Region
	fence  fence

	mu       sync.Mutex // held by those who change channels
	channels atomic.Pointer[[]*daxChannel]
}

func newDAX(d *disk.Disk, region *mem.Region) *daxDevice {
	dax := &daxDevice{Disk: d, region: region}
	dax.fence.init(d.Info().BlockSize)
	dax.channels.Store(new([]*daxChannel))
	return dax
}

// OpenChannel implements backend.Device.
func (d *daxDevice) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	inner, err := d.Disk.OpenChannel(r)
	if err != nil {
		return nil, err
	}
	c := &daxChannel{d: d, inner: inner.(backend.Canceler), wake: r.Wake}
	d.change(func(list []*daxChannel) []*daxChannel { return append(list, c) })
	return c, nil
}

// Close implements backend.Device.
func (d *daxDevice) Close() error {
	if err := d.Disk.Close(); err != nil {
		return err
	}
	return d.region.Unmap()
}

// change replaces the list of channels.
func (d *daxDevice) change(fn func(list []*daxChannel) []*daxChannel) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := fn(slices.Clone(*d.channels.Load()))
	d.channels.Store(&list)
}

// progress has those try again who wait for loans.
func (d *daxDevice) progress() {
	for _, c := range *d.channels.Load() {
		if c.waiting.Load() {
			c.retry.Store(true)
			c.wake()
		}
	}
}
