package mem

import (
	"fmt"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// MapFile maps the first size bytes of the file fd, rounded up to whole pages, for reading. The
// memory is that of the file, changes with it, and is not charged to the purpose; segments of it
// say so (Segment.File). fd may be closed afterwards.
func MapFile(purposeName string, fd int, size int64) (*Region, error) {
	page := int64(unix.Getpagesize())
	if size <= 0 || size > 1<<62 {
		return nil, fmt.Errorf("map a file for %s: size %d bytes: must be positive", purposeName,
			size)
	}
	size = (size + page - 1) &^ (page - 1)
	b, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of a file for %s: mmap: %w (see ulimit -v)", size,
			purposeName, err)
	}
	return newRegion(purposeName, b)
}

// CopyFile is CopySegments from memory of files. It returns false if not all of that could be read.
func CopyFile(dst, src []Segment) bool {
	return Guard(func() { CopySegments(dst, src) })
}

// Guard calls fn, which accesses memory of files, or makes the kernel access it, and nothing else
// that may fault. It returns false if that raised SIGBUS, as where the file has been truncated or
// its medium is broken: then fn did not complete.
func Guard(fn func()) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if ok {
			return
		}
		// runtime/debug: what a fault panics with has an address.
		if v := recover(); v != nil {
			if _, fault := v.(interface{ Addr() uintptr }); !fault {
				panic(v)
			}
		}
	}()
	fn()
	return true
}
