// Package testutil is what tests of several packages need: a check for leaked goroutines and
// descriptors, counts of allocations, and a comparison of constants with C headers.
package testutil

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests of m, fails if goroutines or descriptors are left or one of more finds
// something, and exits. For TestMain.
func Main(m *testing.M, more ...func() error) {
	before := openFiles()
	code := m.Run()
	for _, check := range more {
		if err := check(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		err := errors.Join(goleak.Find(), descriptors(before))
		if err == nil {
			break
		}
		if code != 0 || time.Now().After(end) { // after a failure nobody waits for what it left
			fmt.Fprintln(os.Stderr, err)
			code = 1
			break
		}
	}
	os.Exit(code)
}

// patience is how long what has been told to end may take; goleak's own is less than a second.
const patience = 30 * time.Second

func descriptors(before int) error {
	if after := openFiles(); after > before {
		return fmt.Errorf("%d descriptors leaked", after-before)
	}
	return nil
}

// openFiles is the number of open descriptors.
func openFiles() int {
	// The first use of a pipe or a timer opens the runtime's own poller for good.
	if r, w, err := os.Pipe(); err == nil {
		_, _ = r.Close(), w.Close()
	}
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(list)
}
