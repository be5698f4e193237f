package app

import (
	"fmt"

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

// openDevice opens what a storage describes, with what stands behind it.
func (srv *Server) openDevice(s *config.Storage, readOnly bool) (backend.Device, error) {
	if s.Of != nil {
		inner, err := srv.openDevice(s.Of, readOnly)
		if err != nil {
			return nil, err
		}
		return wrapDevice(s, inner), nil
	}
	switch s.Backend {
	case "ram":
		return ram.Open(ram.Config{Size: int64(s.Size), BlockSize: int(s.BlockSize)})
	case "null":
		return null.Open(null.Config{Size: int64(s.Size), BlockSize: int(s.BlockSize)})
	case "block":
		return block.Open(block.Config{
			Path: s.Path, ReadOnly: readOnly, Engine: srv.engine(),
			Log: srv.log,
		})
	case "nvme":
		return nvmedrive.Open(nvmedrive.Config{
			Path: s.Path, ReadOnly: readOnly,
			Engine: srv.engine(), Log: srv.log,
		})
	case "file":
		return file.Open(file.Config{
			Path: s.Path, Size: int64(s.Size), BlockSize: int(s.BlockSize), ReadOnly: readOnly,
			Buffered:    s.Buffered,
			Preallocate: s.Preallocate == "full", Engine: srv.engine(), Log: srv.log,
		})
	}
	return nil, fmt.Errorf("backend %q is not known", s.Backend)
}

// engine is how files and block devices are worked on.
func (srv *Server) engine() disk.Engine {
	d := srv.opts.Config.Disks
	return disk.Engine{Name: d.Engine, SQPoll: d.SQPoll, IOPoll: d.IOPoll}
}

// wrapDevice puts delay, error or limit in front of a device.
func wrapDevice(s *config.Storage, inner backend.Device) backend.Device {
	var ops wrap.Ops
	for _, op := range s.Operations {
		ops |= 1 << operations[op]
	}
	switch s.Backend {
	case "delay":
		return wrap.Delay(inner,
			wrap.DelayConfig{Latency: s.Latency, Jitter: s.Jitter, Ops: ops, Seed: uint64(s.Seed)})
	case "error":
		return wrap.Error(inner, wrap.ErrorConfig{
			Err: outcomes[s.Error], OneIn: s.OneIn, Offset: int64(s.Offset),
			Length: int64(s.Length), Ops: ops, Seed: uint64(s.Seed),
		})
	}
	return wrap.Limit(inner, wrap.LimitConfig{IOPS: int64(s.IOPS), Bandwidth: int64(s.Bandwidth)})
}

var operations = map[string]backend.Op{
	"read": backend.OpRead, "write": backend.OpWrite, "flush": backend.OpFlush,
	"write_zeroes": backend.OpWriteZeroes,
	"discard":      backend.OpDiscard,
}

var outcomes = map[string]error{
	"io": backend.ErrIO, "no_space": backend.ErrNoSpace, "read_only": backend.ErrReadOnly,
	"gone":    backend.ErrOffline,
	"aborted": backend.ErrAborted, "degraded": backend.ErrDegraded,
}

// deviceMend is what to look at when a device cannot be opened; its own error says what is wrong.
func deviceMend(s *config.Storage) string {
	for s.Of != nil {
		s = s.Of
	}
	switch s.Backend {
	case "file":
		return "See to the file, or correct path, size and block_size."
	case "block", "nvme":
		return "See to the device, or correct path."
	}
	return "Correct size and block_size."
}
