package e2e

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestAuthentication: a host with a key connects with all of its queues, and reads and writes, with
// every hash, in one direction and in both. The groups are tested in nvme/auth.
func TestAuthentication(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(o *Options) { o.Reactors = 2 },
		func(t *testing.T, h *Env, v Variant) {
			for i, tc := range []struct {
				auth.Hash
				auth.Group
				both bool
			}{
				{auth.SHA256, auth.GroupNull, false},
				{auth.SHA384, auth.GroupNull, true},
				{auth.SHA512, auth.FFDHE2048, true},
				{auth.SHA256, auth.FFDHE2048, false},
			} {
				key, own := NewKey(t, 32+16*(i%3), tc.Hash), NewKey(t, 64, auth.NoHash)
				p := &auth.Policy{
					Keys: []*auth.Key{key}, ControllerKey: own, Hashes: []auth.Hash{tc.Hash},
					Groups: []auth.Group{tc.Group},
				}
				h.Target.SetHostPolicy(HostNQN, p)
				o := v.HostOptions()
				o.HostNQN, o.Key = HostNQN, key
				if tc.both {
					o.ControllerKey = own
				}
				h.use(v, o)
				want := fmt.Sprintf("hash=%v dhgroup=%v bidirectional=%t", tc.Hash, tc.Group,
					tc.both)
				testutil.True(t, strings.Contains(h.Log.String(), want),
					"the log does not have: %s\n%s", want, h.Log)
				for _, k := range []*auth.Key{key, own} {
					testutil.True(t, !strings.Contains(h.Log.String(), k.Reveal()[10:40]),
						"a key is in the log")
				}
			}
		})
}

// use connects with two I/O queues, writes and reads, authenticates once more meanwhile, and
// disconnects.
func (h *Env) use(v Variant, o host.Options) {
	h.T.Helper()
	ctx := testutil.Context(h.T)
	c := testutil.Value(host.Connect(ctx, h.Transport(v), o))(h.T)
	defer c.Close()
	for qid := uint16(1); qid <= 2; qid++ {
		q := testutil.Value(c.OpenQueue(ctx, qid, 9))(h.T)
		defer q.Close()
		b := h.Buffer(c, 1024)
		copy(b, "authenticated")
		h.Must(hosttest.Write(ctx, q, 1, 0, 1, b[:512], 0))
		h.Must(q.Authenticate(ctx, &o))
		h.Must(hosttest.Read(ctx, q, 1, 0, 1, b[512:]))
		testutil.True(h.T, bytes.Equal(b[:512], b[512:]), "other data comes back")
	}
	h.Must(c.Authenticate(ctx))
	h.Ping(c)
}
