package mem

import (
	"errors"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestFind(t *testing.T) {
	r := testutil.Value(Map("test find", ChunkSize))(t)
	testutil.Equal(t, Find(r.ID()), r, "a mapped region is not found")
	testutil.Must(t, r.Unmap())
	testutil.True(t, Find(r.ID()) == nil, "a region is found that is not mapped any more")
}

func TestPinKeepsDiscardAway(t *testing.T) {
	r := testutil.Value(Map("test pin", 3*ChunkSize))(t)
	r.Bytes()[ChunkSize] = 1
	r.Pin(1)
	r.Pin(1)
	for _, tc := range []struct {
		off, n int
		want   error
	}{
		{0, ChunkSize, nil},
		{2 * ChunkSize, ChunkSize, nil},
		{ChunkSize, ChunkSize, ErrPinned},
		{2*ChunkSize - 4096, 8192, ErrPinned},
		{ChunkSize - 4096, 8192, ErrPinned},
	} {
		testutil.Is(t, r.Discard(tc.off, tc.n), tc.want, "Discard(%d, %d)", tc.off, tc.n)
	}
	testutil.Is(t, r.Collapse(0, ChunkSize), ErrPinned, "Collapse beside a pinned chunk")
	r.Unpin(1)
	testutil.Is(t, r.Discard(ChunkSize, ChunkSize), ErrPinned, "pinned once more")
	r.Unpin(1)
	if err := r.Discard(ChunkSize, ChunkSize); err != nil || r.Bytes()[ChunkSize] != 0 {
		t.Errorf("unpinned: %v, the memory holds %d", err, r.Bytes()[ChunkSize])
	}
	testutil.Must(t, r.Unmap())
}

// TestUnmapAsksFirst: devices with registered memory are called before it is unmapped, and can keep
// it.
func TestUnmapAsksFirst(t *testing.T) {
	r := testutil.Value(Map("test unmap", ChunkSize))(t)
	refuse, calls := errors.New("still in use"), 0
	_, ok := r.BeforeUnmap(func() error {
		if calls++; calls == 1 {
			return refuse
		}
		r.Unpin(0)
		return nil
	})
	cancel, ok2 := r.BeforeUnmap(func() error { t.Error("called after cancel"); return nil })
	testutil.MustTrue(t, ok && ok2 && r.Pin(0), "a mapped region is not to be had")
	cancel()
	err := r.Unmap()
	testutil.MustTrue(t, errors.Is(err, refuse) && r.Bytes() != nil, "first Unmap: %v", err)
	_, ok = r.BeforeUnmap(func() error { return nil })
	testutil.True(t, !ok && !r.Pin(0), "a region that is being unmapped was pinned")
	err = r.Unmap()
	testutil.MustTrue(t, err == nil && calls == 2, "second Unmap: %v, %d calls", err, calls)
}
