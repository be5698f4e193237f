// Package leak ends the tests of a package with a look at what they left behind.
package leak

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Main runs the tests of m, fails if goroutines or descriptors are left or one of more finds something, and exits. For TestMain.
func Main(m *testing.M, more ...func() error) {
	before := openFiles()
	code := m.Run()
	for _, check := range more {
		if err := check(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if after := openFiles(); after > before {
		fmt.Fprintf(os.Stderr, "%d descriptors leaked\n", after-before)
		code = 1
	}
	os.Exit(code)
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
