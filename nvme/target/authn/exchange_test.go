package authn

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

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

// TestBounded: the number of remembered addresses and failures is bounded.
func TestBounded(t *testing.T) {
	h := NewHosts()
	for i := range 2 * maxKnown {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		h.Failed("host", a)
		h.Succeeded("other", a)
	}
	testutil.True(t, len(h.known) <= maxKnown && len(h.failures) <= maxKnown,
		"%d addresses and %d failures are remembered", len(h.known), len(h.failures))
}

const hour = int64(3600e9)

// TestInterval: a host is due once a command has come after its interval. One command is refused,
// and others after a while, until its time is over.
func TestInterval(t *testing.T) {
	var i Interval
	i.Prove(1)
	in, ok := i.Schedule(1, hour, stagger)
	testutil.MustTrue(t, ok && in == hour && !i.Asks(), "due in %d: %v", in, ok)
	v, in := i.Check(hour, false)
	testutil.MustTrue(t, v == Ask && in == 0 && i.Asks(), "%v, next in %d", v, in)
	refused, started := i.Refuse(false, true)
	testutil.MustTrue(t, !refused && started, "a first command is refused that is not repeated")
	testutil.Equal(t, i.Came(2*hour, 2*hour), step, "until the next check")
	testutil.Equal(t, i.Came(2*hour, 2*hour), 0, "of another command")
	refused, started = i.Refuse(true, true)
	testutil.MustTrue(t, refused && !started && !i.Asks(), "a command that the host repeats passes")
	_, ok = i.Schedule(2*hour, hour, 0)
	testutil.True(t, !ok, "a change of the interval gives a host more time")
	v, in = i.Check(2*hour+step, false)
	testutil.True(t, v == Ask && in == step, "%v, next in %d", v, in)
	refused, _ = i.Refuse(false, true)
	testutil.True(t, refused && i.Asks(), "another command passes after a while")
	refused, _ = i.Refuse(false, true)
	testutil.True(t, !refused, "one more is refused at once")
	v, in = i.Check(2*hour+Limit, true)
	testutil.True(t, v == Wait && in == step, "an exchange is cut off: %v, %d", v, in)
	v, _ = i.Check(2*hour+Limit, false)
	testutil.True(t, v == End, "the host has time for ever")

	i.Prove(3 * hour)
	testutil.Equal(t, i.Came(3*hour, 3*hour-1), 0, "of a command before the proof")
	in, ok = i.Schedule(3*hour, hour, stagger-1)
	testutil.True(t, ok && hour*9/10 < in && in < hour, "due in %d: %v", in, ok)
	in, ok = i.Schedule(3*hour, 0, 0)
	testutil.True(t, ok && in == 0 && !i.Asks(), "no interval")
	i.Stop()
	_, ok = i.Schedule(3*hour, hour, 0)
	testutil.True(t, !ok && i.Came(4*hour, 4*hour) == 0, "a stopped interval goes on")
}

// TestIntervalStaggered: controllers with consecutive identifiers are due one after the other.
func TestIntervalStaggered(t *testing.T) {
	due := map[int64]bool{}
	for id := range uint16(stagger) {
		var i Interval
		i.Prove(0)
		in, _ := i.Schedule(0, hour, id)
		due[in] = true
	}
	testutil.Equal(t, len(due), stagger, "times")
}

// hosts are hosts that generate PSKs. Host a generates "a0", "a1" and so on.
type hosts struct {
	*Hosts
	key *auth.Key
}

func testKey(t *testing.T, text string) *auth.Key {
	t.Helper()
	k := testutil.Value(auth.ParseKey(text))(t)
	testutil.Secret(t, text)
	return k
}

const (
	aSecret     = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
	otherSecret = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:"
)

func newPSKHosts(t *testing.T, nqns ...string) *hosts {
	x := &hosts{NewHosts(), testKey(t, aSecret)}
	for _, nqn := range nqns {
		x.SetPolicy(nqn, &auth.Policy{Keys: []*auth.Key{x.key}})
	}
	return x
}

// use makes a controller with a PSK, nil if that is refused.
func (x *hosts) use(host string, i int) *Proof {
	p := new(Proof)
	if _, ok := x.UsePSK(host, fmt.Sprint(host, i), p); !ok {
		return nil
	}
	return p
}

// make lets a controller make a PSK, and returns the secret.
func (x *hosts) make(host string, maker *Proof, i int) []byte {
	k := &auth.TLSPSK{Identity: fmt.Sprint(host, i), Secret: []byte{1, 2, 3}}
	x.AddPSK(host, maker, k, x.key)
	return k.Secret
}

// leave makes a PSK for a host that then ends its connection, as Linux does before it connects with
// the PSK.
func (x *hosts) leave(host string, i int) []byte {
	p := new(Proof)
	defer x.ReleasePSKs(p)
	return x.make(host, p, i)
}

