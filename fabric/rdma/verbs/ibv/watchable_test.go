//go:build cgo

package ibv

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestWatchable: a write wakes the waiter. Closing the duplicate ends the waiting and leaves the
// descriptor open.
func TestWatchable(t *testing.T) {
	r, w, err := os.Pipe()
	testutil.Must(t, err)
	defer w.Close()
	defer r.Close()
	fd := int(r.Fd()) // blocking from now on
	f, raw, err := watchable(fd, "test")
	testutil.Must(t, err)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	testutil.True(t, err == nil && flags&unix.O_NONBLOCK != 0, "flags %#x, %v: want O_NONBLOCK",
		flags, err)
	reads := make(chan int)
	ended := make(chan error, 1)
	go func() {
		var b [1]byte
		ended <- raw.Read(func(uintptr) bool {
			n, err := unix.Read(fd, b[:])
			if err == nil {
				reads <- n
			}
			return false
		})
	}()
	testutil.Value(w.WriteString("x"))(t)
	n := testutil.Receive(t, "the waiter is woken", reads)
	testutil.True(t, n == 1, "read %d bytes, want 1", n)
	testutil.Check(t, f.Close())
	testutil.True(t, testutil.Receive(t, "closing ends the wait", ended) != nil,
		"the wait ended without an error, although nothing was done")
	testutil.Equal(t, testutil.Err(unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)), nil,
		"the descriptor was closed")
}

func TestWatchableRefuses(t *testing.T) {
	_, _, err := watchable(-1, "test")
	testutil.True(t, errors.Is(err, unix.EBADF), "error %v, want EBADF", err)
}
