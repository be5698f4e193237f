package authn

import (
	"net/netip"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/turns"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// queue is the queue of a host without a target.
type queue struct {
	t *testing.T
	*Exchange
	host  *auth.Host
	p     *auth.Policy
	holds int
	posts chan func()
}

func newQueue(t *testing.T, h *Hosts) *queue {
	key := testKey(t, aSecret)
	chap := auth.NewController("host", "sub", auth.NoConcatenation)
	return &queue{
		t: t, Exchange: h.NewExchange(chap, "host", netip.MustParseAddr("192.0.2.1")),
		host:  &auth.Host{HostNQN: "host", SubNQN: "sub", Key: key},
		p:     &auth.Policy{Keys: []*auth.Key{key}, Groups: []auth.Group{auth.GroupNull}},
		posts: make(chan func(), 1),
	}
}

func (q *queue) begin(m []byte, done func(Result)) {
	q.Send(m, q.p, func(on bool) {
		if q.holds--; on {
			q.holds += 2
		}
	}, func(f func()) { q.posts <- f }, done)
}

// send has a message processed, and returns the result.
func (q *queue) send(m []byte) (r Result) {
	q.begin(m, func(got Result) { r = got })
	testutil.MustTrue(q.t, q.Busy(), "no message is in process")
	(<-q.posts)()
	testutil.MustTrue(q.t, !q.Busy() && q.holds == 0, "the queue is held %d times", q.holds)
	return r
}

func counts(t *testing.T, h *Hosts, succeeded, failed uint64) {
	t.Helper()
	s, f := h.Counts()
	testutil.True(t, s == succeeded && f == failed, "%d have succeeded, and %d failed", s, f)
}

// TestExchange: an exchange succeeds once the host has read its end.
func TestExchange(t *testing.T) {
	h := NewHosts()
	q := newQueue(t, h)
	testutil.Equal(t, q.send(q.host.Negotiate(1)), 0, "result of the first message")
	testutil.True(t, q.Running && q.Unfinished(false), "no exchange has begun")
	m, r := q.Message()
	testutil.Equal(t, r|q.Read(), 0, "result of the challenge")
	reply := testutil.Value(q.host.Challenged(m))(t)
	testutil.Equal(t, q.send(reply), 0, "result of the reply")
	counts(t, h, 0, 0)
	m, r = q.Message()
	testutil.Equal(t, r, 0, "result of the end")
	testutil.Value(q.host.Succeeded(m))(t)
	testutil.Equal(t, q.Read(), Succeeded, "result of the end that was read")
	testutil.True(t, !q.Running && !q.Unfinished(true), "the exchange goes on")
	counts(t, h, 1, 0)
	testutil.True(t, h.IsKnown(q.from), "the address is not known")
}

// TestExchangeFails: a failure is counted once, and the queue ends when the host has read it.
func TestExchangeFails(t *testing.T) {
	h := NewHosts()
	q := newQueue(t, h)
	q.host.Key = testKey(t, otherSecret)
	q.send(q.host.Negotiate(1))
	m, _ := q.Message()
	q.Read()
	reply := testutil.Value(q.host.Challenged(m))(t)
	testutil.Equal(t, q.send(reply), Failed, "result of a wrong reply")
	testutil.Equal(t, q.send(reply), 0, "result of one more")
	_, r := q.Message()
	testutil.Equal(t, r, 0, "result of the failure")
	testutil.Equal(t, q.Read(), Ended, "result of the failure that was read")
	q.TimedOut()
	counts(t, h, 0, 1)
	why, hint := q.Failure()
	testutil.True(t, why == auth.AuthenticationFailed && hint != "", "%v: %q", why, hint)

	q = newQueue(t, h)
	_, r = q.Message()
	testutil.Equal(t, r, Failed, "result of a message that does not exist")
	q = newQueue(t, h)
	q.TimedOut()
	counts(t, h, 0, 3)
}

// TestExchangeCloses: a message that waits ends with its queue, and one in process comes to
// nothing. Its target is late, not the host.
func TestExchangeCloses(t *testing.T) {
	h := NewHosts()
	begun, end := make(chan bool), make(chan bool)
	for range turns.MaxWorkers() {
		h.Submit(&turns.Job{Run: func() { begun <- true; <-end }, Done: func() {}})
		<-begun
	}
	q := newQueue(t, h)
	q.begin(q.host.Negotiate(1), nil)
	j := q.job
	q.TimedOut()
	testutil.True(t, q.Unfinished(false) && q.Close() && !q.Busy(), "no message waits")
	testutil.True(t, !h.Cancel(&j.Job), "the message of a queue that has ended is kept")
	close(end)

	q = newQueue(t, h)
	q.begin(q.host.Negotiate(1), func(Result) { t.Error("a queue that has ended goes on") })
	post := <-q.posts
	testutil.True(t, q.Close(), "no message is in process")
	post()
	testutil.Equal(t, q.holds, 0, "holds")
	testutil.True(t, !q.Close(), "a message is in process")
	counts(t, h, 0, 0)
}
