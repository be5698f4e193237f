package file

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/disk"
)

// Resize changes the size of a closed file. Data beyond a smaller size is lost. A sparse file stays
// sparse, and Preallocate gets all space. After an error the file is as before.
func Resize(cfg Config, size int64) error {
	if err := resize(cfg, size); err != nil {
		return fmt.Errorf("file device %s: %w", cfg.Path, err)
	}
	return nil
}

func resize(cfg Config, size int64) (err error) {
	if err := backend.CheckGeometry(size, cfg.BlockSize); err != nil {
		return err
	}
	cfg.Size = 0 // the file may be smaller than the new size
	var r backend.Report
	if examine(&cfg, &r) == nil && len(r.Errors) == 0 {
		return errors.New("does not exist")
	}
	if err := r.Err(); err != nil {
		return err
	}
	fd, err := unix.Open(cfg.Path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return backend.WithHint(fmt.Errorf("cannot be opened: %w", err),
			accessHint(err, &cfg, false))
	}
	defer func() { err = errors.Join(err, disk.CloseLocked(fd)) }()
	if err := lock(fd, false); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("fstat: %w", err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		return fmt.Errorf("set the size to %d bytes: %w", size, err)
	}
	if size > st.Size { // a shrunk file must not fail: its end is lost already
		if err := preallocate(fd, size, &cfg); err != nil {
			return errors.Join(err, unix.Ftruncate(fd, st.Size))
		}
	}
	if err := unix.Fsync(fd); err != nil {
		return fmt.Errorf("fsync: %w", err)
	}
	return nil
}
