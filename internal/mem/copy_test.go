package mem

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestCopySegments(t *testing.T) {
	cut := func(text string, sizes ...int) (segs []Segment) {
		b := []byte(text)
		for _, n := range sizes {
			segs, b = append(segs, Segment{B: b[:n:n]}), b[n:]
		}
		return segs
	}
	for _, tt := range []struct {
		dst, src []int
		want     string
	}{
		{[]int{8}, []int{8}, "abcdefgh"},
		{[]int{3, 0, 5}, []int{1, 7}, "abcdefgh"},
		{[]int{1, 1, 6}, []int{4, 0, 2}, "abcdef.."},
		{[]int{2, 3}, []int{8}, "abcde"},
		{nil, []int{8}, ""},
	} {
		dst := cut("........", tt.dst...)
		CopySegments(dst, cut("abcdefgh", tt.src...))
		got := ""
		for _, s := range dst {
			got += string(s.B)
		}
		testutil.Equal(t, got, tt.want, "%v from %v", tt.dst, tt.src)
	}
}
