package state

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestConnections: the connections of a process that has not removed them are the earlier ones of
// the next process.
func TestConnections(t *testing.T) {
	dir := t.TempDir()
	earlier := func(s *Store, cluster string, want ...string) {
		t.Helper()
		testutil.True(t, slices.Equal(s.Earlier(cluster), want), "%v, not %v", s.Earlier(cluster),
			want)
	}
	s := opened(t, dir)
	for _, addr := range []string{"1", "2"} {
		testutil.Must(t, s.AddConnection("x", addr))
	}
	testutil.Must(t, s.AddConnection("y", "3"))
	testutil.Must(t, s.RemoveConnection("x", "1"))
	earlier(s, "x")
	s = reopened(t, s)
	earlier(s, "x", "2")
	earlier(s, "y", "3")
	earlier(s, "z")
	testutil.Must(t, s.AddConnection("x", "4"))
	earlier(s, "x", "2")
	testutil.Must(t, s.RemoveConnection("x", "2"))
	earlier(s, "x")
	s.data.Connections = make([]Connection, mostConnections)
	testutil.Fails(t, s.AddConnection("x", "5"), "fill the state file", "")
	s = reopened(t, s)
	earlier(s, "x", "4")
	file := s.at(stateFile)
	testutil.Must(t, s.Close())
	text := string(testutil.Value(os.ReadFile(file))(t))
	damaged := strings.Replace(text, `"address": "4"`, `"address": "5"`, 1)
	testutil.MustTrue(t, damaged != text, "%s", text)
	testutil.Must(t, os.WriteFile(file, []byte(damaged), 0o600))
	_, err := Open(dir)
	testutil.Fails(t, err, "late writes of a target that was killed can reach", "")
}

// TestCloseWaits: a change that has begun ends before another process can have the directory.
func TestCloseWaits(t *testing.T) {
	s := testutil.Value(Open(t.TempDir()))(t)
	testutil.Must(t, s.AddConnection("x", "1"))
	closed := make(chan error, 1)
	s.step = func(what string, fn func() error) error {
		if what == "rename" {
			go func() { closed <- s.Close() }()
			for range 1000 {
				runtime.Gosched()
			}
		}
		return fn()
	}
	testutil.Check(t, s.RemoveConnection("x", "1"))
	testutil.Check(t, testutil.Receive(t, "the end of Close", closed))
}
