package app

import (
	"context"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// This file has hosts disconnect by themselves before the target stops, so that they connect again
// at once, see ADR 0047.

// How long devices take at most to complete their commands, hosts to begin a reset, if they do what
// they are asked for, and to end the part of it that needs this target.
const (
	holdWait    = time.Second
	resetBegins = time.Second
	resetEnds   = 5 * time.Second
)

// askForResets asks the hosts that can connect meanwhile, since their listening sockets are kept,
// and waits until they are gone. No listener accepts any more.
func (s *Server) askForResets() {
	if s.opts.Sockets == nil || s.target == nil {
		return
	}
	began := time.Now()
	ports := s.listeners.keptPorts()
	if len(ports) == 0 {
		return
	}
	// A host gives up all commands when it resets, and sends them again over another path at once,
	// which may be another target: no device may have one of them then.
	release, err := s.target.HoldIO(holdWait)
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
	// What it has begun a host should end: without an answer of this target it may wait for long.
	begun := slices.DeleteFunc(left, func(r *target.ResetRequest) bool { return !r.Begun() })
	left = awaitResets(begun, resetEnds)
	if len(left) > 0 { // one stands for all
		s.log.Warn("a host has not ended the reset that it was asked for in time", "host",
			left[0].HostNQN())
	}
	if len(asked) > 0 {
		s.log.Info("hosts were asked to reset their controllers", "duration",
			time.Since(began).Round(time.Millisecond))
	}
}

// awaitResets waits until the associations have ended, and returns those that have not in time.
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

// keptPorts are the ports whose listening sockets are kept.
func (ls *listeners) keptPorts() map[uint16]bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	kept := map[uint16]bool{}
	for _, p := range ls.ports {
		if p.open != nil && p.addr.Transport == nvme.TransportTCP {
			kept[p.id] = true
		}
	}
	return kept
}
