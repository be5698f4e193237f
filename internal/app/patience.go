package app

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/state"
)

// A start may follow a process that was just killed. The kernel releases the resources of that
// process (locks, devices, addresses) some tens of milliseconds after its parent has seen it end.
const (
	// patience is the total time that a start waits for that.
	patience = time.Second
	// patiencePause is the time between two attempts.
	patiencePause = 10 * time.Millisecond
)

// pauses returns a function that waits for patiencePause and reports whether to try again. It
// returns false when patience has passed since the call of pauses, or ending is done.
func pauses(ending context.Context) func() bool {
	until := time.Now().Add(patience)
	return func() bool {
		if !time.Now().Before(until) {
			return false
		}
		select {
		case <-time.After(patiencePause):
			return true
		case <-ending.Done():
			return false
		}
	}
}

// patiently calls fn, and again while another process, which may be ending, uses a resource. A
// start has patience only once; later calls fail at once.
func (s *Server) patiently(fn func() error) error {
	for {
		err := fn()
		if err == nil || !inUse(err) || !s.pause() {
			return err
		}
	}
}

// inUse reports whether err only means that another process uses a resource.
func inUse(err error) bool {
	if ps, ok := errors.AsType[config.Problems](err); ok {
		return !slices.ContainsFunc(ps, func(p config.Problem) bool {
			return !p.Warning && !p.InUse
		})
	}
	return slices.ContainsFunc([]error{
		state.ErrInUse, backend.ErrInUse, control.ErrInUse, unix.EADDRINUSE,
	}, func(e error) bool { return errors.Is(err, e) })
}
