package sys

import (
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func socketPair(tb testing.TB) (a, b int) {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
		0)
	testutil.Must(tb, err)
	tb.Cleanup(func() { _, _ = unix.Close(fds[0]), unix.Close(fds[1]) })
	return fds[0], fds[1]
}

func vectors(parts ...[]byte) []Iovec {
	iov := make([]Iovec, len(parts))
	for i, p := range parts {
		SetIovec(&iov[i], p)
	}
	return iov
}

func TestVectored(t *testing.T) {
	a, b := socketPair(t)
	x, y := make([]byte, 4), make([]byte, 8)
	n, e := Recvmsg(b, vectors(x, y), 0)
	testutil.MustTrue(t, n == 0 && e == syscall.EAGAIN, "empty socket: %d, %v", n, e)
	n, e = Sendmsg(a, vectors([]byte("hello"), nil, []byte("world")), 0)
	testutil.MustTrue(t, n == 10 && e == 0, "send: %d, %v", n, e)
	n, e = Recvmsg(b, vectors(x, y), 0)
	testutil.MustTrue(t, n == 10 && e == 0 && string(x)+string(y[:6]) == "helloworld",
		"receive: %d, %v, %q %q", n, e, x, y)
	n, e = Sendmsg(a, vectors([]byte("one")), 0)
	testutil.MustTrue(t, n == 3 && e == 0, "send one vector: %d, %v", n, e)
	if n, e := Recvmsg(b, vectors(y), 0); n != 3 || e != 0 || string(y[:3]) != "one" {
		t.Fatalf("receive into one vector: %d, %v, %q", n, e, y)
	}
	testutil.Must(t, unix.Shutdown(a, unix.SHUT_WR))
	for _, iov := range [][]Iovec{vectors(x), vectors(x, y)} {
		n, e := Recvmsg(b, iov, 0)
		testutil.MustTrue(t, n == 0 && e == 0, "end of stream, %d vectors: %d, %v", len(iov), n, e)
	}
}

func TestSendRecv(t *testing.T) {
	a, b := socketPair(t)
	buf := make([]byte, 16)
	n, e := Recv(b, buf, 0)
	testutil.MustTrue(t, n == 0 && e == syscall.EAGAIN, "empty socket: %d, %v", n, e)
	n, e = Send(a, []byte("abc"), 0)
	testutil.MustTrue(t, n == 3 && e == 0, "send: %d, %v", n, e)
	n, e = Recv(b, buf, unix.MSG_PEEK)
	testutil.MustTrue(t, n == 3 && e == 0, "peek: %d, %v", n, e)
	n, e = Recv(b, buf, 0)
	testutil.MustTrue(t, n == 3 && e == 0 && string(buf[:3]) == "abc", "receive: %d, %v", n, e)
	n, e = Recv(-1, buf, 0)
	testutil.MustTrue(t, n == 0 && e == syscall.EBADF, "bad descriptor: %d, %v", n, e)
}

// TestBlockingSocket: the socket calls return at once even without O_NONBLOCK, and a broken
// connection is an error and not a signal.
func TestBlockingSocket(t *testing.T) {
	a, b := socketPair(t)
	testutil.Must(t, unix.SetNonblock(a, false))
	_, e := Recv(a, make([]byte, 1), 0)
	testutil.MustTrue(t, e == syscall.EAGAIN, "recv: %v", e)
	for _, iov := range [][]Iovec{
		vectors(make([]byte, 1)),
		vectors(make([]byte, 1), make([]byte, 1)),
	} {
		_, e := Recvmsg(a, iov, 0)
		testutil.MustTrue(t, e == syscall.EAGAIN, "recvmsg with %d vectors: %v", len(iov), e)
	}
	big := make([]byte, 1<<20)
	for range 100 {
		if _, e := Sendmsg(a, vectors(big, big), 0); e == syscall.EAGAIN {
			testutil.Must(t, unix.Shutdown(b, unix.SHUT_RDWR))
			for _, iov := range [][]Iovec{vectors(big), vectors(big, big)} {
				if _, e := Sendmsg(a, iov, 0); e != syscall.EPIPE {
					t.Fatalf("sendmsg with %d vectors on a closed connection: %v", len(iov), e)
				}
			}
			if _, e := Send(a, big, 0); e != syscall.EPIPE {
				t.Fatalf("send on a closed connection: %v", e)
			}
			return
		}
	}
	t.Fatal("the socket never filled up")
}

func TestAdvance(t *testing.T) {
	for n := 0; n <= 9; n++ {
		iov := Advance(vectors([]byte("abc"), nil, []byte("defg"), []byte("hi")), n)
		a, b := socketPair(t)
		if n == 9 {
			testutil.MustEqual(t, len(iov), 0, "vectors are left")
			continue
		}
		if m, e := Sendmsg(a, iov, 0); e != 0 || m != 9-n {
			t.Fatalf("n = %d: wrote %d, %v", n, m, e)
		}
		buf := make([]byte, 16)
		m, _ := Recv(b, buf, 0)
		testutil.EqualSlices(t, buf[:m], []byte("abcdefghi")[n:], "n = %d", n)
	}
}

func TestPositioned(t *testing.T) {
	f := testutil.Value(os.CreateTemp(t.TempDir(), ""))(t)
	defer func() { _ = f.Close() }()
	fd := int(f.Fd())
	const off = 5<<32 + 7 // both halves of the offset matter
	if n, e := Pwritev2(fd, vectors([]byte("hello"), []byte("world")), off,
		unix.RWF_DSYNC); n != 10 || e != 0 {
		t.Fatalf("write: %d, %v", n, e)
	}
	x, y := make([]byte, 4), make([]byte, 8)
	n, e := Preadv2(fd, vectors(x, y), off+1, 0)
	testutil.MustTrue(t, n == 9 && e == 0 && string(x)+string(y[:5]) == "elloworld",
		"read: %d, %v, %q %q", n, e, x, y)
	n, e = Preadv2(fd, vectors(x), -2, 0)
	testutil.MustTrue(t, n == 0 && e == syscall.EINVAL, "read at -2: %d, %v", n, e)
}

func TestNoAlloc(t *testing.T) {
	a, b := socketPair(t)
	out, in := vectors(make([]byte, 100), make([]byte, 200)),
		vectors(make([]byte, 150), make([]byte, 150))
	buf := make([]byte, 300)
	if n := testing.AllocsPerRun(100, func() {
		if n, e := Sendmsg(a, out, 0); n != 300 || e != 0 {
			t.Fatal(n, e)
		}
		if n, e := Recvmsg(b, in, 0); n != 300 || e != 0 {
			t.Fatal(n, e)
		}
		if n, e := Send(a, buf, 0); n != 300 || e != 0 {
			t.Fatal(n, e)
		}
		if n, e := Recv(b, buf, 0); n != 300 || e != 0 {
			t.Fatal(n, e)
		}
		if _, e := Recv(b, buf, 0); e != syscall.EAGAIN {
			t.Fatal(e)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSendRecv(b *testing.B) {
	x, y := socketPair(b)
	out, in := vectors(make([]byte, 64)), vectors(make([]byte, 64))
	b.ReportAllocs()
	for b.Loop() {
		Sendmsg(x, out, 0)
		Recvmsg(y, in, 0)
	}
}
