//go:build cgo

package ibv

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// watchable makes a descriptor of rdma-core non-blocking and returns a duplicate for the Go runtime
// to wait on, so that waiting holds no thread. The caller closes the duplicate, which ends the
// waiting; rdma-core closes the descriptor itself.
func watchable(fd int, name string) (*os.File, syscall.RawConn, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, nil, err
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(dup), name)
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, raw, nil
}
