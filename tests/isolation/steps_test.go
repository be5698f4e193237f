//go:build invariants

package isolation

import (
	"context"
	"net"
	"os"
	"runtime/debug"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/reactor"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// stepBytes is about what a poll of TCP moves at most, see ADR 0049.
const stepBytes = 384 << 10

// bareWork is a poller that only works when it is due, to compare steps of the target with.
type bareWork struct {
	due  bool
	work func()
}

func (b *bareWork) Poll(int) int {
	if !b.due {
		return 0
	}
	b.due = false
	b.work()
	return 1
}

func (b *bareWork) Arm() bool { return !b.due }

// A bareSend sends stepBytes on a socket, and a bareCopy copies as much. The list has their names.
type (
	bareSend struct{ bareWork }
	bareCopy struct{ bareWork }
)

// TestSteps lets reactors measure the steps of a target beside all culprits over TCP and, in the
// same way, of a bareSend and a bareCopy. They list them at the end, see CONTRIBUTING.md. A step of
// the target takes at most stepShare times as long as the longest bare one: the same interrupts and
// the same slow memory are in both.
func TestSteps(t *testing.T) {
	if os.Getenv("NVMF_TURNS") == "" {
		t.Skip("NVMF_TURNS is not set: steps are not measured")
	}
	t.Cleanup(func() { compareSteps(t) }) // after the reactors have stopped
	collectApart(t)
	startBare(t)
	e := newEnv(t, kind{link: nvme.TransportTCP}, nil)
	e.log.Limit(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	stop := e.startAll(ctx, 1)
	together([]*victim{newVictim(e, 0), newVictim(e, 1)},
		window{length: time.Duration(testutil.Rounds(8, 30)) * time.Second})
	cancel()
	stop()
}

// stepShare bounds the longest step of the target over the longest bare one. It was 0.7 to 2.1 at a
// load of 18 to 25, and 12 before polls counted all of their work.
const stepShare = 5

func compareSteps(t *testing.T) {
	bare := max(100*time.Microsecond, reactor.Longest("*isolation.bareSend.Poll"),
		reactor.Longest("*isolation.bareCopy.Poll"))
	for _, name := range []string{"*tcp.Group.Poll", "*target.Handler.Poll"} {
		took := reactor.Longest(name)
		testutil.True(t, took > 0 && took <= stepShare*bare, "%s: %v at most, bare %v", name, took,
			bare)
	}
}

// collectApart collects garbage while no reactor measures its steps as its own, until the end of
// the test.
func collectApart(t *testing.T) {
	percent := debug.SetGCPercent(-1)
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for tick := time.Tick(100 * time.Millisecond); ; {
			select {
			case <-end:
				return
			case <-tick:
				reactor.Collect()
			}
		}
	}()
	t.Cleanup(func() {
		close(end)
		<-ended
		debug.SetGCPercent(percent)
	})
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
	fd := int(f.Fd())
	send := &bareSend{bareWork{work: func() { _, _ = sys.Send(fd, data[:stepBytes], 0) }}}
	cp := &bareCopy{bareWork{work: func() { copy(data[16<<20:], data[8<<20:][:stepBytes]) }}}
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
