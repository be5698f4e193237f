package target

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// pskStore is a target with hosts that generate PSKs. Host a generates "a0", "a1" and so on.
type pskStore struct {
	*Target
	t   *testing.T
	key *auth.Key
}

func newPSKStore(t *testing.T, hosts ...string) *pskStore {
	x := &pskStore{New(Options{}), t, authKey(t, hostSecret)}
	for _, nqn := range hosts {
		x.SetHostPolicy(nqn, &auth.Policy{Keys: []*auth.Key{x.key}})
	}
	return x
}

// with is a controller of a connection with a PSK, plain one of a connection without TLS.
func (x *pskStore) with(host string, i int) *controller {
	c := x.plain(host)
	c.info.TLS = &fabric.TLS{HostNQN: host, Generated: fmt.Sprint(host, i)}
	return c
}

func (x *pskStore) plain(host string) *controller {
	return &controller{t: x.Target, hostNQN: host, info: &fabric.QueueInfo{}}
}

// make has a controller make a PSK, and returns the secret.
func (x *pskStore) make(c *controller, i int) []byte {
	p := &auth.TLSPSK{Identity: fmt.Sprint(c.hostNQN, i), Secret: []byte{1, 2, 3}}
	x.generated.add(c, p, x.key)
	return p.Secret
}

// leave does so for a host that then ends its connection, as Linux does before it connects with the
// PSK.
func (x *pskStore) leave(host string, i int) []byte {
	c := x.plain(host)
	defer x.generated.release(c)
	return x.make(c, i)
}

func (x *pskStore) has(host string, i int) bool {
	return x.GeneratedPSK(host, fmt.Sprint(host, i)) != nil
}

// TestGeneratedPSKs: the unused PSKs of a host are limited in number and time. A PSK in use stays
// as long as a controller uses it.
func TestGeneratedPSKs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPSKStore(t, "a", "b")
		g := &x.generated
		first := x.leave("a", 0)
		used, other := x.with("a", 0), x.with("a", 0)
		testutil.MustTrue(t, g.use(used) && g.use(other), "a PSK that counts is refused")
		second := x.leave("a", 1)
		x.leave("b", 0)
		time.Sleep(generatedConnects)
		for i := range maxGenerated {
			x.leave("a", 2+i)
		}
		if !x.has("a", 0) || x.has("a", 1) || !x.has("a", 2) || !x.has("b", 0) || x.has("b", 1) {
			t.Error("not only the oldest one that waits has gone")
		}
		testutil.True(t, first[0] == 1 && second[0] == 0,
			"a PSK is wiped that is in use, or one is not that has gone")
		x.GeneratedPSK("a", "a0").Secret[0] = 9
		testutil.True(t, first[0] == 1, "the secret that is given out is not a copy")
		time.Sleep(generatedTimeout + time.Second)
		synctest.Wait()
		testutil.True(t, x.has("a", 0) && !x.has("a", 2) && !x.has("b", 0) && len(g.psks) == 1,
			"what nobody uses is left after its time")
		g.release(used)
		refused := x.with("a", 0)
		x.SetHostPolicy("a", nil)
		testutil.True(t, !g.use(refused), "a PSK is used whose key does not count")
		if g.release(refused); len(g.psks) != 1 || first[0] == 0 {
			t.Error("a PSK has gone that a controller has")
		}
		if g.release(other); len(g.psks) != 0 || first[0] != 0 {
			t.Error("a PSK is left without its controllers")
		}
		g.release(refused) // nothing is left
	})
}

// TestGeneratedPSKsAtOnce: however many controllers of a host generate PSKs at once, none goes that
// the host may just be connecting with.
func TestGeneratedPSKsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPSKStore(t, "a")
		g := &x.generated
		x.leave("a", 0)
		var connected []*controller
		for i := range 2 * maxGenerated { // they authenticate again
			c := x.with("a", 0)
			x.make(c, 1000+i)
			connected = append(connected, c)
		}
		testutil.MustTrue(t, x.has("a", 0),
			"connected hosts evict a PSK that one is connecting with")
		replaced := x.make(connected[0], 2000)
		x.make(connected[0], 2001)
		if replaced[0] != 0 || x.has("a", 2000) || !x.has("a", 2001) || !x.has("a", 1001) {
			t.Error("a controller has other PSKs than its last one")
		}
		for i := range 2 * maxGenerated {
			x.leave("a", 1+i)
		}
		if n := len(g.psks["a"]); n != maxGenerated+len(connected) {
			t.Errorf("%d PSKs", n)
		}
		testutil.True(t, x.has("a", 0) && x.has("a", maxGenerated-1) && !x.has("a", maxGenerated),
			"PSKs go before a host can have connected with them")
		testutil.MustTrue(t, g.use(x.with("a", 1)), "the PSK does not count")
		if x.leave("a", 3000); !x.has("a", 3000) {
			t.Error("one that is used keeps the place of one that waits")
		}

		for _, c := range connected { // no place is free for theirs
			g.release(c)
		}
		if n := len(g.psks["a"]); n != maxGenerated+1 {
			t.Errorf("%d PSKs when their controllers have ended", n)
		}
		time.Sleep(generatedConnects)
		if x.leave("a", 3001); !x.has("a", 3001) || x.has("a", 0) || !x.has("a", 2) {
			t.Error("the oldest does not make room when its host had time to connect")
		}
	})
}

// TestGeneratedPSKsExpire: with the key that a PSK was generated with it ceases to count, for new
// connections, controllers and queues; the controller that has it stays.
func TestGeneratedPSKsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, old := authKey(t, controllerSecret), authKey(t, hostSecret)
		for what, p := range map[string]*auth.Policy{
			"old_keys_until": {Keys: []*auth.Key{key, old}},
			"keys_until":     {Keys: []*auth.Key{old}},
		} {
			if ends := time.Now().Add(time.Second); len(p.Keys) > 1 {
				p.OldUntil = ends
			} else {
				p.Until = ends
			}
			target := New(Options{})
			g := &target.generated
			target.SetHostPolicy("a", p)
			psk := &auth.TLSPSK{Identity: "a0", Secret: []byte{1, 2, 3}}
			g.add(&controller{hostNQN: "a"}, psk, old)
			tls := &fabric.TLS{HostNQN: "a", Generated: "a0"}
			with := func() *controller {
				return &controller{
					t: target, hostNQN: "a", info: &fabric.QueueInfo{TLS: tls},
				}
			}
			used := with()
			if !g.use(used) || !g.counts(target, tls) || target.GeneratedPSK("a", "a0") == nil {
				t.Errorf("%s: the PSK does not count before", what)
			}
			time.Sleep(time.Second)
			if g.use(with()) || g.counts(target, tls) || target.GeneratedPSK("a", "a0") != nil {
				t.Errorf("%s: the PSK counts after it", what)
			}
			testutil.True(t, psk.Secret[0] != 0, "%s: the PSK has gone that a controller has", what)
			g.release(used)
		}
	})
}
