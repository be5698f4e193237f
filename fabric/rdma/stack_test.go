package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// noManager is a stack without a communication manager.
type noManager struct{ err error }

func (p noManager) Devices() ([]verbs.DeviceAttr, error) { return nil, p.err }
func (p noManager) NewCM() (verbs.CM, error)             { return nil, p.err }

// TestStacks: a listener uses the stack of its choice. Without one it uses a device if there is one
// or one is awaited, and else none.
func TestStacks(t *testing.T) {
	const at, other = "10.0.0.1", "10.0.0.9"
	machine := func(address string) func(*testing.T) verbs.Provider {
		return func(t *testing.T) verbs.Provider {
			f := verbstest.New(verbstest.Options{})
			t.Cleanup(f.Close)
			f.AddHost("host", verbstest.RoCE("dev0", netip.MustParseAddr(address)))
			return f.Provider("host")
		}
	}
	without := func(err error) func(*testing.T) verbs.Provider {
		return func(*testing.T) verbs.Provider { return noManager{err} }
	}
	free, device, soft := fabric.AnyStack, fabric.DeviceStack, fabric.SoftStack
	iwarp := fabric.SoftIWARPStack
	taken := fmt.Errorf("UDP port 4791 is taken: %w", unix.EADDRINUSE)
	for _, c := range []struct {
		name          string
		choice        fabric.Stack
		address       string
		devices, soft func(*testing.T) verbs.Provider
		awaited       bool
		memlock       error
		want          fabric.Stack // fabric.AnyStack: the text of the error follows
		fails         string
	}{
		{"device", free, at, machine(at), machine(at), false, nil, device, ""},
		{"at all", free, "0.0.0.0", machine(at), machine(at), false, nil, device, ""},
		{"other device", free, at, machine(other), machine(at), false, nil, soft, ""},
		{"awaited", free, at, machine(other), machine(at), true, nil, free, "stack: soft"},
		{
			"no devices", free, at, without(verbs.ErrNoDevice), machine(at), true, unix.ENOMEM,
			soft, "",
		},
		{
			"at all without", free, "::", without(verbs.ErrNoDevice), machine(at), false, nil, soft,
			"",
		},
		{
			"not built", free, at, without(verbs.ErrNotBuilt), machine(at), true, unix.ENOMEM, soft,
			"",
		},
		{"forbidden", free, at, without(unix.EACCES), machine(at), false, nil, free, "permission"},
		{"memlock", free, at, machine(at), machine(at), false, errors.New("low"), free, "low"},
		{"memlock of others", free, at, machine(other), machine(at), false, unix.EIO, soft, ""},
		{"no soft", free, at, machine(other), nil, false, nil, free, "no RDMA device"},
		{"waits", device, at, machine(other), machine(at), false, nil, free, "no RDMA device"},
		{"soft", soft, at, machine(at), machine(at), false, unix.ENOMEM, soft, ""},
		{"no address", soft, at, machine(at), machine(other), false, nil, free, "ip address"},
		{"iWARP", iwarp, at, machine(at), machine(at), false, unix.ENOMEM, iwarp, ""},
		{"no port of iWARP", iwarp, at, machine(at), without(taken), false, nil, free, "ss -ltnp"},
		{"no port", soft, at, machine(at), without(taken), false, nil, free, "rdma_rxe"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := Config{
				Provider: c.devices(t), Stack: func(uint16) fabric.Stack { return c.choice },
				Awaited: func(uint16) bool { return c.awaited },
				Memlock: func() error { return c.memlock },
			}
			if c.soft != nil {
				cfg.Soft = c.soft(t)
				if c.choice == iwarp {
					cfg.Soft, cfg.SoftIWARP = nil, cfg.Soft
				}
			}
			tr := New(cfg)
			defer func() { testutil.Check(t, tr.Close()) }()
			l, err := tr.Listen(fabric.Addr{
				Transport: nvme.TransportRDMA,
				AddrPort:  netip.AddrPortFrom(netip.MustParseAddr(c.address), 4420),
			}, 1, func(c fabric.Conn) { c.Close() })
			if c.want == free {
				testutil.Fails(t, err, c.fails, "listen")
				return
			}
			testutil.MustTrue(t, err == nil, "listen: %v", err)
			testutil.Equal(t, l.(*listener).Stack(), c.want, "stack")
			testutil.Check(t, l.Close())
		})
	}
}

// qpNum is the queue pair number of the target's only queue.
func (b *harness) qpNum() (n uint32) {
	b.on(func() {
		for q := range b.g.queues.all() {
			n = q.qp.Num()
		}
	})
	return n
}

func TestAsyncEventsOfQueuePairs(t *testing.T) {
	for _, ev := range []verbs.AsyncType{
		verbs.AsyncQPFatal, verbs.AsyncQPReqErr,
		verbs.AsyncQPAccessErr,
	} {
		b, q := joined(t, harnessOptions{}, ioParam(8))
		num := b.qpNum()
		b.f.Raise("target", verbs.AsyncEvent{Type: verbs.AsyncCommEst, QPNum: num})
		b.f.Raise("target", verbs.AsyncEvent{Type: ev, QPNum: num + 1})
		testutil.MustEqual(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
		b.f.Raise("target", verbs.AsyncEvent{Type: ev, QPNum: num})
		b.idle()
		testutil.True(t, strings.Contains(b.log.String(), "the device reports "+ev.String()),
			"log without the reason:\n%s", b.log)
	}
}

// An idle queue never polls; only the event shows that its completion queue has failed.
func TestAsyncEventOfCompletionQueue(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	b.host.connect(b.addr(), ioParam(8))
	b.f.FailCQs("target")
	b.idle()
	testutil.True(t, strings.Contains(b.log.String(), "completion queue: "),
		"log without the reason:\n%s", b.log)
}

// A failed device ends its queues at once and is given up; the next connection starts afresh.
func TestAsyncDeviceFatal(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	b.host.connect(b.addr(), ioParam(8))
	b.host.connect(b.addr(), ioParam(8))
	b.f.Raise("target", verbs.AsyncEvent{Type: verbs.AsyncDeviceFatal})
	b.idle()
	testutil.Until(t, "retired", func() bool { return b.f.Live("target").PDs == 0 })
	testutil.True(t, strings.Contains(b.log.String(), errDeviceFatal.Error()),
		"log without the reason:\n%s", b.log)
	b.host.event(verbs.EventDisconnected)
	b.host.event(verbs.EventDisconnected)
	q := b.host.connect(b.addr(), ioParam(8))
	testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
}

// Ports and addresses come and go without effect on queues.
func TestAsyncEventsOfPorts(t *testing.T) {
	b, q := joined(t, harnessOptions{}, ioParam(8))
	for _, ev := range []verbs.AsyncType{
		verbs.AsyncPortErr, verbs.AsyncPortActive,
		verbs.AsyncGIDChange, verbs.AsyncType(77),
	} {
		b.f.Raise("target", verbs.AsyncEvent{Type: ev})
	}
	testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
	testutil.Until(t, "log", func() bool {
		return strings.Count(b.log.String(), "PORT_ERR") == 1 &&
			strings.Contains(b.log.String(), "RDMA port is active")
	})
}

func TestAsyncCannotBeWatched(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	b.f.FailCalls("target", verbstest.CallWatch, 0, 1, nil)
	testutil.Equal(t, b.host.rejected(b.addr(), ioParam(8)), cmwire.NoResources, "")
	q := b.host.connect(b.addr(), ioParam(8))
	testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
}
