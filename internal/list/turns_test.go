package list

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestTurns: owners take turns, and an owner without elements leaves nothing.
func TestTurns(t *testing.T) {
	var q Turns[byte, element]
	all := elements(6)
	for i := range all {
		q.Push("aaabbc"[i], &all[i], &all[i].node)
	}
	q.Remove('a', &all[1].node)
	q.Remove('c', &all[5].node)
	var got []int
	for e := q.Pop(); e != nil; e = q.Pop() {
		if len(got) == 0 {
			q.Push('d', &all[5], &all[5].node) // after owners that wait already
		}
		got = append(got, e.id)
	}
	testutil.EqualSlices(t, got, []int{0, 3, 2, 5, 4}, "order")
	testutil.True(t, q.Empty() && q.next.Empty(), "owners are left")
}
