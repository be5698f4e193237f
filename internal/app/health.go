package app

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/inventory"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// healthEvery is how often drives are asked whether they warn of something.
const healthEvery = time.Minute

// driveOf is the drive that a namespace's storage is, or is a partition of; nil for storage that is
// none or lies on one among other things.
func driveOf(n *namespace) target.Drive {
	var st unix.Stat_t
	if err := unix.Stat(blockPath(n), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return nil
	}
	if d := inventory.Linux().DriveOf(deviceNumber(st.Rdev)); d != nil {
		return d
	}
	return nil
}

// watcher calls a function every now and then, on a goroutine of its own, until it is closed.
type watcher struct {
	stop chan struct{}
	wg   sync.WaitGroup
}

func watch(every time.Duration, fn func()) *watcher {
	w := &watcher{stop: make(chan struct{})}
	w.wg.Go(func() {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			fn()
			select {
			case <-t.C:
			case <-w.stop:
				return
			}
		}
	})
	return w
}

// close ends the calls and waits for the one in progress.
func (w *watcher) close() {
	close(w.stop)
	w.wg.Wait()
}
