package e2e

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// authenticationRequired reports whether a command was refused so that the host authenticates
// again.
func authenticationRequired(err error) bool {
	var st nvme.Status
	return errors.As(err, &st) && st&^nvme.More == nvme.AuthenticationRequired
}

// TestReauthenticate: a host reads and writes, and authenticates whenever a command is refused for
// that reason, one at a time. Nothing else fails.
func TestReauthenticate(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(o *Options) { o.Reactors = 2 },
		func(t *testing.T, h *Env, v Variant) {
			ctx := testutil.Context(t)
			key := NewKey(t, 32, 0)
			h.Target.SetHostPolicy(HostNQN, &auth.Policy{
				Keys: []*auth.Key{key}, Groups: []auth.Group{auth.GroupNull},
				Reauthenticate: 50 * time.Millisecond,
			})
			o := v.HostOptions()
			o.HostNQN, o.Key = HostNQN, key
			c := testutil.Value(host.Connect(ctx, h.Transport(v), o))(h.T)
			defer c.Close()
			var queues []*host.Queue
			for qid := uint16(1); qid <= 2; qid++ {
				q := testutil.Value(c.OpenQueue(ctx, qid, 9))(h.T)
				defer q.Close()
				queues = append(queues, q)
			}
			b := h.Buffer(c, 1024)
			copy(b, "again")
			asked := 0
			retry := func(do func() error) {
				err := do()
				for authenticationRequired(err) {
					asked++
					h.Must(c.Authenticate(ctx))
					for _, q := range queues {
						h.Must(q.Authenticate(ctx, &o))
					}
					err = do()
				}
				h.Must(err)
			}
			for i := 0; asked < 3; i++ {
				q := queues[i%2]
				retry(func() error { return hosttest.Write(ctx, q, 1, 0, 1, b[:512], 0) })
				retry(func() error { return hosttest.Read(ctx, q, 1, 0, 1, b[512:]) })
				testutil.MustTrue(t, bytes.Equal(b[:512], b[512:]), "other data comes back")
			}
			n := strings.Count(h.Log.String(), "host has authenticated")
			// The log has ten such lines in ten seconds.
			testutil.True(t, n == asked+1 || n >= 10 && n <= asked,
				"asked %d times, and authenticated %d times", asked, n)
		})
}

// TestReauthenticateNot: a host that does not authenticate again is disconnected after a minute,
// and others stay.
func TestReauthenticateNot(t *testing.T) {
	testutil.Soak(t, "it takes a minute")
	eachTransport(t, nil, func(t *testing.T, h *Env, v Variant) {
		ctx := t.Context()
		other := h.Dial(v, func(o *host.Options) { o.HostNQN = HostNQN2 })
		key := NewKey(t, 32, 0)
		h.Target.SetHostPolicy(HostNQN, &auth.Policy{
			Keys: []*auth.Key{key}, Groups: []auth.Group{auth.GroupNull},
			Reauthenticate: time.Millisecond,
		})
		o := v.HostOptions()
		o.HostNQN, o.Key, o.KATO = HostNQN, key, 5*time.Second
		c, err := host.Connect(ctx, h.Transport(v), o)
		h.Must(err)
		defer c.Close()
		q := testutil.Value(c.OpenQueue(ctx, 1, 9))(h.T)
		defer q.Close()
		b := h.Buffer(c, 512)
		refused := 0
		for err = nil; err == nil; {
			if err = hosttest.Read(ctx, q, 1, 0, 1, b); authenticationRequired(err) {
				refused++
				err = nil
			}
		}
		testutil.True(t, refused >= 2 && refused <= 6, "%d commands are refused", refused)
		testutil.True(t, strings.Contains(h.Log.String(), "did not authenticate again within 1m0s"),
			"no line says why: %v\n%s", err, h.Log)
		h.Ping(other)
	})
}
