package e2e

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/file"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

func TestDiscovery(t *testing.T) {
	eachTransport(t, nil, func(t *testing.T, h *Env, v Variant) {
		h.Must(h.Target.AddSubsystem(subsystems.Config{NQN: OtherSub, Hosts: []string{HostNQN2}}))
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
		c := h.Dial(v,
			func(o *host.Options) { o.KATO, o.NoKeepAlive = 2001*time.Millisecond, true })
		q := h.Open(c, 1, 32)
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
	b := h.Dial(Plain[1], func(o *host.Options) { o.HostNQN, o.HostID = HostNQN2, [16]byte{9} })
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

// TestDiagnostics: a self-test reads, and can be aborted. Telemetry has the queues of the
// association, which are on several reactors.
func TestDiagnostics(t *testing.T) {
	eachTransport(t, nil, func(t *testing.T, h *Env, v Variant) {
		c := h.Dial(v)
		ctx := testutil.Context(t)
		for qid := range uint16(2) {
			h.Open(c, qid+1, 32)
		}
		selfTest := func(code nvme.SelfTestCode) {
			t.Helper()
			op := new(host.Op)
			op.SQE.SetOpcode(nvme.AdminSelfTest)
			op.SQE.SetNSID(nvme.NSIDAll)
			op.SQE.SetCDW(10, uint32(code))
			cqe, err := c.Admin(ctx, op)
			if h.Must(err); !cqe.Status().OK() {
				t.Fatal(cqe.Status())
			}
		}
		log := func() *nvme.SelfTestLog {
			t.Helper()
			b := testutil.Value(
				hosttest.GetLog(ctx, c, nvme.LogSelfTest, 0, 0, nvme.SelfTestLogSize, 0,
					false))(h.T)
			l := testutil.Value(nvme.Parse[nvme.SelfTestLog](b))(h.T)
			return l
		}
		selfTest(nvme.SelfTestExtended)
		h.Until("the self-test has read", func() bool { return log().Completion > 0 })
		selfTest(nvme.SelfTestAbort)
		if l := log(); l.Operation != 0 || l.Results[0].DSTS != 0x21 {
			t.Errorf("operation %d, %+v", l.Operation, l.Results[0])
		}
		b := testutil.Value(hosttest.GetLog(ctx, c, nvme.LogTelemetryHost, 0, 0,
			nvme.TelemetryBlock, nvme.TelemetryCreate, true))(h.T)
		size := targettest.TelemetrySize(b) - nvme.TelemetryBlock
		b = testutil.Value(
			hosttest.GetLog(ctx, c, nvme.LogTelemetryHost, 0, nvme.TelemetryBlock, size, 0,
				false))(h.T)
		var got struct {
			Host        string
			Connections []struct{ QID uint16 }
			Namespaces  []struct{ NSID uint32 }
		}
		h.Must(json.Unmarshal(bytes.TrimRight(b, "\n"), &got))
		queues := []uint16{}
		for _, q := range got.Connections {
			queues = append(queues, q.QID)
		}
		if got.Host == "" || len(got.Namespaces) != 2 || !slices.Equal(queues, []uint16{0, 1, 2}) {
			t.Errorf("%s", b)
		}
	})
}

// reopened is a device with storage that can be closed and opened again.
type reopened struct {
	backend.Device
	open func() (backend.Device, error)
}

// swap opens the device of namespace 1 again, if possible, while the namespace does not use it.
func (h *Env) swap() error {
	return h.Target.UpdateNamespace(SubNQN, namespaces.Config{NSID: 1},
		func(old backend.Device) (backend.Device, error) {
			d, ok := old.(*reopened)
			if !ok {
				return old, nil
			}
			if err := d.Close(); err != nil {
				return old, err
			}
			var err error
			d.Device, err = d.open()
			return d, err
		})
}

// TestSwapUnderLoad: no command fails and no data is lost while the device of a RAM namespace is
// repeatedly exchanged.
func TestSwapUnderLoad(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(o *Options) { o.Reactors = 2; o.QueueDepth = 64 }, swapUnderLoad)
}

// TestSwapFileUnderLoad: the same for a file that is closed and opened again.
func TestSwapFileUnderLoad(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(o *Options) {
		o.Reactors, o.QueueDepth = 2, 64
		path := filepath.Join(t.TempDir(), "disk")
		d := &reopened{open: func() (backend.Device, error) {
			return file.Open(file.Config{Path: path, Size: 64 << 20, BlockSize: 512})
		}}
		var err error
		if d.Device, err = d.open(); err != nil {
			t.Fatal(err)
		}
		o.Devices = []backend.Device{d}
	}, swapUnderLoad)
}

func swapUnderLoad(t *testing.T, h *Env, v Variant) {
	const queues, rounds = 4, 8
	c := h.Dial(v)
	if n, err := c.SetQueueCount(testutil.Context(t), queues); n != queues || err != nil {
		t.Fatalf("%d queues granted: %v", n, err)
	}
	var load sync.WaitGroup
	for i := range queues {
		q := h.Open(c, uint16(i+1), 17+i*4)
		buf := h.Buffer(c, q.Depth()*32768)
		load.Go(func() {
			testutil.Equal(t, verify(q, uint64(i)*16384, buf, rounds), nil, "queue %d", i+1)
		})
	}
	ended := make(chan struct{})
	go func() {
		load.Wait()
		close(ended)
	}()
	for n := 1; ; n++ {
		h.Must(h.swap())
		select {
		case <-ended:
			t.Log(n, "exchanges")
			return
		default:
		}
	}
}

// TestSwapDespiteSlowReader: a host that does not receive the data of its reads of a RAM namespace
// prevents neither the exchange of the device nor its use by others meanwhile.
func TestSwapDespiteSlowReader(t *testing.T) {
	t.Parallel() // it mostly waits
	h := New(t, Options{Memory: 16})
	q := h.Open(h.Dial(Plain[0]), 1, 16)
	unreadTCP(h)
	swapped := make(chan error, 1)
	go func() { swapped <- h.swap() }()
	h.Until("the device is exchanged", func() bool {
		h.Must(hosttest.Flush(testutil.Context(t), q, 1))
		return len(swapped) > 0
	})
	h.Must(<-swapped)
}

// TestRemovePort: connections end with their listener, connections of the other listener stay, and
// no new one is accepted.
func TestRemovePort(t *testing.T) {
	h := New(t, Options{Reactors: 2})
	var queues []*host.Queue
	for _, v := range Plain {
		queues = append(queues, h.Open(h.Dial(v), 1, 16))
	}
	for i, v := range Plain {
		h.Must(hosttest.Flush(testutil.Context(t), queues[i], 1))
		h.Must(h.Target.RemovePort(uint16(i + 1)))
		h.Until("the queue ends", func() bool {
			return hosttest.Flush(testutil.Context(t), queues[i], 1) != nil
		})
		_, err := host.Connect(testutil.Context(t), h.Transport(v), v.HostOptions())
		testutil.True(t, err != nil, "%s: connected to a listener that was removed", v.Name)
	}
	h.Until("all sessions end", func() bool { return h.Target.Sessions() == 0 })
}
