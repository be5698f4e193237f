package app

import (
	"context"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// This file makes hosts disconnect before a stop, so that they connect again at once (ADR 0047).

const (
	// pauseWait bounds the time in which devices complete their commands before hosts are asked.
	pauseWait = time.Second
	// resetBegins bounds the time in which hosts begin the requested reset.
	resetBegins = time.Second
	// resetEnds bounds the time for the part of the reset that needs this target.
	resetEnds = 5 * time.Second
)

// askForResets asks hosts to reset their controllers if their listening sockets are kept, so that
// they connect again at once, and waits until they have left. Listeners accept nobody any more.
func (s *Server) askForResets() {
	if s.opts.Sockets == nil || s.target == nil {
		return
	}
	began := time.Now()
	ports := s.listeners.KeptPorts()
	if len(ports) == 0 {
		return
	}
	// A host that resets gives up all commands and at once sends them again over another path,
	// perhaps to another target. So no device may still have one of them.
	release, err := s.target.PauseAll(pauseWait)
	if err != nil {
		s.log.Info("hosts are not asked to reset their controllers", "err", err)
		return
	}
	defer release() // for hosts that do nothing; their commands complete as usual
	ctx, cancel := context.WithTimeout(context.Background(), aliveTimeout)
	asked, err := s.target.AskForResets(ctx, func(id uint16) bool { return ports[id] })
	cancel()
	if err != nil {
		s.log.Warn("not all hosts were asked to reset their controllers", "err", err)
	}
	left := awaitResets(asked, resetBegins)
	// Hosts finish begun resets: without an answer of this target one may wait for a minute.
	begun := slices.DeleteFunc(left, func(r *target.ResetRequest) bool { return !r.Begun() })
	left = awaitResets(begun, resetEnds)
	if len(left) > 0 { // one line stands for all
		s.log.Warn("a host has not ended the reset that it was asked for in time", "host",
			left[0].HostNQN())
	}
	if len(asked) > 0 {
		s.log.Info("hosts were asked to reset their controllers", "duration",
			time.Since(began).Round(time.Millisecond))
	}
}

// awaitResets waits until the associations have ended, and returns the remaining ones after limit.
func awaitResets(list []*target.ResetRequest, limit time.Duration) []*target.ResetRequest {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for i, r := range list {
		select {
		case <-r.Gone():
		case <-timeout.C:
			return slices.Clone(list[i:])
		}
	}
	return nil
}
