package main

import (
	"fmt"
	"regexp"
)

// workload is one row of the table.
type workload struct {
	name       string
	write      bool
	sequential bool
	size       int // bytes of an I/O
	depth      int
	digests    bool
}

func (w workload) shape() floorShape {
	if w.write {
		return writeFloor(w.size)
	}
	return readFloor(w.size)
}

// workloads are what performance is judged by: small random and large sequential I/O, one queue.
func workloads(filter string) ([]workload, error) {
	re, err := regexp.Compile(filter)
	if err != nil {
		return nil, err
	}
	var all []workload
	for _, depth := range []int{1, 32, 128} {
		all = append(all, workload{name: fmt.Sprintf("4K random read QD %d", depth), size: 4 << 10, depth: depth},
			workload{name: fmt.Sprintf("4K random write QD %d", depth), size: 4 << 10, depth: depth, write: true})
	}
	all = append(all, workload{name: "128K read QD 16", size: 128 << 10, depth: 16, sequential: true},
		workload{name: "128K write QD 16", size: 128 << 10, depth: 16, sequential: true, write: true},
		workload{name: "4K random read QD 32 digests", size: 4 << 10, depth: 32, digests: true})
	kept := all[:0]
	for _, w := range all {
		if re.MatchString(w.name) {
			kept = append(kept, w)
		}
	}
	if len(kept) == 0 {
		return nil, fmt.Errorf("no workload matches %q", filter)
	}
	return kept, nil
}
