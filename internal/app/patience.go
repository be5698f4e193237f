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

// A start may be the successor of a process that was just killed. The kernel takes away what that
// one had (locks, devices, addresses) some tens of milliseconds after it is gone for its parent.
const (
	// patience is how long a start waits for that, altogether.
	patience = time.Second
	// patiencePause is between two attempts.
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

// patiently calls fn, and calls it again while it fails because another process has something: that
// process may be ending. It gives up after patience, which a start has only once; what comes later
// fails at once.
func (s *Server) patiently(fn func() error) error {
	for {
		err := fn()
		if err == nil || !inUse(err) || !s.pause() {
			return err
		}
	}
}

// inUse reports whether err says that another process has something, and nothing else.
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
