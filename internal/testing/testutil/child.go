package testutil

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// StartChild starts a program, which is killed when this process ends. It waits for the program in
// the background, and closes ended at its end. Until then the fields of cmd belong to it.
func StartChild(cmd *exec.Cmd) (ended <-chan struct{}, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	done, started := make(chan struct{}), make(chan error)
	go func() {
		// The signal comes at the end of the thread that has started the program. A reactor could
		// use that thread next and end it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(done)
		}
	}()
	return done, <-started
}

// Pause stops a child until SIGCONT. After the signal alone, its threads run on until one of them
// has received it.
func Pause(t testing.TB, p *os.Process) {
	t.Helper()
	Must(t, p.Signal(syscall.SIGSTOP))
	Must(t, unix.Waitid(unix.P_PID, p.Pid, nil, unix.WSTOPPED, nil))
}
