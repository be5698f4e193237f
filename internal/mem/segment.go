// Package mem holds memory that devices may touch: mapped outside the Go heap, tagged by purpose, counted, and handed out
// in page-aligned blocks from arenas. It is the only place besides the bindings where an address becomes a number.
package mem

// RegionID is the dense index of a Region within this process. Transports and engines index their tables of local keys and
// fixed-buffer slots with it. An ID is never used twice.
type RegionID int32

// Segment is one contiguous piece of a Region. A request's data is a list of segments in order.
//
// A Segment does not own memory: whoever allocated or lent it decides how long B stays valid.
type Segment struct {
	// B is the memory itself, outside the Go heap.
	B []byte
	// Region tells in which registered Region B lies.
	Region RegionID
	// File says that B is memory of a file (MapFile), for reading. That raises SIGBUS where the file has been cut off or its medium
	// is broken, so it is left to the kernel and to CopyFile.
	File bool
}

// Length is the sum of the segments' bytes.
func Length(segs []Segment) int {
	n := 0
	for i := range segs {
		n += len(segs[i].B)
	}
	return n
}

// Slice appends to dst the part of segs that starts at byte off and is n bytes long, and returns the extended slice.
// The caller guarantees off+n <= Length(segs).
func Slice(dst, segs []Segment, off, n int) []Segment {
	for i := range segs {
		if n == 0 {
			break
		}
		b := segs[i].B
		if off >= len(b) {
			off -= len(b)
			continue
		}
		b = b[off:]
		off = 0
		if len(b) > n {
			b = b[:n]
		}
		dst = append(dst, Segment{B: b, Region: segs[i].Region, File: segs[i].File})
		n -= len(b)
	}
	return dst
}
