package crash

import (
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

const ioctlTargetMessage = 0xc138fd0e // DM_TARGET_MSG

// mapperMessage is struct dm_ioctl of linux/dm-ioctl.h, followed by struct dm_target_msg.
type mapperMessage struct {
	version                [3]uint32
	dataSize, dataStart    uint32
	targets                uint32
	open                   int32
	flags, event, reserved uint32
	dev                    uint64
	name                   [128]byte
	uuid                   [129]byte
	padding                [7]byte
	target                 uint64
	text                   [64]byte
}

// Marker returns a function that puts marks into the log of a device of dm-log-writes.
func Marker(device string) (mark func(id int) error, close func() error, err error) {
	control, err := os.OpenFile("/dev/mapper/control", os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	mark = func(id int) error {
		m := mapperMessage{
			version:   [3]uint32{4},
			dataStart: uint32(unsafe.Offsetof(mapperMessage{}.target)),
		}
		m.dataSize = uint32(unsafe.Sizeof(m))
		copy(m.name[:], device)
		copy(m.text[:], "mark "+strconv.Itoa(id))
		_, _, e := unix.Syscall(unix.SYS_IOCTL, control.Fd(), ioctlTargetMessage,
			uintptr(unsafe.Pointer(&m)))
		if e != 0 {
			return fmt.Errorf("mark %d in the log of %s: %w", id, device, e)
		}
		return nil
	}
	return mark, control.Close, nil
}
