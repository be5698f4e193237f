package e2e

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

func TestDiscovery(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		r.must(r.target.AddSubsystem(target.SubsystemConfig{
			NQN:   otherSub,
			Hosts: []string{hostNQN2},
		}))
		c := r.connect(w, func(o *host.Options) { o.SubNQN = nvme.DiscoveryNQN })
		ctx := testContext(t)
		h, entries, err := c.Discover(ctx)
		r.must(err)
		if h.RECFMT != 0 || h.GENCTR == 0 || int(h.NUMREC) != len(entries) {
			t.Errorf("header %+v with %d entries", h, len(entries))
		}
		found := map[nvme.TransportType]bool{}
		for _, e := range entries {
			nqn, err := nvme.ParseNQN(&e.SUBNQN)
			if err != nil {
				t.Error(err)
			}
			switch {
			case nqn == otherSub:
				t.Errorf("a subsystem that refuses this host is shown: %+v", e)
			case nqn == subNQN:
				at := r.addrs[e.TRTYPE]
				if e.SUBTYPE != nvme.SubsystemNVM || nvme.Text(e.TRADDR[:]) != at.Addr().String() ||
					nvme.Text(e.TRSVCID[:]) != "" &&
						nvme.Text(e.TRSVCID[:]) != portText(at.Port()) ||
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
		if !found[nvme.TransportTCP] || !found[nvme.TransportRDMA] {
			t.Errorf("ports shown: %v", found)
		}
		if _, err := c.OpenQueue(ctx, 1, 32); err == nil {
			t.Error("a discovery controller took an I/O queue")
		}
	})
}

func portText(p uint16) string {
	b := []byte{}
	for ; p > 0; p /= 10 {
		b = append(b, byte('0'+p%10))
	}
	slices.Reverse(b)
	return string(b)
}

// TestDiscoveryEvent keeps a discovery connection open while the log changes.
func TestDiscoveryEvent(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		c := r.connect(w, func(o *host.Options) {
			o.SubNQN, o.Events, o.KATO = nvme.DiscoveryNQN, nvme.EventDiscoveryChanged,
				10*time.Second
		})
		before, _, err := c.Discover(testContext(t))
		r.must(err)
		r.must(r.target.AddSubsystem(target.SubsystemConfig{NQN: otherSub, AllowAnyHost: true}))
		expectEvent(t, c, nvme.AsyncDiscoveryChanged)
		after, entries, err := c.Discover(testContext(t))
		r.must(err)
		if after.GENCTR == before.GENCTR || len(entries) <= int(before.NUMREC) {
			t.Errorf("before %+v, after %+v", before, after)
		}
	})
}

func expectEvent(t *testing.T, c *host.Controller, want nvme.AsyncEvent) {
	t.Helper()
	select {
	case e := <-c.Events():
		if e != want {
			t.Fatalf("event %#x, want %#x (controller: %v)", uint32(e), uint32(want), c.Err())
		}
	case <-time.After(patience):
		t.Fatal("no event")
	}
}

