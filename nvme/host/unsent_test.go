package host

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestCompletionsOfUnsentCommands completes commands by guessing their identifiers, without reading
// any. The commands must not pile up in the link.
func TestCompletionsOfUnsentCommands(t *testing.T) {
	fd, controller := socketPair(t)
	l := newTCPLink(fd, linkParams{qid: 1, size: 4, tolerant: true})
	q := newQueue(l, 1, 4, 8192)
	q.tolerant = true
	var op Op
	for range 10000 {
		op.Write(1, 0, 16, make([]byte, 8192), 0)
		cid, err := q.Submit(&op)
		if err == nil {
			var (
				resp pdu.CapsuleResp
				cqe  nvme.CQE
				done [4]Completion
			)
			cqe.Fill(0, 0, cid, nvme.Success)
			resp.Set(&l.p, &cqe)
			testutil.Value(unix.Write(controller, resp[:pdu.CapsuleRespSize]))(t)
			_, err = q.Poll(done[:])
		}
		if v, ok := errors.AsType[*Violation](err); ok {
			t.Log(v)
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("no violation")
}

// slowCQ is a completion queue with one SEND in each of the next polls.
type slowCQ struct {
	verbs.CQ
	left, last int
}

func (c *slowCQ) ReqNotify() error { return nil }

func (c *slowCQ) Poll(wcs []verbs.WC) (int, error) {
	c.last = min(c.left, 1)
	c.left -= c.last
	wcs[0] = verbs.WC{}
	return c.last, nil
}

type noChannel struct{ verbs.CompChannel }

func (noChannel) FD() int             { return -1 } // poll ignores it
func (noChannel) Drain() (int, error) { return 0, nil }

// TestWaitPollsUntilNothing has completions that end no command. Wait polls until there is none
// before it sleeps, as verbs.CQ demands: a soft device may have an acknowledgment to send then.
func TestWaitPollsUntilNothing(t *testing.T) {
	c := &slowCQ{left: 3}
	l := &rdmaLink{cq: c, ch: noChannel{}, wakeFD: -1, state: make([]rdmaSlot, 1)}
	testutil.Must(t, l.wait(&Queue{}, -1, 0))
	testutil.True(t, c.left == 0 && c.last == 0, "%d completions are left, the last poll had %d",
		c.left, c.last)
}

func socketPair(t testing.TB) (host, controller int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
		0)
	testutil.Must(t, err)
	for _, fd := range fds { // room for all outstanding commands of a test
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<20)
	}
	t.Cleanup(func() { _ = unix.Close(fds[0]); _ = unix.Close(fds[1]) })
	return fds[0], fds[1]
}

// pipeRoundTrip reads the bytes that the host has sent and sends answer.
func pipeRoundTrip(t testing.TB, fd int, drain, answer []byte) {
	if n, err := unix.Read(fd, drain); n <= 0 || err != nil {
		t.Fatalf("nothing from the host: %v", err)
	}
	if n, err := unix.Write(fd, answer); n != len(answer) || err != nil {
		t.Fatalf("answer: %d of %d bytes: %v", n, len(answer), err)
	}
}
