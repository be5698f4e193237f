package block

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/disk"
)

// Probe reports errors of Open, by an exclusive open for reading, and the device's users.
func Probe(cfg Config) (r backend.Report) {
	cfg.Engine.Probe(&r)
	dc, err := attach(cfg, unix.O_RDONLY)
	switch {
	case errors.Is(err, unix.EBUSY):
		disk.ProbeUsers(cfg.Path, err, &r)
		return r
	case err != nil:
		r.Add(err)
		return r
	}
	defer func() { _ = unix.Close(dc.FD) }()
	disk.ProbeUsers(cfg.Path, nil, &r)
	if cfg.ReadOnly {
		return r
	}
	if dc.Info.ReadOnly {
		r.Add(errReadOnly)
	}
	if err := unix.Access(cfg.Path, unix.R_OK|unix.W_OK); err != nil {
		r.Add(explain(err, false))
	}
	return r
}
