package cephtest

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestDaemonOutlivesThread: a daemon runs on after the end of the thread that called Start.
func TestDaemonOutlivesThread(t *testing.T) {
	c := &Cluster{
		dir: t.TempDir(), daemons: map[string]*daemon{},
		commands: map[string][]string{"mon": {"sh", "-c", "exec sleep 3600", "sh"}},
	}
	thread := make(chan int)
	var start func()
	start = func() {
		runtime.LockOSThread()
		if id := syscall.Gettid(); id != syscall.Getpid() {
			c.Start(t, "mon")
			thread <- id
			return // still locked: the thread ends
		}
		defer runtime.UnlockOSThread()
		started := make(chan struct{})
		go func() { // on another thread, since the first one does not end
			defer close(started)
			start()
		}()
		<-started
	}
	go start()
	task := fmt.Sprint("/proc/self/task/", <-thread)
	testutil.Until(t, "the thread to end", func() bool {
		_, err := os.Stat(task)
		return os.IsNotExist(err)
	})
	d := c.daemons["mon"]
	testutil.Must(t, d.Process.Signal(syscall.SIGTERM))
	testutil.Receive(t, "the end of the daemon", d.ended)
	state := d.ProcessState.Sys().(syscall.WaitStatus)
	testutil.Equal(t, state.Signal(), syscall.SIGTERM, "ended the daemon")
}
