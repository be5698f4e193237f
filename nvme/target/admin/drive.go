package admin

import (
	"log/slog"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// Drive is hardware that holds namespaces. Any goroutine uses it.
type Drive interface {
	// ID identifies the hardware. Namespaces share hardware if their drives have the same ID.
	ID() string
	// Counts reports whether SMART includes the data read and written, its time, and errors.
	Counts() bool
	// SMART reads the drive's health, in the form of log 02h. Unknown values are zero. It may block
	// for some seconds.
	SMART() (*nvme.SMARTLog, error)
}

// CachedDrive is a Drive and its last answer. Any goroutine may use it.
type CachedDrive struct {
	Drive
	Query[nvme.SMARTLog]
}

// NewCachedDrive returns d with no answer yet, or nil if d is nil.
func NewCachedDrive(d Drive, log *slog.Logger) *CachedDrive {
	if d == nil {
		return nil
	}
	failed := false
	ask := func() (*nvme.SMARTLog, error) {
		l, err := d.SMART()
		if err != nil && !failed {
			log.Warn("the health of a drive cannot be read; hosts see the values that are known "+
				"without it", "device", d.ID(), "err", err)
		}
		failed = err != nil
		return l, err
	}
	return &CachedDrive{Drive: d, Query: Query[nvme.SMARTLog]{Ask: ask, Age: time.Second}}
}

// Continue takes over the last answer of the same drive.
func (d *CachedDrive) Continue(o *CachedDrive) {
	if d != nil && o != nil && d != o && d.ID() == o.ID() {
		d.Inherit(&o.Query)
	}
}
