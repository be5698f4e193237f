package file

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestShortReads: a FUSE file system may answer a read with a part of the data, for instance
// before a bad spot of its disk. The rest is then read from its own place.
func TestShortReads(t *testing.T) {
	const size = 64 << 10
	cfg := Config{Path: filepath.Join(t.TempDir(), "disk"), BlockSize: 512, ReadOnly: true}
	serveFUSE(t, cfg.Path, size)
	for _, cfg.Buffered = range []bool{false, true} {
		d := mustOpen(t, cfg)
		c := backendtest.NewClient(t, d, size)
		b := c.Memory(0, 4608)
		c.MustDo(c.Read(1536, b))
		for i := range b {
			if want := contentOf(1536 + i); b[i] != want {
				t.Errorf("buffered %v: byte %d is %#x, want %#x", cfg.Buffered, i, b[i], want)
				break
			}
		}
		c.Close()
		mustClose(t, d)
	}
}

func contentOf(off int) byte { return byte(off >> 8) }

// serveFUSE mounts a file system on path that is one file. It answers reads longer than a block
// with half of the data.
func serveFUSE(t *testing.T, path string, size uint64) {
	t.Helper()
	testutil.Must(t, os.WriteFile(path, nil, 0o600))
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Mount("test", path, "fuse", unix.MS_NOSUID|unix.MS_NODEV,
			fmt.Sprintf("fd=%d,rootmode=100000,user_id=0,group_id=0", dev))
	}
	if err != nil {
		t.Skipf("FUSE cannot be used: %v", err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		in := make([]byte, 1<<20)
		for {
			n, err := unix.Read(dev, in)
			if err != nil {
				return // it is unmounted
			}
			answerFUSE(dev, in[:n], size)
		}
	})
	t.Cleanup(func() {
		testutil.Check(t, unix.Unmount(path, 0))
		served.Wait()
		testutil.Check(t, unix.Close(dev))
	})
}

// answerFUSE answers a request as in linux/fuse.h.
func answerFUSE(dev int, in []byte, size uint64) {
	le := binary.LittleEndian
	out, errno := make([]byte, 16), 0
	switch op := le.Uint32(in[4:]); op {
	case 26: // INIT
		out = le.AppendUint32(out, 7)
		out = le.AppendUint32(out, 31)
		out = append(out, make([]byte, 56)...)
		le.PutUint32(out[16+20:], 1<<16) // max_write
	case 3: // GETATTR
		out = append(out, make([]byte, 104)...)
		attr := out[16+16:]
		le.PutUint64(attr, 1)
		le.PutUint64(attr[8:], size)
		le.PutUint32(attr[60:], unix.S_IFREG|0o600)
		le.PutUint32(attr[64:], 1)
	case 14: // OPEN
		out = append(out, make([]byte, 16)...)
		le.PutUint32(out[16+8:], 1) // FOPEN_DIRECT_IO
	case 15: // READ
		off, n := int(le.Uint64(in[48:])), int(le.Uint32(in[56:]))
		if n > 512 {
			n /= 2
		}
		for i := range n {
			out = append(out, contentOf(off+i))
		}
	case 17: // STATFS
		out = append(out, make([]byte, 80)...)
	case 2, 36, 42: // FORGET, INTERRUPT, BATCH_FORGET
		return
	case 18, 25: // RELEASE, FLUSH
	default:
		errno = int(unix.ENOSYS)
	}
	le.PutUint32(out, uint32(len(out)))
	le.PutUint32(out[4:], uint32(-errno))
	copy(out[8:16], in[8:16])
	_, _ = unix.Write(dev, out)
}
