package e2e

import (
	"strconv"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

func TestDiscovery(t *testing.T) {
	eachTransport(t, nil, func(t *testing.T, h *Env, v Variant) {
		h.Must(h.Target.AddSubsystem(subsystems.Config{
			NQN: OtherSub, Hosts: []string{HostNQN2},
		}))
		c := h.Dial(v, func(o *host.Options) { o.SubNQN = nvme.DiscoveryNQN })
		ctx := testutil.Context(t)
		header, entries, err := hosttest.Discover(ctx, c)
		h.Must(err)
		if header.RECFMT != 0 || header.GENCTR == 0 || int(header.NUMREC) != len(entries) {
			t.Errorf("header %+v with %d entries", header, len(entries))
		}
		found := map[nvme.TransportType]bool{}
		for _, e := range entries {
			nqn, err := nvme.ParseNQN(&e.SUBNQN)
			testutil.Check(t, err)
			switch {
			case nqn == OtherSub:
				t.Errorf("a subsystem that refuses this host is listed: %+v", e)
			case nqn == SubNQN:
				at, port := h.Addr(e.TRTYPE), nvme.Text(e.TRSVCID[:])
				if e.SUBTYPE != nvme.SubsystemNVM || nvme.Text(e.TRADDR[:]) != at.Addr().String() ||
					port != "" && port != strconv.Itoa(int(at.Port())) ||
					e.ADRFAM != nvme.AddressIPv4 || e.CNTLID != nvme.CNTLIDDynamic ||
					e.ASQSZ < 32 {
					t.Errorf("entry %s %s:%s %+v", e.TRTYPE, nvme.Text(e.TRADDR[:]),
						nvme.Text(e.TRSVCID[:]), *e)
				}
				found[e.TRTYPE] = true
			case nqn == nvme.DiscoveryNQN && e.SUBTYPE != nvme.SubsystemDiscovery:
				t.Errorf("discovery entry of type %d", e.SUBTYPE)
			}
		}
		testutil.True(t, found[nvme.TransportTCP] && found[nvme.TransportRDMA], "ports listed: %v",
			found)
		testutil.True(t, testutil.Err(c.OpenQueue(ctx, 1, 32)) != nil,
			"a discovery controller accepted an I/O queue")
	})
}

func TestResetAndShutdown(t *testing.T) {
	eachTransport(t, nil, func(t *testing.T, h *Env, v Variant) {
		c := h.Dial(v)
		ctx := testutil.Context(t)
		for range 3 {
			q := h.Open(c, 1, 32)
			buf := h.Buffer(c, 4096)
			h.Must(hosttest.Write(ctx, q, 1, 0, 8, buf, 0))
			h.Must(c.Reset(ctx))
			testutil.Is(t, ended(q), host.ErrClosed, "queue after a reset")
			testutil.MustTrue(t, testutil.Err(c.OpenQueue(ctx, 1, 32)) != nil,
				"a queue was connected to a disabled controller")
			h.Must(q.Close())
			h.Must(c.Enable(ctx))
		}
		q := h.Open(c, 2, 32)
		h.Must(c.Shutdown(ctx))
		testutil.Is(t, ended(q), host.ErrClosed, "queue after a shutdown")
		c.Close()
		h.Until("no controller is left", func() bool { return len(h.Target.Controllers()) == 0 })
	})
}

// ended waits until a queue has ended, and returns its error.
func ended(q *host.Queue) error {
	var done [32]host.Completion
	for {
		if _, err := q.Poll(done[:]); err != nil {
			return err
		}
		_ = q.Wait(testutil.Patience) // the next poll returns its error
	}
}

func TestKeepAliveExpiry(t *testing.T) {
	t.Parallel()
	eachTransport(t, nil, func(t *testing.T, h *Env, v Variant) {
		t.Parallel() // it mostly waits
		c := h.Dial(v, func(o *host.Options) { o.KATO, o.NoKeepAlive = time.Minute, true })
		q := h.Open(c, 1, 32)
		testutil.Value(c.SetFeature(testutil.Context(t), nvme.FeatureKeepAliveTimer, 2001))(t)
		// With 3 s, a stalled machine would end it, too.
		alive := h.Dial(v, func(o *host.Options) {
			o.KATO = time.Duration(testutil.Rounds(60, 3)) * time.Second
		})
		testutil.Is(t, ended(q), host.ErrClosed, "I/O queue")
		testutil.Receive(t, "the admin queue ends", c.Done())
		h.Until("one controller is left", func() bool { return len(h.Target.Controllers()) == 1 })
		testutil.True(t, alive.Err() == nil, "a controller with keep alives has ended: %v",
			alive.Err())
	})
}

// TestTwoHosts: two hosts share a namespace, one on each transport.
func TestTwoHosts(t *testing.T) {
	h := New(t, Options{Reactors: 2})
	ctx := testutil.Context(t)
	a := h.Dial(Plain[0])
	b := h.Dial(Plain[1],
		func(o *host.Options) { o.HostNQN, o.HostID = HostNQN2, [16]byte{9} })
	testutil.MustTrue(t, a.CNTLID() != b.CNTLID(), "one CNTLID for two controllers")
	qa, qb := h.Open(a, 1, 32), h.Open(b, 1, 32)
	bufA, bufB := h.Buffer(a, 8192), h.Buffer(b, 8192)
	for i := range 50 {
		pattern(bufA, uint32(i))
		h.Must(hosttest.Write(ctx, qa, 1, uint64(i), 16, bufA, 0))
		clear(bufB)
		h.Must(hosttest.Read(ctx, qb, 1, uint64(i), 16, bufB))
		testutil.MustEqual(t, Differ(bufB, bufA), "", "round %d", i)
	}
	a.Close()
	h.Until("a's I/O queue is closed too", func() bool { return len(h.Target.Controllers()) == 1 })
	h.Must(hosttest.Read(ctx, qb, 1, 0, 16, bufB))
	// An I/O queue belongs to the host of its controller.
	o := Plain[1].HostOptions()
	o.HostNQN, o.HostID = HostNQN, [16]byte{9}
	q := testutil.Value(host.DialQueue(ctx, h.Transport(Plain[1]), 2, 32, b.CNTLID()))(h.T)
	defer q.Close()
	cqe, err := q.Do(ctx, host.ConnectCommand(2, 32, &o, b.CNTLID()))
	if err != nil || cqe.Status().Code() != nvme.ConnectInvalidParameters &&
		cqe.Status().Code() != nvme.ConnectInvalidHost {
		t.Errorf("queue hijacked: %v, %v", cqe.Status(), err)
	}
}
