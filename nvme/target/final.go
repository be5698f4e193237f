package target

import "maps"

// This file decides which refusals of a Connect are final (ADR 0023): with DNR, after which Linux
// gives a controller up (nvmf_should_reconnect, from 6.10 on; before it tries until its
// ctrl_loss_tmo). That is right for a subsystem or a host that an operator has removed. It is wrong
// for one that is only missing: at the start, while a configuration is being applied, or because a
// file was lost. The refusal of a subsystem that required security is never final: strangers must
// not know that there was one.

// maxGone is how many subsystems that were removed are remembered.
const maxGone = 4096

// Changing begins a change of subsystems or hosts. Until done is called, missing subsystems and
// hosts may come back, and no refusal of a subsystem or of a host is final. Any goroutine may call
// it.
func (t *Target) Changing() (done func()) {
	t.changesBegun.Add(1)
	return func() { t.changesEnded.Add(1) }
}

// unchanged returns a function that reports whether no change was in progress since the call. If
// one was, a subsystem or host found missing meanwhile may be back.
func (t *Target) unchanged() (since func() bool) {
	ended := t.changesEnded.Load()
	return func() bool { return t.changesBegun.Load() == ended }
}

// setGone remembers that a subsystem was removed on purpose, or forgets it. The caller holds t.mu.
func (t *Target) setGone(nqn string, gone bool) {
	now := maps.Clone(*t.gone.Load())
	delete(now, nqn)
	for other := range now {
		if !gone || len(now) < maxGone {
			break
		}
		delete(now, other)
	}
	if gone {
		now[nqn] = true
	}
	t.gone.Store(&now)
}

// isGone reports whether a subsystem was removed on purpose.
func (t *Target) isGone(nqn string) bool { return (*t.gone.Load())[nqn] }