// TestScan is what a Linux host reads after Connect, and what it insists on.
func TestScan(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		c := r.connect(w)
		ctx := testContext(t)
		id := c.Identity()
		if id.MDTS == 0 || id.CNTRLTYPE != nvme.ControllerTypeIO || id.VER != c.Version() ||
			id.MAXCMD == 0 || id.SQES != 0x66 || id.CQES != 0x44 ||
			id.CTRATT&nvme.CTRATTTBKAS == 0 || nvme.Text(id.FR[:]) != "e2e" || id.AERL < 3 ||
			id.OAES&nvme.EventNamespaceChanged == 0 {
			t.Errorf("identity: %+v", id)
		}
		if nqn, err := nvme.ParseNQN(&id.SUBNQN); nqn != subNQN || err != nil {
			t.Errorf("SUBNQN %q, %v", nqn, err)
		}
		if w.isRDMA && id.SGLS&nvme.SGLSOffset == 0 {
			t.Error("no in-capsule writes over RDMA")
		}
		if mqes := int(c.CAP().MQES()) + 1; mqes != 128 {
			t.Errorf("queues of %d entries", mqes)
		}
		ids, err := c.ActiveNamespaces(ctx)
		r.must(err)
		if !slices.Equal(ids, []uint32{1, 2}) {
			t.Errorf("namespaces %v", ids)
		}
		for nsid, shift := range map[uint32]uint8{1: 9, 2: 12} {
			ns, err := c.IdentifyNamespace(ctx, nsid)
			r.must(err)
			if ns.Format().LBADS != shift || ns.NSZE != 64<<20>>shift || ns.NCAP != ns.NSZE ||
				ns.NMIC&nvme.NMICShared == 0 {
				t.Errorf("namespace %d: %d blocks of 1<<%d, NMIC %#x", nsid, ns.NSZE,
					ns.Format().LBADS, ns.NMIC)
			}
			descs, err := c.NamespaceIDs(ctx, nsid)
			r.must(err)
			if !slices.ContainsFunc(descs,
				func(d nvme.NamespaceID) bool {
					return d.Type == nvme.IDTypeUUID ||
						d.Type == nvme.IDTypeNGUID
				}) {
				t.Errorf("namespace %d has no lasting name: %v", nsid, descs)
			}
			if _, err := c.Identify(ctx, nvme.CNSCommandSetNamespace, nsid,
				nvme.CSINVM); err != nil {
				t.Error(err)
			}
		}
		if b, err := c.Identify(ctx, nvme.CNSCommandSetController, 0, nvme.CSINVM); err != nil {
			t.Error(err)
		} else if !bytes.Equal(b, make([]byte, nvme.IdentifyDataSize)) {
			t.Error("CNS 06h has limits")
		}
		for lid, n := range map[nvme.LID]int{
			nvme.LogError: 64, nvme.LogSMART: nvme.SMARTLogSize,
			nvme.LogFirmwareSlot: nvme.FirmwareLogSize,
			nvme.LogEffects:      nvme.EffectsLogSize, nvme.LogChangedNamespaces: 4096,
		} {
			if _, err := c.GetLog(ctx, lid, nvme.NSIDAll, 0, n, 0, false); err != nil {
				t.Error(err)
			}
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
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		c := r.connect(w)
		ctx := testContext(t)
		for range 3 {
			q := r.open(c, 1, 32)
			buf := r.buffer(c, 4096)
			r.must(q.Write(ctx, 1, 0, 8, buf, 0))
			r.must(c.Reset(ctx))
			if err := ended(q); !errors.Is(err, host.ErrClosed) {
				t.Fatalf("queue after a reset: %v", err)
			}
			if _, err := c.OpenQueue(ctx, 1, 32); err == nil {
				t.Fatal("a queue was connected to a disabled controller")
			}
			r.must(q.Close())
			r.must(c.Enable(ctx))
		}
		q := r.open(c, 2, 32)
		r.must(c.Shutdown(ctx))
		if err := ended(q); !errors.Is(err, host.ErrClosed) {
			t.Fatalf("queue after a shutdown: %v", err)
		}
		c.Close()
		r.until("the controller is gone", func() bool { return len(r.target.Controllers()) == 0 })
	})
}

// ended waits until a queue has nothing left but its error.
func ended(q *host.Queue) error {
	var done [32]host.Completion
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if _, err := q.Poll(done[:]); err != nil {
			return err
		}
		if err := q.Wait(time.Second); err != nil {
			continue // the next poll tells
		}
	}
	return errors.New("the queue lives")
}

func TestNamespaceEvents(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		dev := r.ram(1<<20, 512)
		c := r.connect(w, func(o *host.Options) { o.Events = nvme.EventNamespaceChanged })
		ctx := testContext(t)
		r.must(r.target.AddNamespace(subNQN, target.NamespaceConfig{NSID: 7, Device: dev}))
		expectEvent(t, c, nvme.AsyncNamespaceChanged)
		b, err := c.GetLog(ctx, nvme.LogChangedNamespaces, nvme.NSIDAll, 0, 4096, 0, false)
		r.must(err)
		if ids, err := nvme.ParseNamespaceList(b); err != nil || !slices.Equal(ids, []uint32{7}) {
			t.Errorf("changed: %v, %v", ids, err)
		}
		if ids, err := c.ActiveNamespaces(ctx); err != nil ||
			!slices.Equal(ids, []uint32{1, 2, 7}) {
			t.Errorf("active: %v, %v", ids, err)
		}
		q := r.open(c, 1, 32)
		buf := r.buffer(c, 512)
		r.must(q.Write(ctx, 7, 0, 1, buf, 0))
		r.must(r.target.RemoveNamespace(subNQN, 7))
		expectEvent(t, c, nvme.AsyncNamespaceChanged)
		wantStatus(t, "write to a removed namespace", q.Write(ctx, 7, 0, 1, buf, 0),
			nvme.InvalidNamespaceOrFormat|nvme.DNR)
		r.must(q.Write(ctx, 1, 0, 1, buf, 0))
	})
}

func TestEventLimit(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		c := r.connect(w)
		ctx, cancel := context.WithCancel(testContext(t))
		defer cancel()
		var op host.Op
		op.SQE.SetOpcode(nvme.AdminAsyncEventReq)
		for range int(c.Identity().AERL) + 1 {
			c.AdminAsync(ctx, &op)
		}
		cqe, err := c.Admin(ctx, &op)
		r.must(err)
		if cqe.Status().Code() != nvme.AERLimitExceeded {
			t.Errorf("one request too many: %v", cqe.Status())
		}
		r.ping(c)
	})
}