func (x *hosts) has(host string, i int) bool { return x.PSK(host, fmt.Sprint(host, i)) != nil }

// TestPSKs: the unused PSKs of a host are limited in number and time. A PSK in use stays as long as
// a controller uses it.
func TestPSKs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPSKHosts(t, "a", "b")
		first := x.leave("a", 0)
		used, other := x.use("a", 0), x.use("a", 0)
		testutil.MustTrue(t, used != nil && other != nil, "a PSK that counts is refused")
		second := x.leave("a", 1)
		x.leave("b", 0)
		time.Sleep(generatedConnects)
		for i := range maxGenerated {
			x.leave("a", 2+i)
		}
		testutil.True(t, x.has("a", 0) && !x.has("a", 1) && x.has("a", 2) && x.has("b", 0) &&
			!x.has("b", 1), "not only the oldest one that waits has gone")
		testutil.True(t, first[0] == 1 && second[0] == 0,
			"a PSK is wiped that is in use, or one is not that has gone")
		x.PSK("a", "a0").Secret[0] = 9
		testutil.True(t, first[0] == 1, "the secret that is given out is not a copy")
		time.Sleep(generatedTimeout + time.Second)
		synctest.Wait()
		testutil.True(t, x.has("a", 0) && !x.has("a", 2) && !x.has("b", 0) && len(x.psks) == 1,
			"an unused PSK is left after its time")
		x.ReleasePSKs(used)
		x.SetPolicy("a", nil)
		testutil.True(t, x.use("a", 0) == nil, "a PSK is used whose key does not count")
		x.ReleasePSKs(new(Proof))
		testutil.True(t, len(x.psks) == 1 && first[0] != 0, "a PSK has gone that a controller has")
		x.ReleasePSKs(other)
		testutil.True(t, len(x.psks) == 0 && first[0] == 0, "a PSK is left without its controllers")
	})
}

// TestPSKsAtOnce: however many controllers of a host generate PSKs at once, no PSK is evicted while
// the host may be using it to connect.
func TestPSKsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPSKHosts(t, "a")
		x.leave("a", 0)
		var connected []*Proof
		for i := range 2 * maxGenerated { // they authenticate again
			p := new(Proof)
			x.make("a", p, 1000+i)
			connected = append(connected, p)
		}
		testutil.MustTrue(t, x.has("a", 0),
			"connected hosts evict a PSK that one is connecting with")
		replaced := x.make("a", connected[0], 2000)
		x.make("a", connected[0], 2001)
		testutil.True(t, replaced[0] == 0 && !x.has("a", 2000) && x.has("a", 2001) && x.has("a",
			1001), "a controller has other PSKs than its last one")
		for i := range 2 * maxGenerated {
			x.leave("a", 1+i)
		}
		n := len(x.psks["a"])
		testutil.True(t, n == maxGenerated+len(connected), "%d PSKs", n)
		testutil.True(t, x.has("a", 0) && x.has("a", maxGenerated-1) && !x.has("a", maxGenerated),
			"PSKs go before a host can have connected with them")
		testutil.MustTrue(t, x.use("a", 1) != nil, "the PSK does not count")
		x.leave("a", 3000)
		testutil.True(t, x.has("a", 3000), "one that is used keeps the place of one that waits")

		for _, p := range connected { // no place is free for theirs
			x.ReleasePSKs(p)
		}
		testutil.Equal(t, len(x.psks["a"]), maxGenerated+1,
			"PSKs when their controllers have ended")
		time.Sleep(generatedConnects)
		if x.leave("a", 3001); !x.has("a", 3001) || x.has("a", 0) || !x.has("a", 2) {
			t.Error("the oldest does not make room when its host had time to connect")
		}
	})
}

// TestPSKsExpire: a PSK expires with the key that it was generated with, for new connections,
// controllers and queues; the controller that has it stays.
func TestPSKsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, old := testKey(t, otherSecret), testKey(t, aSecret)
		for what, p := range map[string]*auth.Policy{
			"old_keys_until": {Keys: []*auth.Key{key, old}},
			"keys_until":     {Keys: []*auth.Key{old}},
		} {
			if ends := time.Now().Add(time.Second); len(p.Keys) > 1 {
				p.OldUntil = ends
			} else {
				p.Until = ends
			}
			x := &hosts{NewHosts(), old}
			x.SetPolicy("a", p)
			secret := x.leave("a", 0)
			used := x.use("a", 0)
			testutil.True(t, used != nil && x.PSKCounts("a", "a0") && x.has("a", 0),
				"%s: the PSK does not count before", what)
			time.Sleep(time.Second)
			testutil.True(t, x.use("a", 0) == nil && !x.PSKCounts("a", "a0") && !x.has("a", 0),
				"%s: the PSK counts after it", what)
			testutil.True(t, secret[0] != 0, "%s: the PSK has gone that a controller has", what)
			x.ReleasePSKs(used)
		}
	})
}
