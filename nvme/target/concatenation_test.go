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
		used := &controller{
			t: target, hostNQN: "a", info: &fabric.QueueInfo{TLS: &fabric.TLS{Generated: "a0"}},
		}
		g.use(used)
		g.use(used) // another controller
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
		if !has("a", 0) {
			t.Error("a PSK has gone that a controller has")
		}
		if g.release(used); len(g.psks) != 0 || first[0] != 0 {
			t.Error("a PSK is left without its controllers")
		}
		g.release(used) // nothing is left
	})
}
