package app

import (
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

// watch calls fn at intervals, on a goroutine of its own, until stop is called. stop waits for the
// call in progress.
func watch(every time.Duration, fn func()) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			fn()
			select {
			case <-t.C:
			case <-quit:
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}
