package crash

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const piece = 1 << 20 // bytes copied at once

// Mounted is a Reader of a namespace in a file. It writes the image to the device scratch, mounts
// the file system, which recovers as after a crash, and reads the file name.
func Mounted(fs, scratch, dir, name string) Reader {
	return func(image []byte) (content []byte, err error) {
		if err := put(scratch, image); err != nil {
			return nil, err
		}
		if err := unix.Mount(scratch, dir, fs, 0, ""); err != nil {
			return nil, fmt.Errorf("mount after the crash: %w", err)
		}
		defer func() { err = errors.Join(err, unix.Unmount(dir, 0)) }()
		content, err = os.ReadFile(dir + "/" + name)
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w: %w", err, errLost)
		}
		return content, err
	}
}

// put writes the image to a block device.
func put(dev string, image []byte) error {
	f, err := os.OpenFile(dev, os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	for at := 0; at < len(image) && err == nil; at += piece {
		_, err = f.WriteAt(image[at:min(at+piece, len(image))], int64(at))
	}
	return errors.Join(err, f.Close())
}
