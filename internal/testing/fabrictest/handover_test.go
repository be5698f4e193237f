package fabrictest

import (
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func (*sink) HandOverBuffers(r *fabric.Request) (free func()) {
	r.Segs = r.Segs[:len(r.Segs)/2]
	return func() {}
}

func (*sink) Resume(*fabric.Request) {}

// TestWatchHandOver: only executing requests hand over buffers, all of them, and they are freed
// once.
func TestWatchHandOver(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		run        func(q fabric.Queue, w fabric.Handler, r *fabric.Request)
	}{
		{"as it should be", "", func(q fabric.Queue, w fabric.Handler, r *fabric.Request) {
			w.Execute([]*fabric.Request{r})
			q.HandOverBuffers(r)()
		}},
		{
			"too early", "which is prepared",
			func(q fabric.Queue, _ fabric.Handler, r *fabric.Request) { q.HandOverBuffers(r) },
		},
		{"freed twice", "freed twice", func(q fabric.Queue, w fabric.Handler, r *fabric.Request) {
			w.Execute([]*fabric.Request{r})
			free := q.HandOverBuffers(r)
			free()
			free()
		}},
		{
			"some left", "has memory after HandOverBuffers",
			func(q fabric.Queue, w fabric.Handler, r *fabric.Request) {
				w.Execute([]*fabric.Request{r})
				r.Segs = make([]mem.Segment, 2)
				q.HandOverBuffers(r)
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			f := &faulty{execute: func(*fabric.Request) {}}
			w := Watch(f, func(s string) { got = append(got, s) })
			s := testutil.Value(w.Open(&sink{info: fabric.QueueInfo{MaxDepth: 32}}))(t)
			r := &fabric.Request{Session: s}
			w.Prepare([]*fabric.Request{r})
			tc.run(f.q, w, r)
			all := strings.Join(got, "; ")
			testutil.True(t, (tc.want == "") == (all == "") && strings.Contains(all, tc.want),
				"reported %q, want %q", all, tc.want)
		})
	}
}
