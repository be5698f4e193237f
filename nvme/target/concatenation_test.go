package target

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// TestGeneratedPSKs: what a host has generated and does not use is bounded and ends, and what a
// controller uses stays as long as that.
func TestGeneratedPSKs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := New(Options{})
		g := &target.generated
		key := authKey(t, hostSecret)
		for _, nqn := range []string{"a", "b"} {
			target.SetHostPolicy(nqn, &auth.Policy{Keys: []*auth.Key{key}})
		}
		add := func(host string, i int) []byte {
			p := &auth.TLSPSK{Identity: fmt.Sprint(host, i), Secret: []byte{1, 2, 3}}
			g.add(host, p, key)
			return p.Secret
		}
		has := func(host string, i int) bool {
			return target.GeneratedPSK(host, fmt.Sprint(host, i)) != nil
		}
		first := add("a", 0)
		with := func(i int) *controller {
			tls := &fabric.TLS{HostNQN: "a", Generated: fmt.Sprint("a", i)}
			return &controller{t: target, hostNQN: "a", info: &fabric.QueueInfo{TLS: tls}}
		}
		used, other := with(0), with(0)
		if !g.use(used) || !g.use(other) {
			t.Fatal("a PSK that counts is refused")
		}
		second := add("a", 1)
		add("b", 0)
		for i := range maxGenerated {
			add("a", 2+i)
		}
		if !has("a", 0) || has("a", 1) || !has("a", 2) || !has("b", 0) || has("b", 1) {
			t.Error("not only the oldest one that waits has gone")
		}
		if first[0] != 1 || second[0] != 0 {
			t.Error("a PSK is wiped that is in use, or one is not that has gone")
		}
		target.GeneratedPSK("a", "a0").Secret[0] = 9
		if first[0] != 1 {
			t.Error("the secret that is given out is not a copy")
		}
		time.Sleep(generatedTimeout + time.Second)
		synctest.Wait()
		if !has("a", 0) || has("a", 2) || has("b", 0) || len(g.psks) != 1 {
			t.Error("what nobody uses is left after its time")
		}
		g.release(used)
		refused := with(0)
		target.SetHostPolicy("a", nil)
		if g.use(refused) {
			t.Error("a PSK is used whose key does not count")
		}
		if g.release(refused); len(g.psks) != 1 || first[0] == 0 {
			t.Error("a PSK has gone that a controller has")
		}
		if g.release(other); len(g.psks) != 0 || first[0] != 0 {
			t.Error("a PSK is left without its controllers")
		}
		g.release(refused) // nothing is left
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
			g.add("a", psk, old)
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
			if psk.Secret[0] == 0 {
				t.Errorf("%s: the PSK has gone that a controller has", what)
			}
			g.release(used)
		}
	})
}
