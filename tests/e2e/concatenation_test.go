package e2e

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestConcatenation: a host authenticates, connects again over TLS with the PSK of that, and
// replaces it. The PSK ends with the last controller that was created with it.
func TestConcatenation(t *testing.T) {
	h := newHarness(t, options{tls: "allowed", reactors: 2})
	ctx := testContext(t)
	key := newKey(t, 32, auth.SHA256)
	h.target.SetHostPolicy(hostNQN, &auth.Policy{Keys: []*auth.Key{key}})
	o := variants[0].hostOptions()
	o.HostNQN, o.Key = hostNQN, key
	plain := h.transport(variants[0]).(host.TCP)

	secure, err := host.Concatenate(ctx, plain, o)
	h.must(err)
	c, err := host.Connect(ctx, secure, o)
	h.must(err)
	defer c.Close()
	q, err := c.OpenQueue(ctx, 1, 9)
	h.must(err)
	b := h.buffer(c, 1024)
	copy(b, "concatenated")
	h.must(q.Write(ctx, 1, 0, 1, b[:512], 0))
	h.must(q.Read(ctx, 1, 0, 1, b[512:]))
	if !bytes.Equal(b[:512], b[512:]) {
		t.Error("other data comes back")
	}

	other, err := c.ReplacePSK(ctx)
	h.must(err)
	o.Key = nil // TLS proves who the host is
	second, err := host.Connect(ctx, other, o)
	h.must(err)
	second.Close()
	refused := func(t host.Transport) func() bool {
		return func() bool {
			c, err := host.Dial(ctx, t, o)
			if err == nil {
				c.Close()
			}
			return errors.Is(err, host.ErrRefused)
		}
	}
	h.until("the PSK ends with its controller", refused(other))

	mixed, err := host.DialQueue(ctx, plain, 2, 9, c.CNTLID())
	h.must(err)
	defer mixed.Close()
	cqe, err := mixed.Do(ctx, host.ConnectCommand(2, 9, &o, c.CNTLID()))
	if err != nil || cqe.Status().Code() != nvme.ConnectInvalidParameters {
		t.Errorf("an I/O queue without TLS: %v, %v", cqe.Status(), err)
	}
	h.ping(c)
	h.must(q.Close())
	c.Close()
	h.until("the first PSK ends as well", refused(secure))
	psk, err := secure.PSK("", "")
	h.must(err)
	for _, secret := range []string{string(psk.Secret), key.Reveal()[10:40]} {
		if strings.Contains(h.log.String(), secret) {
			t.Error("a secret is in the log")
		}
	}
}
