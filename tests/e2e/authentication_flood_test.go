package e2e

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestAuthenticationFlood: peers from many addresses begin to authenticate, with the most expensive
// of the default groups, and go no further. Meanwhile a host that has authenticated before
// connects, and afterwards a host from an unknown address, with make soak within two seconds.
func TestAuthenticationFlood(t *testing.T) {
	n, limit := 200, 256
	if testutil.Soaking() {
		n, limit = 10_000, tcp.DefaultMaxConnections
	}
	h := newEnv(t, options{tcp: func(c *tcp.Config) { c.MaxConnections = limit }})
	v := plain[0]
	o := v.hostOptions()
	o.HostNQN, o.Key = hostNQN, newKey(t, 32, auth.SHA256)
	h.Target.SetHostPolicy(hostNQN, &auth.Policy{Keys: []*auth.Key{o.Key}})
	from := func(a netip.Addr) host.TCP {
		t := h.transport(v).(host.TCP)
		t.Source = a
		return t
	}
	connect := func(who, source string) {
		t.Helper()
		h.connectSoon(who, from(netip.MustParseAddr(source)), o)
	}
	connect("the host", "127.0.0.2")

	ctx, cancel := context.WithCancel(context.Background())
	var open, flood sync.WaitGroup
	open.Add(n)
	halfOpen := func(i int) {
		q, err := host.DialQueue(ctx, from(netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)})),
			0, 32, 0)
		if err != nil {
			return
		}
		flood.Go(func() {
			<-ctx.Done()
			q.Close()
		})
		cqe, err := q.Do(ctx, host.ConnectCommand(0, 32, &o, nvme.CNTLIDDynamic))
		if err != nil || !cqe.Status().OK() {
			return
		}
		peer := auth.Host{HostNQN: hostNQN, Groups: []auth.Group{auth.FFDHE3072}}
		op := host.Op{Data: peer.Negotiate(1)}
		op.SQE.Auth().Set(nvme.FabricsAuthSend, uint32(len(op.Data)))
		_, _ = q.Submit(&op)
		_, _ = q.Poll(make([]host.Completion, 1))
	}
	const workers = 16
	for w := range workers {
		flood.Go(func() {
			for i := w; i < n; i += workers {
				halfOpen(i)
				open.Done()
			}
		})
	}
	connect("a known host during the flood", "127.0.0.2")
	connect("a known host during the flood", "127.0.0.2")
	open.Wait()
	connect("a known host", "127.0.0.2")
	connect("a host from elsewhere", "127.0.0.3")
	cancel()
	flood.Wait()
}

// connectSoon connects a host at the first attempt, with make soak within two seconds.
func (h *env) connectSoon(who string, transport host.Transport, o host.Options) {
	h.T.Helper()
	start := time.Now()
	c, err := host.Connect(testutil.Context(h.T), transport, o)
	if err != nil {
		h.T.Errorf("%s: %v", who, err)
		return
	}
	c.Close()
	if d := time.Since(start); testutil.Soaking() && d > 2*time.Second {
		h.T.Errorf("%s has connected after %v", who, d)
	}
}