func TestAbort(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		c := r.connect(w)
		ctx := testContext(t)
		q := r.open(c, 1, 32)
		if aborted, err := c.Abort(ctx, 1, 0x1234); aborted || err != nil {
			t.Errorf("abort of an unknown command: %t, %v", aborted, err)
		}
		var op host.Op
		op.SQE.SetOpcode(nvme.AdminAsyncEventReq)
		wait := c.AdminAsync(ctx, &op)
		r.ping(c) // the request has arrived
		// Find its CID: the admin queue of the host gives slots from 0 with growing generations.
		aborted := false
		for slot := uint16(0); slot < 8 && !aborted; slot++ {
			for gen := uint16(0); gen < 16 && !aborted; gen++ {
				var err error
				if aborted, err = c.Abort(ctx, 0, slot|gen<<12); err != nil {
					t.Fatal(err)
				}
			}
		}
		if aborted {
			if cqe, err := wait(); err != nil || cqe.Status().Code() != nvme.AbortRequested {
				t.Errorf("aborted request: %v, %v", cqe.Status(), err)
			}
		} else {
			// the controller's choice (Base section 5.1.1)
			t.Log("asynchronous event requests are not aborted")
		}
		r.must(q.Flush(ctx, 1))
	})
}

func TestKeepAliveExpiry(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		t.Parallel() // it mostly waits
		c := r.connect(w,
			func(o *host.Options) { o.KATO, o.NoKeepAlive = 2001*time.Millisecond, true })
		q := r.open(c, 1, 32)
		alive := r.connect(w, func(o *host.Options) { o.KATO = 3 * time.Second })
		start := time.Now()
		if err := ended(q); !errors.Is(err, host.ErrClosed) {
			t.Errorf("I/O queue: %v", err)
		}
		select {
		case <-c.Done():
		case <-time.After(patience):
			t.Fatal("the admin queue lives")
		}
		if d := time.Since(start); d > patience/2 {
			t.Errorf("expired after %v", d)
		}
		r.until("one controller is left", func() bool { return len(r.target.Controllers()) == 1 })
		if alive.Err() != nil {
			t.Errorf("a controller that is kept alive died: %v", alive.Err())
		}
	})
}

func TestRefusedHost(t *testing.T) {
	bothWays(t, func(o *options) { o.hosts = []string{hostNQN2} },
		func(t *testing.T, r *rig, w way) {
			_, err := host.Connect(testContext(t), r.transport(w), w.hostOptions())
			var ce *host.ConnectError
			if !errors.As(err, &ce) || ce.Status&^nvme.More != nvme.ConnectInvalidHost|nvme.DNR {
				t.Errorf("got %v", err)
			}
			c := r.connect(w, func(o *host.Options) { o.HostNQN = hostNQN2 })
			r.ping(c)
		})
}

// TestTwoHosts has two hosts share a namespace, on both transports at once.
func TestTwoHosts(t *testing.T) {
	r := newRig(t, options{reactors: 2})
	ctx := testContext(t)
	a := r.connect(ways[0])
	b := r.connect(ways[3], func(o *host.Options) { o.HostNQN, o.HostID = hostNQN2, [16]byte{9} })
	if a.CNTLID() == b.CNTLID() {
		t.Fatal("one CNTLID for two controllers")
	}
	qa, qb := r.open(a, 1, 32), r.open(b, 1, 32)
	bufA, bufB := r.buffer(a, 8192), r.buffer(b, 8192)
	for i := range 50 {
		pattern(bufA, uint32(i))
		r.must(qa.Write(ctx, 1, uint64(i), 16, bufA, 0))
		clear(bufB)
		r.must(qb.Read(ctx, 1, uint64(i), 16, bufB))
		if d := differ(bufB, bufA); d != "" {
			t.Fatalf("round %d: %s", i, d)
		}
	}
	a.Close()
	r.until("a's I/O queue is closed too", func() bool { return len(r.target.Controllers()) == 1 })
	r.must(qb.Read(ctx, 1, 0, 16, bufB))
	// An I/O queue belongs to the host that has the controller.
	o := ways[3].hostOptions()
	o.HostNQN, o.HostID = hostNQN, [16]byte{9}
	q, err := host.DialQueue(ctx, r.transport(ways[3]), 2, 32, b.CNTLID())
	r.must(err)
	defer q.Close()
	cqe, err := q.Do(ctx, host.ConnectCommand(2, 32, &o, b.CNTLID()))
	if err != nil || cqe.Status().Code() != nvme.ConnectInvalidParameters &&
		cqe.Status().Code() != nvme.ConnectInvalidHost {
		t.Errorf("queue hijacked: %v, %v", cqe.Status(), err)
	}
}
