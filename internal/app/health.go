package app

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/inventory"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// healthEvery is how often drives are asked for warnings, and the space of sparse files is
// measured.
const healthEvery = time.Minute

// driveOf is the drive that a storage is, or is a partition of; nil for storage that is none or
// lies on one among other things.
func driveOf(s *config.Storage) target.Drive {
	_, layers := s.Layers("")
	number, err := blockNumber(layers[len(layers)-1])
	if err != nil {
		return nil
	}
	if d := inventory.Linux().DriveOf(number); d != nil {
		return d
	}
	return nil
}

// blockNumber is the number of a storage's block device.
func blockNumber(s *config.Storage) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(blockPath(s), &st); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return "", os.ErrInvalid
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), nil
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
