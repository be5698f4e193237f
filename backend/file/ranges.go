package file

import (
	"math/bits"
	"sync"
)

const (
	nRanges    = 1024
	minGranule = 4 << 10
)

// ranges are readers-writer locks over the blocks of the file, so that no command sees a block torn (NVM Express Base
// Specification 1.4, section 6.4: AWUN is at least one block). A buffered read may see half of a racing write, and a direct one
// what the disk makes of it. The unit is a page or a block, whatever is larger, so that the page cache, where it helps to zero
// parts of pages, never works on a page that another worker writes directly. Workers may sleep while they hold them; reactors
// never touch them.
type ranges struct {
	shift uint
	table [nRanges]sync.RWMutex
}

func (r *ranges) init(blockSize int) {
	r.shift = uint(bits.TrailingZeros(uint(max(blockSize, minGranule))))
}

// span is the locks of a command: [a, b) and then [c, d), ascending, so that two commands never wait for each other.
type span struct{ a, b, c, d int }

func (r *ranges) span(off, n int64) span {
	first, last := off>>r.shift, (off+n-1)>>r.shift
	if n <= 0 {
		return span{}
	}
	if last-first >= nRanges-1 {
		return span{b: nRanges}
	}
	i, j := int(first%nRanges), int(last%nRanges)+1
	if i < j {
		return span{a: i, b: j}
	}
	return span{a: 0, b: j, c: i, d: nRanges}
}

func (r *ranges) lock(off, n int64, write bool) {
	s := r.span(off, n)
	for _, part := range [2][2]int{{s.a, s.b}, {s.c, s.d}} {
		for i := part[0]; i < part[1]; i++ {
			if write {
				r.table[i].Lock()
			} else {
				r.table[i].RLock()
			}
		}
	}
}

func (r *ranges) unlock(off, n int64, write bool) {
	s := r.span(off, n)
	for _, part := range [2][2]int{{s.a, s.b}, {s.c, s.d}} {
		for i := part[0]; i < part[1]; i++ {
			if write {
				r.table[i].Unlock()
			} else {
				r.table[i].RUnlock()
			}
		}
	}
}
