package host

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func socketPair(t testing.TB) (host, controller int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
		0)
	testutil.Must(t, err)
	for _, fd := range fds { // room for all outstanding commands of a test
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<20)
	}
	t.Cleanup(func() { _ = unix.Close(fds[0]); _ = unix.Close(fds[1]) })
	return fds[0], fds[1]
}

// pipeRoundTrip reads the bytes that the host has sent and sends answer.
func pipeRoundTrip(t testing.TB, fd int, drain, answer []byte) {
	if n, err := unix.Read(fd, drain); n <= 0 || err != nil {
		t.Fatalf("nothing from the host: %v", err)
	}
	if n, err := unix.Write(fd, answer); n != len(answer) || err != nil {
		t.Fatalf("answer: %d of %d bytes: %v", n, len(answer), err)
	}
}
