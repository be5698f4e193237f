package file

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// A file on persistent memory, on a file system that is mounted with -o dax, is memory: nothing of
// it is in the page cache, and a mapping sees at once what is written. So the file is mapped for
// reading, and its blocks are sent from there. Package disk does everything else by system calls,
// which on such a file copy past the caches of the CPU and report broken memory as an error.
//
//	StartZeroCopyRead  adds a reader to the ranges; refused, so that the disk reads, while the
//	                   blocks change or are about to
//	Submit             adds a change to the ranges and gives it to the disk, or blocks it while
//	                   its blocks have readers
//	EndZeroCopyRead    removes the reader; the last one that a change waits for wakes all channels
//	                   with blocked changes
//	Poll               submits changes whose readers have ended, and removes changes that are done
//
// A read by the disk waits neither for readers nor for blocked changes.

const purpose = "file namespace mapping"

// isDAX reports whether mappings of fd are the medium itself (statx(2), STATX_ATTR_DAX, of Linux
// 5.8). Tests replace it.
var isDAX = func(fd int) (bool, error) {
	var stx unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, 0, &stx); err != nil {
		return false, fmt.Errorf("statx: %w", err)
	}
	return stx.Attributes&unix.STATX_ATTR_DAX != 0, nil
}

// mapped maps the file if it is on DAX. It returns nil otherwise, and if it cannot be mapped.
func mapped(cfg *Config, d *disk.Config) *mem.Region {
	yes, err := isDAX(d.FD)
	var region *mem.Region
	if yes {
		region, err = mem.MapFile(purpose, d.FD, d.Info.Size)
	}
	switch {
	case err != nil:
		cfg.Log.Warn("a file cannot be mapped: what is read of it is copied", "path", cfg.Path,
			"err", err)
	case yes:
		cfg.Log.Info("a file on DAX is mapped: its blocks are sent from where they are", "path",
			cfg.Path)
	}
	return region
}

// daxDevice is a disk whose blocks can be read in place.
type daxDevice struct {
	*disk.Disk
	region  *mem.Region
	ranges  daxRanges
	blocked backend.RetryGroup
}

func newDAX(d *disk.Disk, region *mem.Region) *daxDevice {
	dax := &daxDevice{Disk: d, region: region}
	dax.ranges.init(d.Info().BlockSize)
	return dax
}

// OpenChannel implements backend.Device.
func (d *daxDevice) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	inner, err := d.Disk.OpenChannel(r)
	if err != nil {
		return nil, err
	}
	return &daxChannel{d: d, inner: inner.(backend.Canceler), retry: d.blocked.Join(r.Wake)}, nil
}

// Close implements backend.Device.
func (d *daxDevice) Close() error {
	if err := d.Disk.Close(); err != nil {
		return err
	}
	return d.region.Unmap()
}
