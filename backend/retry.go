package backend

import (
	"slices"
	"sync"
	"sync/atomic"
)

// RetryGroup is the set of channels of a device that can block each other: an operation may wait
// for a resource of a channel on another reactor, such as a block that is being read without a
// copy. A blocked operation stays on its channel. The channel that gives a resource back makes
// every waiting channel try again. The zero RetryGroup is empty.
//
//	blocked channel   Retry.Wait(true), then it tries once more, so that no wake-up is missed
//	other channel     gives the resource back, then RetryGroup.Wake
//	blocked channel   Poll: if Retry.Take, tries again; Retry.Wait(false) once nothing is blocked
type RetryGroup struct {
	mu      sync.Mutex // held while members changes
	members atomic.Pointer[[]*Retry]
	waiting atomic.Int32
}

// Retry is the membership of one channel.
type Retry struct {
	group        *RetryGroup
	wake         func()
	waiting, due atomic.Bool
}

// Join adds a channel; wake makes its reactor poll.
func (g *RetryGroup) Join(wake func()) *Retry {
	r := &Retry{group: g, wake: wake}
	g.change(func(members []*Retry) []*Retry { return append(members, r) })
	return r
}

// Leave removes the channel.
func (r *Retry) Leave() {
	r.Wait(false)
	r.group.change(func(members []*Retry) []*Retry {
		return slices.DeleteFunc(members, func(o *Retry) bool { return o == r })
	})
}

func (g *RetryGroup) change(fn func([]*Retry) []*Retry) {
	g.mu.Lock()
	defer g.mu.Unlock()
	members := fn(slices.Clone(g.list()))
	g.members.Store(&members)
}

func (g *RetryGroup) list() []*Retry {
	if p := g.members.Load(); p != nil {
		return *p
	}
	return nil
}

// Len returns the number of channels.
func (g *RetryGroup) Len() int { return len(g.list()) }

// Waiting reports whether a channel waits. Any goroutine may call it.
func (g *RetryGroup) Waiting() bool { return g.waiting.Load() != 0 }

// Wake makes every waiting channel try again. Any goroutine may call it.
func (g *RetryGroup) Wake() {
	if !g.Waiting() {
		return
	}
	for _, r := range g.list() {
		if r.waiting.Load() {
			r.due.Store(true)
			r.wake()
		}
	}
}

// Wait records whether the channel has blocked operations, and reports a change. Reactor only.
func (r *Retry) Wait(yes bool) (changed bool) {
	if r.waiting.Load() == yes {
		return false
	}
	r.waiting.Store(yes)
	if yes {
		r.group.waiting.Add(1)
	} else {
		r.group.waiting.Add(-1)
	}
	return true
}

// Due reports whether the channel has to try again.
func (r *Retry) Due() bool { return r.due.Load() }

// Take reports whether the channel has to try again, and resets that. Only its reactor calls it.
func (r *Retry) Take() bool { return r.due.Load() && r.due.Swap(false) }
