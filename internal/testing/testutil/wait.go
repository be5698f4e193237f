package testutil

import (
	"context"
	"testing"
	"time"
)

// Patience is the time that a test waits for an event. Only a hang takes longer, even on a busy
// machine.
const Patience = 2 * time.Minute

// Until waits until cond returns true. It fails the test if that takes longer than Patience; the
// text names the event. cond runs on the goroutine of the caller, about once a millisecond.
func Until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, Patience)
		}
	}
}

// Receive returns the next value of a channel, or its zero value once it is closed. It fails the
// test if that takes longer than Patience; the text names the event.
func Receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(Patience):
		t.Fatalf("%s: not within %v", what, Patience)
		panic("unreachable")
	}
}

// Context returns a context that ends with the test, or after 5 times Patience, since a test may
// wait for many events.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*Patience)
	t.Cleanup(cancel)
	return ctx
}
