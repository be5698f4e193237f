// Package mem holds memory that devices may touch: mapped outside the Go heap, tagged by purpose,
// counted, and handed out in page-aligned blocks from arenas. It is the only place besides the
// bindings where an address becomes a number.
package mem

// RegionID is the number of a Region within this process, from 1 on. Transports find their local
// keys by it. A number is never used twice.
type RegionID int32

// NoRegion is the RegionID of memory that lies in no Region, for instance on the Go heap: no device
// may be given it.
const NoRegion RegionID = 0

// Segment is one contiguous piece of a Region. A request's data is a list of segments in order.
//
// A Segment does not own memory: whoever allocated or lent it decides how long B stays valid.
type Segment struct {
	// B is the memory itself.
	B []byte
	// Region is the Region that B lies in, or NoRegion.
	Region RegionID
	// File says that B is memory of a file (MapFile), for reading. That raises SIGBUS where the
	// file has been cut off or its medium is broken, so it is left to the kernel and to CopyFile.
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

// Slice appends to dst the part of segs that starts at byte off and is n bytes long, and returns
// the extended slice. The caller guarantees off+n <= Length(segs).
func Slice(dst, segs []Segment, off, n int) []Segment {
	c := NewCursor(segs, off)
	for n > 0 {
		s := *c.Segment()
		s.B = c.Next(n)
		dst = append(dst, s)
		n -= len(s.B)
	}
	return dst
}
