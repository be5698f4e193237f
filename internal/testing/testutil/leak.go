// Package testutil has helpers for tests of several packages: errors that end a test, waits for
// events, a check for leaked goroutines and descriptors, counts of allocations, a comparison of
// constants with C headers, and the choice between "make test" and "make soak".
package testutil

import (
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests of m, a testing.M, and exits. It fails if goroutines or descriptors leak or
// one of more returns an error. TestMain calls it.
func Main(m interface{ Run() int }, more ...func() error) {
	before := openFiles()
	code := m.Run()
	for _, check := range more {
		if err := check(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	for end := time.Now().Add(timeout); ; time.Sleep(10 * time.Millisecond) {
		err := errors.Join(goleak.Find(), descriptors(before))
		if err == nil {
			break
		}
		if code != 0 || time.Now().After(end) { // a failed test may leak permanently
			fmt.Fprintln(os.Stderr, err)
			code = 1
			break
		}
	}
	os.Exit(code)
}

// timeout is the time allowed for goroutines to end; goleak waits less than a second.
const timeout = 30 * time.Second

func descriptors(before int) error {
	if after := openFiles(); after > before {
		return fmt.Errorf("%d descriptors leaked", after-before)
	}
	return nil
}

// openFiles returns the number of open descriptors.
func openFiles() int {
	// The first use of a pipe or a timer permanently opens the poller of the runtime.
	if r, w, err := os.Pipe(); err == nil {
		_, _ = r.Close(), w.Close()
	}
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(list)
}
