package file

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestProbe: Probe reports each error of Open beforehand and leaves nothing behind.
func TestProbe(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, size int64) string {
		t.Helper()
		path := filepath.Join(dir, name)
		testutil.Must(t, os.WriteFile(path, make([]byte, size), 0o600))
		return path
	}
	busy := file("busy", 1<<20)
	d := mustOpen(t, Config{Path: busy, BlockSize: 512})
	defer mustClose(t, d)
	missing := filepath.Join(dir, "new")
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	testutil.Must(t, errors.Join(os.Symlink("nothing", link), unix.Mkfifo(fifo, 0o600)))
	for _, tc := range []struct {
		cfg  Config
		want string // the problem; "" if there is none
	}{
		{Config{Path: missing, Size: 1 << 20}, ""},
		{Config{Path: file("whole", 1<<20)}, ""},
		{Config{Path: file("empty", 0), Size: 1 << 20}, ""},
		{Config{}, "no path"},
		{Config{Path: dir}, "is a directory"},
		{Config{Path: os.DevNull}, "is a character device, not a regular file"},
		{Config{Path: fifo}, "is a FIFO, not a regular file"},
		{Config{Path: link, Size: 1 << 20}, "is a symbolic link to nothing, which does not exist"},
		{Config{Path: busy + "/x", Size: 1 << 20}, "cannot be reached: not a directory"},
		{Config{Path: missing}, "no size is given"},
		{
			Config{Path: missing, Size: 1 << 20, ReadOnly: true},
			"a read-only namespace is not created",
		},
		{Config{Path: missing, Size: 1000}, "size 1000: must be a multiple"},
		{Config{Path: filepath.Join(dir, "no", "new"), Size: 512}, "does not exist"},
		{Config{Path: "/proc/nvmf-target", Size: 1 << 20}, "is the kernel's"},
		{Config{Path: "/proc/version", Size: 1 << 20}, "a file of the kernel"},
		{Config{Path: "/sys/power/state"}, "a file of the kernel"},
		{Config{Path: file("odd", 1000)}, "size 1000: must be a multiple"},
		{Config{Path: file("small", 1<<20), Size: 2 << 20}, "2097152 are configured"},
		{Config{Path: busy}, "is in use by another namespace or process"},
		{Config{Path: missing, Size: 1 << 20, Engine: disk.Engine{Name: "aio"}}, `engine "aio"`},
	} {
		tc.cfg.BlockSize = 512
		if strings.HasPrefix(tc.cfg.Path, "/sys/") {
			if _, err := os.Stat(tc.cfg.Path); err != nil {
				t.Logf("not tried: %v", err)
				continue
			}
		}
		r := Probe(tc.cfg)
		if tc.want == "" && len(r.Errors) > 0 || tc.want != "" && (len(r.Errors) != 1 ||
			!strings.Contains(r.Errors[0].What, tc.want) || r.Errors[0].Hint == "") {
			t.Errorf("%+v: %+v, want %q", tc.cfg, r, tc.want)
		}
		if _, err := os.Stat(missing); !os.IsNotExist(err) {
			t.Fatalf("%+v: the probe has created the file", tc.cfg)
		}
		d, err := Open(tc.cfg)
		testutil.True(t, (err == nil) == (tc.want == ""), "%+v: probed as %q, opened: %v", tc.cfg,
			tc.want, err)
		if err == nil {
			mustClose(t, d)
		}
		_ = os.Remove(missing)
	}
}

// TestProbeHuge: a file larger than the file system allows is an error, a file larger than its free
// space a warning.
func TestProbeHuge(t *testing.T) {
	for _, dir := range []string{t.TempDir(), shm(t)} {
		cfg := Config{Path: filepath.Join(dir, "huge"), Size: 100 << 40, BlockSize: 4096}
		r := Probe(cfg)
		d, err := Open(cfg)
		if err == nil {
			mustClose(t, d)
		}
		testutil.True(t, len(r.Errors)+len(r.Warnings) == 1 && (err == nil) == (len(r.Errors) == 0),
			"%s: %+v, opened: %v", dir, r, err)
	}
}

// TestProbeHeld: a file that another process has locked is an error that names the process, or a
// warning if the process is another instance of this program. A file that is written without a lock
// is a warning.
func TestProbeHeld(t *testing.T) {
	if _, err := exec.LookPath("flock"); err != nil {
		t.Skip("flock(1) is missing")
	}
	self := testutil.Value(os.ReadFile("/proc/self/comm"))(t)
	dir := t.TempDir()
	same := filepath.Join(dir, strings.TrimSpace(string(self)))
	testutil.Must(t, os.Symlink("/bin/sh", same))
	for _, tc := range []struct {
		program, lock    string
		errors, warnings string
	}{
		{"/bin/sh", "flock 3", "is in use: process %d (sh)", ""},
		{same, "flock 3", "", "is in use by process %d (" + filepath.Base(same) + ")"},
		{"/bin/sh", "true", "", "is in use by process %d (sh)"},
	} {
		path := filepath.Join(dir, "disk.img")
		testutil.Must(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
		holder := exec.Command(tc.program, "-c",
			`exec 3<>"$0"; `+tc.lock+`; echo ready; read line; true`, path)
		in, err1 := holder.StdinPipe()
		out, err2 := holder.StdoutPipe()
		testutil.MustTrue(t, err1 == nil && err2 == nil, "%v %v", err1, err2)
		testutil.Must(t, holder.Start())
		testutil.Check(t, testutil.Err(out.Read(make([]byte, 6))))
		text := func(list []backend.Problem) (s string) {
			for _, p := range list {
				s += p.What
			}
			return s
		}
		want := func(s string) string {
			if s == "" {
				return ""
			}
			return fmt.Sprintf(s, holder.Process.Pid)
		}
		r := Probe(Config{Path: path, BlockSize: 512})
		testutil.True(t, text(r.Errors) == want(tc.errors) && text(r.Warnings) == want(tc.warnings),
			"%+v: %+v", tc, r)
		_ = in.Close()
		testutil.Check(t, holder.Wait())
	}
}
