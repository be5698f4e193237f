package association

import (
	"maps"
	"sync/atomic"
)

// Final decides which refusals of a Connect are final (ADR 0023): with DNR, after which Linux gives
// a controller up (nvmf_should_reconnect, from 6.10 on; before it tries until its ctrl_loss_tmo).
// That is right for a subsystem or a host that an operator has removed. It is wrong for one that is
// only missing: at the start, while a configuration is being applied, or because a file was lost.
// The refusal of a subsystem that required security is never final: strangers must not know that
// there was one. Any goroutine may use it.
type Final struct {
	gone         atomic.Pointer[map[string]bool] // subsystems removed on purpose; immutable
	begun, ended atomic.Uint64                   // changes
}

// maxGone is the number of removed subsystems that are remembered.
const maxGone = 4096

// Changing begins a change of subsystems or hosts. Until done is called, missing subsystems and
// hosts may come back, and no refusal of a subsystem or of a host is final.
func (f *Final) Changing() (done func()) {
	f.begun.Add(1)
	return func() { f.ended.Add(1) }
}

// Unchanged returns a function that reports whether no change was in progress since the call. If
// one was, a subsystem or host found missing meanwhile may be back.
func (f *Final) Unchanged() (since func() bool) {
	ended := f.ended.Load()
	return func() bool { return f.begun.Load() == ended }
}

// SetGone remembers a subsystem removed on purpose, or forgets it. The caller serializes calls.
func (f *Final) SetGone(nqn string, gone bool) {
	now := map[string]bool{}
	if m := f.gone.Load(); m != nil {
		now = maps.Clone(*m)
	}
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
	f.gone.Store(&now)
}

// IsGone reports whether a subsystem was removed on purpose.
func (f *Final) IsGone(nqn string) bool {
	m := f.gone.Load()
	return m != nil && (*m)[nqn]
}
