package uring

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// TestMain looks for descriptors that are left.
func TestMain(m *testing.M) {
	before := descriptors()
	code := m.Run()
	if after := descriptors(); after > before {
		fmt.Printf("%d descriptors leaked\n", after-before)
		code = 1
	}
	os.Exit(code)
}

func descriptors() int {
	if f, err := os.Open("/proc/self/stat"); err == nil { // opens the runtime's own poller for good
		_ = f.SetDeadline(time.Time{})
		_ = f.Close()
	}
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(list)
}
