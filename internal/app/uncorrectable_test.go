package app

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// TestUncorrectable: which blocks are marked outlives a restart. What cannot be written does not
// hold, and files that cannot be ours are errors that name them.
func TestUncorrectable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "uncorrectable")
	load := func() *uncorrectable {
		t.Helper()
		u, err := loadUncorrectable(dir)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	set := func(u *uncorrectable, nsid uint32, now *target.Uncorrectable) {
		t.Helper()
		if err := u.SetUncorrectable("a", nsid, now); err != nil {
			t.Fatal(err)
		}
	}
	many := &target.Uncorrectable{Identity: "disk"}
	for off := int64(0); len(many.Ranges) < target.MaxUncorrectable/512; off += 1024 {
		at := 1<<60 + off
		many.Ranges = append(many.Ranges, target.ByteRange{Off: at, End: at + 512})
	}
	one := &target.Uncorrectable{Identity: "b", Ranges: []target.ByteRange{{Off: 0, End: 4096}}}
	u := load()
	set(u, 1, many)
	set(u, 2, one)
	set(u, 3, one)
	set(u, 3, nil)
	for nsid, want := range map[uint32]*target.Uncorrectable{1: many, 2: one, 3: nil} {
		if got := load().Uncorrectable("a", nsid); !reflect.DeepEqual(got, want) {
			t.Errorf("namespace %d: %v, want %v", nsid, got, want)
		}
	}
	u.step = func(what string, fn func() error) error {
		if what == "sync" {
			return os.ErrClosed
		}
		return fn()
	}
	s := &state{others: []*atomic.Bool{u.failed}}
	if err := u.SetUncorrectable("a", 2, nil); err != nil || s.isUnsaved() {
		t.Error(err)
	}
	if err := u.SetUncorrectable("a", 1, one); err == nil || u.Uncorrectable("a", 1) != many {
		t.Errorf("not durable: %v", err)
	}
	if !s.isUnsaved() {
		t.Error("no alert would tell")
	}

	file := u.file(reservedName{"a", 1})
	content := func(ranges string) string {
		return fmt.Sprintf(`{"version": 1, "subsystem": "a", "nsid": 1, "identity": "b",
			"ranges": [%s]}`, ranges)
	}
	for name, text := range map[string]string{
		"empty": "", "another version": strings.Replace(content(""), "1", "2", 1),
		"another namespace": strings.Replace(content(""), `"nsid": 1`, `"nsid": 2`, 1),
		"an unknown key":    strings.Replace(content(""), "identity", "name", 1),
		"not ascending":     content("[1024, 1536], [0, 512]"),
		"not apart":         content("[0, 512], [512, 1024]"),
		"no block":          content("[0, 100]"),
		"too much":          content("[0, 2097664]"),
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := loadUncorrectable(dir); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
