package app

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestLogThatNobodyReads: with a full pipe as standard error the target starts, serves and ends,
// and once it is read, its log is there.
func TestLogThatNobodyReads(t *testing.T) {
	for _, read := range []bool{true, false} {
		r, w := fullPipe(t)
		child := exec.Command(os.Args[0])
		child.Stderr = w
		if !read {
			child.Env = []string{hastyEnd + "=1"}
		}
		addr := address(t, startServe(t, child))
		writeAndRead(t, host.TCP{Addr: netip.MustParseAddrPort(addr)})
		var log []byte
		ended := make(chan struct{})
		_ = w.Close()
		go func() {
			defer close(ended)
			if read {
				log, _ = io.ReadAll(r)
			}
		}()
		_ = child.Process.Signal(syscall.SIGTERM)
		testutil.Equal(t, child.Wait(), nil, "read %v", read)
		if <-ended; read && !strings.Contains(string(log), "msg=\"reactors run\"") {
			t.Errorf("the log is not there: %q", bytes.TrimLeft(log, "x"))
		}
		_ = r.Close()
	}
}

// TestLogWhoseReaderEnded: with a closed pipe as standard error the target serves and ends as
// usual.
func TestLogWhoseReaderEnded(t *testing.T) {
	r, w, err := os.Pipe()
	testutil.Must(t, errors.Join(err, r.Close()))
	child := exec.Command(os.Args[0])
	child.Stderr = w
	addr := address(t, startServe(t, child))
	_ = w.Close()
	writeAndRead(t, host.TCP{Addr: netip.MustParseAddrPort(addr)})
	_ = child.Process.Signal(syscall.SIGTERM)
	testutil.Check(t, child.Wait())
}

// fullPipe returns a pipe without room.
func fullPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	testutil.Must(t, err)
	fd := int(w.Fd()) // this makes it block
	testutil.Value(unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, 4096))(t)
	testutil.Must(t, unix.SetNonblock(fd, true))
	for err == nil {
		_, err = unix.Write(fd, []byte("x"))
	}
	testutil.MustTrue(t, errors.Is(err, unix.EAGAIN), "%v", err)
	testutil.Must(t, unix.SetNonblock(fd, false))
	return r, w
}

// TestJournal: each line begins with its priority if standard error is the journal.
func TestJournal(t *testing.T) {
	file := testutil.Value(os.Create(filepath.Join(t.TempDir(), "log")))(t)
	defer file.Close()
	var st unix.Stat_t
	testutil.Must(t, unix.Fstat(int(file.Fd()), &st))
	child := exec.Command(os.Args[0])
	child.Stderr = file
	child.Env = append(os.Environ(), fmt.Sprintf("JOURNAL_STREAM=%d:%d", st.Dev, st.Ino))
	address(t, startServe(t, child))
	_ = child.Process.Signal(syscall.SIGTERM)
	testutil.Check(t, child.Wait())
	text, _ := os.ReadFile(file.Name())
	for line := range strings.Lines(string(text)) {
		testutil.True(t, strings.HasPrefix(line, "<6>time="), "no priority: %s", line)
	}
	testutil.True(t, len(text) != 0, "no log")
}
