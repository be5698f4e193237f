package live

import (
	"context"
	"errors"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// keysNQN is a host with keys that are repeatedly replaced.
const keysNQN = "nqn.2026-11.io.nvmf-target:host-keys"

// keysText returns the host after a number of changes. Every second change replaces its key and
// keeps the old one, and the next change drops the old one.
func keysText(changes int) string {
	now, old := keysAfter(changes)
	text := "  - {nqn: " + keysNQN + ", " + keyText(now)
	if old > 0 {
		text += `, dhchap_old_key: "` + hostKeys[old] + `"`
	}
	return text + "}\n"
}

// keysAfter are indices of hostKeys; old is 0 if there is none.
func keysAfter(changes int) (now, old int) {
	now = 1 + (changes+1)/2%2
	if changes%2 == 1 {
		old = 3 - now
	}
	return now, old
}

// rotated is a connection of the host that outlives all changes of its keys.
type rotated struct {
	p *place
	c *host.Controller
	// key is the key with which it was made, refused the number of refusals of other keys.
	key, refused int
}

func (p *place) connectWith(ctx context.Context, key int) (*host.Controller, error) {
	k := testutil.Value(auth.ParseKey(hostKeys[key]))(p.t)
	return host.Connect(ctx, p.transport("tcp 1"), host.Options{
		HostNQN: keysNQN, HostID: [16]byte{2}, SubNQN: anchorNQN, Timeout: testutil.Patience,
		Key: k,
	})
}

func startRotated(p *place) *rotated {
	c := testutil.Value(p.connectWith(testutil.Context(p.t), 1))(p.t)
	p.t.Cleanup(c.Close)
	return &rotated{p: p, c: c, key: 1}
}

// check connects with each key: only keys of the model are valid. The connection stays, and
// authenticates once more while its key is valid.
func (r *rotated) check(m *model) {
	r.p.t.Helper()
	ctx := testutil.Context(r.p.t)
	now, old := keysAfter(m.keyChanges)
	for key := 1; key < len(hostKeys); key++ {
		counts := key == now || key == old
		c, err := r.p.connectWith(ctx, key)
		if err == nil {
			c.Close()
		} else if _, is := errors.AsType[auth.Refused](err); is {
			r.refused++
		}
		testutil.MustTrue(r.p.t, (err == nil) == counts, "key %d after %d changes: %v\n%s", key,
			m.keyChanges, err, r.p.Log)
		if key == r.key && counts {
			r.p.must(r.c.Authenticate(ctx))
		}
	}
	testutil.Value(hosttest.ActiveNamespaces(ctx, r.c))(r.p.t)
}
