package engine

import (
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestHalfKick has a Kick that the holder finds half done, and that ends while the engine is held:
// the holder looks for it again.
func TestHalfKick(t *testing.T) {
	d := alone(t, Options{})
	e := d.Engine(0)
	inbox := (*struct { // the beginning of list.Inbox
		last, first atomic.Pointer[list.Node[Handle]]
	})(unsafe.Pointer(&e.kicks))
	kicked := attach(t, e, &endpoint{})
	var node *list.Node[Handle]
	ep := attach(t, e, &endpoint{onRun: func(*endpoint) bool {
		inbox.first.Store(node)
		e.enter(maxTurns, false) // the end of the Kick
		return false
	}})
	kicked.kicked.Store(true)
	e.kicks.Push(&kicked.Handle, &kicked.kick)
	node = inbox.first.Swap(nil) // the last step of Push
	e.Schedule(&ep.Handle)
	e.enter(maxTurns, false)
	testutil.Equal(t, kicked.runs, 1, "runs of the endpoint that was kicked")
}

// TestPanic: an endpoint that panics does not leave the engine held, so that cleaning up ends.
func TestPanic(t *testing.T) {
	d := alone(t, Options{})
	e := d.Engine(0)
	ep := attach(t, e, &endpoint{onRun: func(*endpoint) bool { panic("a fault") }})
	func() {
		defer func() { testutil.Equal(t, recover(), "a fault", "panic") }()
		ep.Kick()
	}()
	testutil.True(t, !e.held.Swap(false), "the engine is held")
	e.Do(func() {})
}
