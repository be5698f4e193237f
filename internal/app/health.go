package app

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/inventory"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// healthEvery is how often drives are asked for warnings, and the space of sparse files is
// measured.
const healthEvery = time.Minute

// driveOf returns the drive that is, or has as a partition, the storage of a namespace. It is nil
// for all other storage, such as files on a drive.
func driveOf(n *namespace) target.Drive {
	var st unix.Stat_t
	if err := unix.Stat(blockPath(n), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return nil
	}
	if d := inventory.Linux().DriveOf(sys.DeviceNumber(st.Rdev)); d != nil {
		return d
	}
	return nil
}

// watcher calls a function at intervals, on its own goroutine, until it is closed.
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

// close stops the calls and waits for the one in progress.
func (w *watcher) close() {
	close(w.stop)
	w.wg.Wait()
}
