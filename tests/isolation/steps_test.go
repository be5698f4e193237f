//go:build invariants

package isolation

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/reactor"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// stepBytes is about what a poll of TCP moves at most, see ADR 0049.
const stepBytes = 384 << 10

// bareSend is a poller that does nothing but send on a socket, to compare steps of the target with.
type bareSend struct {
	fd  int
	iov []sys.Iovec
	due bool
}

func (b *bareSend) Poll(int) int {
	if !b.due {
		return 0
	}
	b.due = false
	_, _ = sys.Sendmsg(b.fd, b.iov, 0)
	return 1
}

func (b *bareSend) Arm() bool { return !b.due }

// bareCopy is a poller that does nothing but copy as much.
type bareCopy struct {
	from, to []byte
	due      bool
}

func (b *bareCopy) Poll(int) int {
	if !b.due {
		return 0
	}
	b.due = false
	copy(b.to, b.from)
	return 1
}

func (b *bareCopy) Arm() bool { return !b.due }

// TestSteps lets reactors measure the steps of a target beside all culprits over TCP and, in the
// same way, of a bareSend and a bareCopy. They list them at the end, see CONTRIBUTING.md.
func TestSteps(t *testing.T) {
	if os.Getenv("NVMF_TURNS") == "" {
		t.Skip("NVMF_TURNS is not set: steps are not measured")
	}
	startBare(t)
	e := newEnv(t, nvme.TransportTCP, nil)
	e.log.Limit(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	stop := e.startAll(ctx, 1)
	together([]*victim{newVictim(e, 0), newVictim(e, 1)},
		window{length: time.Duration(testutil.Rounds(8, 30)) * time.Second})
	cancel()
	stop()
}

// startBare runs a reactor with bareSend and bareCopy until the end of the test.
func startBare(t *testing.T) {
	l := testutil.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	from := testutil.Value(net.Dial("tcp", l.Addr().String()))(t)
	to := testutil.Value(l.Accept())(t)
	testutil.Must(t, l.Close())
	f := testutil.Value(from.(*net.TCPConn).File())(t)
	data := make([]byte, 32<<20)
	for i := range data {
		data[i] = byte(i)
	}
	send := &bareSend{fd: int(f.Fd()), iov: make([]sys.Iovec, 1)}
	sys.SetIovec(&send.iov[0], data[:stepBytes])
	cp := &bareCopy{from: data[8<<20:][:stepBytes], to: data[16<<20:][:stepBytes]}
	r := testutil.Value(reactor.New(reactor.Config{CPU: -1}))(t)
	r.Attach(send)
	r.Attach(cp)
	var tick func()
	tick = func() {
		send.due, cp.due = true, true
		r.After(int64(2*time.Millisecond), tick)
	}
	r.Post(tick)
	ctx, cancel := context.WithCancel(context.Background())
	done, drained := make(chan error, 1), make(chan struct{})
	go func() { done <- r.Run(ctx) }()
	go func() {
		defer close(drained)
		b := make([]byte, 256<<10)
		for {
			if _, err := to.Read(b); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		testutil.Check(t, <-done)
		testutil.Check(t, r.Close())
		_, _ = from.Close(), f.Close()
		<-drained
		testutil.Check(t, to.Close())
	})
}
