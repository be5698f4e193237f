package e2e

import (
	"bytes"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

func TestDiscovery(t *testing.T) {
	eachTransport(t, nil, func(t *testing.T, h *env, v variant) {
		h.Must(h.Target.AddSubsystem(target.SubsystemConfig{
			NQN: otherSub, Hosts: []string{hostNQN2},
		}))
		c := h.connect(v, func(o *host.Options) { o.SubNQN = nvme.DiscoveryNQN })
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
			case nqn == otherSub:
				t.Errorf("a subsystem that refuses this host is listed: %+v", e)
			case nqn == subNQN:
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

// TestDiscoveryEvent has a discovery connection open while the log changes.
func TestDiscoveryEvent(t *testing.T) {
	eachTransport(t, nil, func(t *testing.T, h *env, v variant) {
		c := h.connect(v, func(o *host.Options) {
			o.SubNQN, o.KATO = nvme.DiscoveryNQN, 10*time.Second
		})
		events := testutil.Value(hosttest.Events(testutil.Context(t), c,
			nvme.EventDiscoveryChanged))(t)
		before, _, err := hosttest.Discover(testutil.Context(t), c)
		h.Must(err)
		h.Must(h.Target.AddSubsystem(target.SubsystemConfig{NQN: otherSub, AllowAnyHost: true}))
		expectEvent(t, events, nvme.AsyncDiscoveryChanged)
		after, entries, err := hosttest.Discover(testutil.Context(t), c)
		h.Must(err)
		testutil.True(t, after.GENCTR != before.GENCTR && len(entries) > int(before.NUMREC),
			"before %+v, after %+v", before, after)
	})
}

func expectEvent(t *testing.T, events <-chan nvme.AsyncEvent, want nvme.AsyncEvent) {
	t.Helper()
	if e := testutil.Receive(t, "an event", events); e != want {
		t.Fatalf("event %#x, want %#x", uint32(e), uint32(want))
	}
}

// TestScan reads the data that a Linux host reads after Connect, and checks its requirements.
func TestScan(t *testing.T) {
	eachTransport(t, nil, func(t *testing.T, h *env, v variant) {
		c := h.connect(v)
		ctx := testutil.Context(t)
		id := c.Identity()
		if id.MDTS == 0 || id.CNTRLTYPE != nvme.ControllerTypeIO || id.VER != c.Version() ||
			id.MAXCMD == 0 || id.SQES != 0x66 || id.CQES != 0x44 ||
			id.CTRATT&nvme.CTRATTTBKAS == 0 || nvme.Text(id.FR[:]) != "e2e" || id.AERL < 3 ||
			id.OAES&nvme.EventNamespaceChanged == 0 {
			t.Errorf("identity: %+v", id)
		}
		testutil.Equal(t, testutil.Value(nvme.ParseNQN(&id.SUBNQN))(t), subNQN, "SUBNQN")
		testutil.True(t, !v.isRDMA || id.SGLS&nvme.SGLSOffset != 0,
			"no in-capsule writes over RDMA")
		if mqes := int(c.CAP().MQES()) + 1; mqes != 128 {
			t.Errorf("queues of %d entries", mqes)
		}
		ids := testutil.Value(hosttest.ActiveNamespaces(ctx, c))(h.T)
		testutil.True(t, slices.Equal(ids, []uint32{1, 2}), "namespaces %v", ids)
		for nsid, shift := range map[uint32]uint8{1: 9, 2: 12} {
			ns := testutil.Value(c.IdentifyNamespace(ctx, nsid))(h.T)
			if ns.Format().LBADS != shift || ns.NSZE != 64<<20>>shift || ns.NCAP != ns.NSZE ||
				ns.NMIC&nvme.NMICShared == 0 {
				t.Errorf("namespace %d: %d blocks of 1<<%d, NMIC %#x", nsid, ns.NSZE,
					ns.Format().LBADS, ns.NMIC)
			}
			descs := testutil.Value(c.NamespaceIDs(ctx, nsid))(h.T)
			if !slices.ContainsFunc(descs, func(d nvme.NamespaceID) bool {
				return d.Type == nvme.IDTypeUUID || d.Type == nvme.IDTypeNGUID
			}) {
				t.Errorf("namespace %d has no persistent identifier: %v", nsid, descs)
			}
			_, err := c.Identify(ctx, nvme.CNSCommandSetNamespace, nsid, nvme.CSINVM)
			testutil.Check(t, err)
		}
		if b, err := c.Identify(ctx, nvme.CNSCommandSetController, 0, nvme.CSINVM); err != nil {
			t.Error(err)
		} else if !bytes.Equal(b, make([]byte, nvme.IdentifyDataSize)) {
			t.Error("CNS 06h has limits")
		}
		for lid, n := range map[nvme.LID]int{
			nvme.LogError: 64, nvme.LogSMART: nvme.SMARTLogSize,
			nvme.LogFirmwareSlot: nvme.FirmwareLogSize,
			nvme.LogSelfTest:     nvme.SelfTestLogSize,
			nvme.LogEffects:      nvme.EffectsLogSize, nvme.LogChangedNamespaces: 4096,
		} {
			testutil.Check(t,
				testutil.Err(hosttest.GetLog(ctx, c, lid, nvme.NSIDAll, 0, n, 0, false)))
		}
		if c.Version() >= nvme.Version20 {
			if b, err := c.Identify(ctx, nvme.CNSIndependentNamespace, 1, 0); err != nil {
				t.Error(err)
			} else if n, err := nvme.Parse[nvme.IdentifyNamespaceIndependent](b); err != nil ||
				n.NSTAT&nvme.NSTATReady == 0 {
				t.Errorf("CNS 08h: %+v, %v", n, err)
			}
		}
	})
}

func TestResetAndShutdown(t *testing.T) {
	eachTransport(t, nil, func(t *testing.T, h *env, v variant) {
		c := h.connect(v)
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

func TestNamespaceEvents(t *testing.T) {
	t.Parallel()
	eachTransport(t, nil, func(t *testing.T, h *env, v variant) {
		dev := h.RAM(1<<20, 512)
		c, ctx := h.connect(v), testutil.Context(t)
		events := testutil.Value(hosttest.Events(ctx, c, nvme.EventNamespaceChanged))(t)
		h.Must(h.Target.AddNamespace(subNQN, namespaces.Config{NSID: 7, Device: dev}))
		expectEvent(t, events, nvme.AsyncNamespaceChanged)
		b := testutil.Value(
			hosttest.GetLog(ctx, c, nvme.LogChangedNamespaces, nvme.NSIDAll, 0, 4096, 0,
				false))(h.T)
		ids, err := targettest.ParseNamespaceList(b)
		if err != nil || !slices.Equal(ids, []uint32{7}) {
			t.Errorf("changed: %v, %v", ids, err)
		}
		if ids, err := hosttest.ActiveNamespaces(ctx, c); err != nil ||
			!slices.Equal(ids, []uint32{1, 2, 7}) {
			t.Errorf("active: %v, %v", ids, err)
		}
		q := h.Open(c, 1, 32)
		buf := h.Buffer(c, 512)
		h.Must(hosttest.Write(ctx, q, 7, 0, 1, buf, 0))
		h.gone(h.Target.RemoveNamespace(subNQN, 7))
		expectEvent(t, events, nvme.AsyncNamespaceChanged)
		wantStatus(t, "write to a removed namespace", hosttest.Write(ctx, q, 7, 0, 1, buf, 0),
			nvme.InvalidField|nvme.DNR) // its NSID is inactive now
		h.Must(hosttest.Write(ctx, q, 1, 0, 1, buf, 0))
	})
}

func TestKeepAliveExpiry(t *testing.T) {
	eachTransport(t, nil, func(t *testing.T, h *env, v variant) {
		t.Parallel() // it mostly waits
		c := h.connect(v,
			func(o *host.Options) { o.KATO, o.NoKeepAlive = 2001*time.Millisecond, true })
		q := h.Open(c, 1, 32)
		// With 3 s, a stalled machine would end it, too.
		alive := h.connect(v, func(o *host.Options) {
			o.KATO = time.Duration(rounds(60, 3)) * time.Second
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
	h := newEnv(t, options{reactors: 2})
	ctx := testutil.Context(t)
	a := h.connect(plain[0])
	b := h.connect(plain[1],
		func(o *host.Options) { o.HostNQN, o.HostID = hostNQN2, [16]byte{9} })
	testutil.MustTrue(t, a.CNTLID() != b.CNTLID(), "one CNTLID for two controllers")
	qa, qb := h.Open(a, 1, 32), h.Open(b, 1, 32)
	bufA, bufB := h.Buffer(a, 8192), h.Buffer(b, 8192)
	for i := range 50 {
		pattern(bufA, uint32(i))
		h.Must(hosttest.Write(ctx, qa, 1, uint64(i), 16, bufA, 0))
		clear(bufB)
		h.Must(hosttest.Read(ctx, qb, 1, uint64(i), 16, bufB))
		testutil.MustEqual(t, differ(bufB, bufA), "", "round %d", i)
	}
	a.Close()
	h.Until("a's I/O queue is closed too", func() bool { return len(h.Target.Controllers()) == 1 })
	h.Must(hosttest.Read(ctx, qb, 1, 0, 16, bufB))
	// An I/O queue belongs to the host of its controller.
	o := plain[1].hostOptions()
	o.HostNQN, o.HostID = hostNQN, [16]byte{9}
	q := testutil.Value(host.DialQueue(ctx, h.transport(plain[1]), 2, 32, b.CNTLID()))(h.T)
	defer q.Close()
	cqe, err := q.Do(ctx, host.ConnectCommand(2, 32, &o, b.CNTLID()))
	if err != nil || cqe.Status().Code() != nvme.ConnectInvalidParameters &&
		cqe.Status().Code() != nvme.ConnectInvalidHost {
		t.Errorf("queue hijacked: %v, %v", cqe.Status(), err)
	}
}
