package tcp

import (
	"net"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestLink: the kernel is asked about a connection while it ends. Its descriptor is closed after
// the last call.
func TestLink(t *testing.T) {
	transport := New(Config{Log: quiet})
	accepted := make(chan *conn, 1)
	l := testutil.Value(transport.Listen(listenAddr("127.0.0.1:0"), 1,
		func(c fabric.Conn) { accepted <- c.(*conn) }))(t)
	defer transport.Close()
	for range 200 {
		peer := testutil.Value(net.Dial("tcp", l.Addr().AddrPort.String()))(t)
		c := <-accepted
		got, ok := c.link()
		testutil.MustTrue(t, ok && got.RTT != 0, "%+v, %v", got, ok)
		var asking sync.WaitGroup
		for range 3 {
			asking.Go(func() {
				for ok := true; ok; {
					_, ok = c.link()
				}
			})
		}
		testutil.Must(t, c.Close())
		asking.Wait()
		_, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_TYPE)
		testutil.MustTrue(t, err == unix.EBADF, "the socket is still open: %v", err)
		n := c.links.Load()
		testutil.MustTrue(t, n == linksClosed, "%d calls are left", n-linksClosed)
		peer.Close()
	}
}
