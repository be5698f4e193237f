// Package mem manages memory that devices may access. It is mapped outside the Go heap, tagged by
// purpose, and handed out in page-aligned blocks from arenas. It is the only package, besides the
// bindings, that converts an address to a number.
package mem

// RegionID is the number of a Region within this process, from 1 on. Transports find their local
// keys by it. A number is never used again.
type RegionID int32

// NoRegion is the RegionID of memory outside any Region, which is never given to a device.
const NoRegion RegionID = 0

// Segment is a contiguous piece of a Region. The data of a request is a list of segments.
//
// A Segment owns no memory: its source (a Pool, a zero-copy read) defines how long B is valid.
type Segment struct {
	// B is the memory itself.
	B []byte
	// Region is the Region that B lies in, or NoRegion.
	Region RegionID
}

// Length returns the number of bytes of all segments.
func Length(segs []Segment) int {
	n := 0
	for i := range segs {
		n += len(segs[i].B)
	}
	return n
}
