package mem

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testutil"
)

// fileRegion returns a file of this many pages, each of which holds its number, and its mapping.
func fileRegion(t *testing.T, pages int) (path string, r *Region) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file")
	var b []byte
	for i := range pages {
		b = append(b, bytes.Repeat([]byte{byte(1 + i)}, os.Getpagesize())...)
	}
	testutil.Must(t, os.WriteFile(path, b, 0o600))
	f := testutil.Value(os.Open(path))(t)
	r = testutil.Value(MapFile("test file", int(f.Fd()), int64(len(b))))(t)
	testutil.Check(t, f.Close())
	t.Cleanup(func() {
		testutil.Check(t, r.Unmap())
	})
	return path, r
}

// TestCopyFile: what a file has is copied; where it has been truncated, that is reported and the
// process survives. The guard ends with the call.
func TestCopyFile(t *testing.T) {
	page := os.Getpagesize()
	path, r := fileRegion(t, 3)
	testutil.Equal(t, usage("test file"), (PurposeUsage{Purpose: "test file", Regions: 1}), "usage")
	segs := []Segment{{B: r.Bytes(), Region: r.ID(), File: true}}
	got := make([]byte, 3*page)
	dst := []Segment{{B: got}}
	if !CopyFile(dst, segs) || !bytes.Equal(got, r.Bytes()) || got[2*page] != 3 {
		t.Errorf("%v...", got[:1])
	}
	testutil.Equal(t, testing.AllocsPerRun(100, func() { CopyFile(dst, segs) }), 0, "allocations")
	testutil.Must(t, os.Truncate(path, int64(page)))
	segs[0].B = r.Bytes()[page-1 : 2*page-1]
	if CopyFile(dst, segs) {
		t.Error("behind the end of the file something was copied")
	}
	segs[0].B = r.Bytes()[:page]
	if !CopyFile(dst, segs) {
		t.Error("what is left of the file cannot be copied")
	}
}

// TestGuardPassesPanicsOn: a guard catches only faults.
func TestGuardPassesPanicsOn(t *testing.T) {
	defer func() {
		if v := recover(); v != "other" {
			t.Errorf("panic with %v", v)
		}
	}()
	Guard(func() { panic("other") })
}
