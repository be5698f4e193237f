package authn

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

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
