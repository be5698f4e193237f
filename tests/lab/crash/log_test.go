package crash

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// The log of dm-log-writes: Linux, Documentation/admin-guide/device-mapper/log-writes.rst. It has a
// superblock, then entries of one sector each, followed by their data. A write is logged when a
// flush that began after its completion completes; a write with FUA is logged when it completes
// itself. So everything before the entry of a flush or of a write with FUA was durable at that
// time.
const (
	logMagic   = 0x6a736677736872
	logVersion = 1
	sector     = 512 // unit of positions in the log, independent of its sector size
)

// Flags of an entry.
const (
	flagFlush = 1 << iota
	flagFUA
	flagDiscard
	flagMark
)

// entry is a write, a discard, a flush or a mark.
type entry struct {
	off, length int64 // in bytes
	flags       uint64
	data        []byte // of a write
	mark        int    // with flagMark; -1 if it is not of a Writer
}

// cached reports whether the entry may be lost until the next flush.
func (e *entry) cached() bool { return e.flags&(flagFlush|flagFUA|flagMark) == 0 }

// readLog reads the whole log.
func readLog(r io.ReaderAt) ([]entry, error) {
	var head [sector]byte
	if _, err := r.ReadAt(head[:], 0); err != nil {
		return nil, fmt.Errorf("superblock: %w", err)
	}
	le := binary.LittleEndian
	if m, v := le.Uint64(head[:]), le.Uint64(head[8:]); m != logMagic || v != logVersion {
		return nil, fmt.Errorf("not a log of dm-log-writes: magic %#x, version %d", m, v)
	}
	n, size := le.Uint64(head[16:]), int64(le.Uint32(head[24:]))
	if size < sector || size > 1<<16 {
		return nil, fmt.Errorf("sectors of %d bytes", size)
	}
	log := make([]entry, 0, n)
	for at := size; uint64(len(log)) < n; {
		e, next, err := readEntry(r, at, size)
		if err != nil {
			return nil, fmt.Errorf("entry %d of %d at %d: %w", len(log), n, at, err)
		}
		log = append(log, e)
		at = next
	}
	return log, nil
}

// readEntry reads the entry at position at and returns the position of the next one.
func readEntry(r io.ReaderAt, at, size int64) (e entry, next int64, err error) {
	head := make([]byte, size)
	if _, err := r.ReadAt(head, at); err != nil {
		return e, 0, err
	}
	le := binary.LittleEndian
	first, count, text := le.Uint64(head), le.Uint64(head[8:]), le.Uint64(head[24:])
	e.flags = le.Uint64(head[16:])
	if first > 1<<40 || count > 1<<20 || text > uint64(size-32) {
		return e, 0, errors.New("is damaged")
	}
	e.off, e.length, next = int64(first)*size, int64(count)*size, at+size
	switch {
	case e.flags&flagMark != 0:
		if e.mark, err = strconv.Atoi(string(head[32 : 32+text])); err != nil {
			e.mark = -1
		}
	case e.flags&flagDiscard == 0:
		e.data = make([]byte, e.length)
		if _, err := r.ReadAt(e.data, next); err != nil {
			return e, 0, err
		}
		next += e.length
	}
	return e, next, nil
}
