package sys

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestLowerPriority: a thread gets a low priority, and keeps an even lower one.
func TestLowerPriority(t *testing.T) {
	for _, nice := range []int{lowNice - 1, lowNice, 19} {
		got, done := 0, make(chan error)
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			err := unix.Setpriority(unix.PRIO_PROCESS, 0, nice)
			if err == nil {
				err = LowerPriority()
			}
			p, _ := unix.Getpriority(unix.PRIO_PROCESS, 0)
			got = 20 - p
			done <- err
		}()
		if err := <-done; err == unix.EACCES {
			t.Skip("the priority of this process is too low: ", err)
		} else {
			testutil.Must(t, err)
		}
		testutil.Equal(t, got, max(nice, lowNice), "after %d", nice)
	}
}
