package target

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestConnectRefusals: status, IPO and IATTR of refused admin Connects (F02 to F08, F21).
func TestConnectRefusals(t *testing.T) {
	const (
		malformed = nvme.ConnectInvalidParameters | nvme.DNR
		data      = 1 << 16
	)
	cases := []struct {
		name   string
		change func(a *connectArgs, c *fabrictest.Command) *fabrictest.Command
		status nvme.Status
		result uint32
	}{
		{
			"RECFMT", args(func(a *connectArgs) { a.recfmt = 1 }),
			nvme.ConnectIncompatibleFormat | nvme.DNR, 0,
		},
		{
			"data short", raw(func(c *fabrictest.Command) { c.Data = c.Data[:1023] }),
			invalidLength,
			0,
		},
		{
			"data long", raw(func(c *fabrictest.Command) { c.Data = append(c.Data, 0) }),
			invalidLength, 0,
		},
		{"no data", raw(func(c *fabrictest.Command) { c.Data = nil }), invalidLength, 0},
		{
			"unknown subsystem", args(func(a *connectArgs) { a.sub += "x" }),
			nvme.ConnectInvalidParameters, data | 256,
		},
		{
			"subsystem in upper case",
			args(func(a *connectArgs) { a.sub = strings.ToUpper(a.sub) }),
			nvme.ConnectInvalidParameters, data | 256,
		},
		{"no subsystem", args(func(a *connectArgs) { a.sub = "" }), malformed, data | 256},
		{
			"subsystem without NUL",
			raw(func(c *fabrictest.Command) { copy(c.Data[256:], bytes.Repeat([]byte{'x'}, 256)) }),
			malformed, data | 256,
		},
		{
			"subsystem of 224 bytes",
			args(func(a *connectArgs) { a.sub += strings.Repeat("x", 224-len(a.sub)) }), malformed,
			data | 256,
		},
		{
			"host not allowed", args(func(a *connectArgs) { a.host += "0" }),
			nvme.ConnectInvalidHost | nvme.DNR, data | 512,
		},
		{
			"host in another case", args(func(a *connectArgs) { a.host = "N" + a.host[1:] }),
			nvme.ConnectInvalidHost | nvme.DNR, data | 512,
		},
		{
			"no host", args(func(a *connectArgs) { a.host = "" }),
			nvme.ConnectInvalidHost | nvme.DNR, data | 512,
		},
		{
			"host without NUL",
			raw(func(c *fabrictest.Command) {
				copy(c.Data[512:],
					bytes.Repeat([]byte{0x1B}, 256))
			}), malformed, data | 512,
		},
		{
			"host not UTF-8", raw(func(c *fabrictest.Command) { c.Data[512] = 0xFF }), malformed,
			data | 512,
		},
		{
			"CNTLID static", args(func(a *connectArgs) { a.cntlid = nvme.CNTLIDStatic }), malformed,
			data | 16,
		},
		{"CNTLID 1", args(func(a *connectArgs) { a.cntlid = 1 }), malformed, data | 16},
		{"SQSIZE 0", args(func(a *connectArgs) { a.sqsize = 0 }), malformed, 44},
		{"SQSIZE above MQES", args(func(a *connectArgs) { a.sqsize = 128 }), malformed, 44},
		{"SQSIZE FFFFh", args(func(a *connectArgs) { a.sqsize = 0xFFFF }), malformed, 44},
		{"HostID zero", args(func(a *connectArgs) { a.hostID = [16]byte{} }), malformed, data},
		{"PSDT 11b", raw(func(c *fabrictest.Command) { c.SQE.SetFlags(3 << 6) }), malformed, 1},
		{"fused", raw(func(c *fabrictest.Command) { c.SQE.SetFlags(1<<6 | 1) }), malformed, 1},
		{"FUSE 11b", raw(func(c *fabrictest.Command) { c.SQE.SetFlags(2<<6 | 3) }), malformed, 1},
	}
	sub := ramSubsystem(t, 1)
	sub.AllowAnyHost, sub.Hosts = false, []string{testHost}
	r := newHarness(t, 1, sub)
	for _, tc := range cases {
		r.run(tc.name, func(t *testing.T) {
			a := adminArgs(testSub)
			q := r.dial(0)
			c := tc.change(&a, nil)
			if c == nil {
				c = a.command()
			} else {
				c = tc.change(&a, a.command())
			}
			r.status(q, c, tc.status)
			if got := c.CQE.Result(); got != uint64(tc.result) {
				t.Errorf("result %#x, want %#x", got, tc.result)
			}
			r.wantRefusal()
			if n := len(r.target.Controllers()); n != 0 {
				t.Errorf("%d controllers", n)
			}
			r.ok(q, adminArgs(testSub).command()) // the queue may try again
			q.HangUp()
			r.w.Settle()
		})
	}
}

// wantRefusal looks whether the last refusal says what was expected, what was received, and what an
// operator can do.
func (r *harness) wantRefusal() {
	r.t.Helper()
	last, n := r.recorder.Refusals()[0], r.recorder.Kinds()["connect refused"]
	if r.refusals++; n != r.refusals {
		r.t.Errorf("%d refusals are recorded, want %d", n, r.refusals)
		r.refusals = n
	}
	for _, key := range []string{"expected", "received", "hint"} {
		if !slices.ContainsFunc(last.Attributes, func(a ratelog.Attribute) bool {
			return a.Key == key && a.Value != "" && a.Value != "<nil>"
		}) {
			r.t.Errorf("%q without %s: %q", last.Message, key, last.Attributes)
		}
	}
}

// TestNoHostNQN: a host without a name is served where any host is, on all queues, and by discovery
// (as by nvmet and SPDK).
func TestNoHostNQN(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(1, func(a *connectArgs) { a.host = "" })
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.connectHost(0, func(a *connectArgs) { a.host, a.sub = "", nvme.DiscoveryNQN })
	a := h.ioArgs(2)
	a.host = testHost
	c := r.status(r.dial(0), a.command(), nvme.ConnectInvalidParameters)
	if c.CQE.Result() != 1<<16|16 {
		t.Errorf("a queue of another host: result %#x", c.CQE.Result())
	}
}

// TestConnectPSDT: Base figure 95 asks for 10b and tolerates 00b; Linux sends 01b.
func TestConnectPSDT(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	for psdt := range uint8(3) {
		q := r.dial(0)
		c := adminArgs(testSub).command()
		c.SQE.SetFlags(psdt << 6)
		r.ok(q, c)
		q.HangUp()
		r.w.Settle()
	}
}

// args and raw change a Connect before and after it is encoded.
func args(f func(*connectArgs)) func(*connectArgs, *fabrictest.Command) *fabrictest.Command {
	return func(a *connectArgs, _ *fabrictest.Command) *fabrictest.Command {
		f(a)
		return nil
	}
}

func raw(f func(*fabrictest.Command)) func(*connectArgs, *fabrictest.Command) *fabrictest.Command {
	return func(_ *connectArgs, c *fabrictest.Command) *fabrictest.Command {
		if c == nil {
			return &fabrictest.Command{}
		}
		f(c)
		return c
	}
}

// TestConnectIORefusals: the same of I/O Connects (F09 to F15, F21, R15).
func TestConnectIORefusals(t *testing.T) {
	sub := ramSubsystem(t, 1)
	sub.MaxIOQueues = 4
	r := newHarness(t, 2, sub, SubsystemConfig{NQN: testSub + "1", AllowAnyHost: true},
		SubsystemConfig{NQN: testSub + "2", AllowAnyHost: true})
	r.must(r.target.AddPort(Port{ID: 1}))
	h := r.connectHost(1)
	d := r.connectHost(0, func(a *connectArgs) { a.sub = nvme.DiscoveryNQN })
	r.connectHost(0, func(a *connectArgs) { a.sub, a.host = testSub+"1", testHost+"1" })
	const data = 1 << 16
	cases := []struct {
		name   string
		change func(*connectArgs, *fabrictest.Queue)
		status nvme.Status
		result uint32
	}{
		{
			"unknown CNTLID", func(a *connectArgs, _ *fabrictest.Queue) { a.cntlid += 7 },
			nvme.ConnectInvalidParameters, data | 16,
		},
		{
			"CNTLID dynamic", func(a *connectArgs, _ *fabrictest.Queue) { a.cntlid = 0xFFFF },
			nvme.ConnectInvalidParameters, data | 16,
		},
		{
			"other host NQN", func(a *connectArgs, _ *fabrictest.Queue) { a.host += "0" },
			nvme.ConnectInvalidParameters, data | 16, // as if there were no such controller
		},
		{
			"other host ID", func(a *connectArgs, _ *fabrictest.Queue) { a.hostID[0]++ },
			nvme.ConnectInvalidParameters, data,
		},
		{
			"other host ID and address",
			func(a *connectArgs, q *fabrictest.Queue) {
				a.hostID[0]++
				q.Info().Remote = netip.MustParseAddrPort("192.0.2.8:50000")
			},
			nvme.ConnectInvalidParameters, data | 16,
		},
		{
			"other subsystem", func(a *connectArgs, _ *fabrictest.Queue) { a.sub += "2" },
			nvme.ConnectInvalidParameters, data | 256,
		},
		{
			"other subsystem, with a controller of another host that has the CNTLID",
			func(a *connectArgs, _ *fabrictest.Queue) { a.sub += "1" },
			nvme.ConnectInvalidParameters, data | 256,
		},
		{
			"other subsystem and CNTLID",
			func(a *connectArgs, _ *fabrictest.Queue) { a.sub, a.cntlid = a.sub+"2", a.cntlid+7 },
			nvme.ConnectInvalidParameters, data | 16,
		},
		{
			"unknown subsystem", func(a *connectArgs, _ *fabrictest.Queue) { a.sub += "3" },
			nvme.ConnectInvalidParameters, data | 256,
		},
		{
			"other port", func(_ *connectArgs, q *fabrictest.Queue) { q.Info().PortID++ },
			nvme.ConnectInvalidParameters, data | 16,
		},
		{
			"other transport",
			func(_ *connectArgs, q *fabrictest.Queue) { q.Info().Transport = nvme.TransportRDMA },
			nvme.ConnectInvalidParameters, data | 16,
		},
		{
			"other QID than in private data",
			func(_ *connectArgs, q *fabrictest.Queue) { q.Info().QID = 3 }, connectMalformed, 42,
		},
		{
			"other CNTLID than in private data",
			func(_ *connectArgs, q *fabrictest.Queue) { q.Info().QID, q.Info().CNTLID = 2, 99 },
			nvme.ConnectInvalidParameters, data | 16,
		},
		{
			"QID in use", func(a *connectArgs, _ *fabrictest.Queue) { a.qid = 1 },
			nvme.CommandSequenceError, 0,
		},
		{
			"QID beyond the grant", func(a *connectArgs, _ *fabrictest.Queue) { a.qid = 5 },
			nvme.ConnectInvalidParameters, 42,
		},
		{
			"QID FFFFh", func(a *connectArgs, _ *fabrictest.Queue) { a.qid = 0xFFFF },
			nvme.ConnectInvalidParameters, 42,
		},
		{
			"SQSIZE above MQES", func(a *connectArgs, _ *fabrictest.Queue) { a.sqsize = 128 },
			connectMalformed, 44,
		},
		{
			"SQSIZE FFFFh", func(a *connectArgs, _ *fabrictest.Queue) { a.sqsize = 0xFFFF },
			connectMalformed, 44,
		},
		{
			"discovery controller",
			func(a *connectArgs, _ *fabrictest.Queue) {
				a.sub, a.cntlid = nvme.DiscoveryNQN,
					d.cntlid
			},
			connectMalformed, 42,
		},
		{
			"no resources",
			func(_ *connectArgs, q *fabrictest.Queue) { q.RefuseDepth = errors.New("test") },
			nvme.ConnectControllerBusy, 0,
		},
	}
	for _, tc := range cases {
		r.run(tc.name, func(t *testing.T) {
			a := h.ioArgs(2)
			q := r.dial(1)
			tc.change(&a, q)
			c := r.status(q, a.command(), tc.status)
			if got := c.CQE.Result(); got != uint64(tc.result) {
				t.Errorf("result %#x, want %#x", got, tc.result)
			}
			if tc.status != nvme.ConnectControllerBusy {
				r.wantRefusal()
			}
			q.HangUp()
		})
	}
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))) // the first queue 1 is unharmed
	h.args.hostID = [16]byte{}                                  // ignored (F21)
	h.connectIO(1)
}

// TestConnectSequence: commands out of sequence (F01, F14, F16, F17, F20).
func TestConnectSequence(t *testing.T) {
	r := newHarness(t, 2, ramSubsystem(t, 1))
	q := r.dial(0)
	for _, c := range []*fabrictest.Command{
		propertyGetCommand(nvme.PropertyCAP), command(nvme.AdminIdentify, 0, nil),
		rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)),
	} {
		r.status(q, c, sequenceError)
	}
	h := &host{r: r, args: adminArgs(testSub), info: *q.Info(), admin: q}
	h.cntlid = uint16(r.ok(q, h.args.command()).CQE.DW0())
	// F16
	r.status(q, h.args.command(), sequenceError)
	// not enabled
	r.status(q, command(nvme.AdminIdentify, 0, make([]byte, 4096)), sequenceError)
	// F14
	r.status(r.dial(1), h.ioArgs(1).command(), nvme.ConnectInvalidParameters)
	// no authentication here
	r.status(q, &fabrictest.Command{SQE: fabricsCommand(nvme.FabricsAuthSend)}, invalidOpcode)
	//
	r.status(q, &fabrictest.Command{SQE: fabricsCommand(nvme.FabricsAuthReceive)}, invalidOpcode)
	//
	r.status(q, &fabrictest.Command{SQE: fabricsCommand(0x7E)}, invalidOpcode)
	//
	r.ok(q, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	//
	io := h.connectIO(1)
	// G05
	r.status(io, propertyGetCommand(nvme.PropertyCAP), invalidOpcode)
	// F16
	r.status(io, h.ioArgs(1).command(), sequenceError)
	// G06
	r.status(q, &fabrictest.Command{SQE: fabricsCommand(nvme.FabricsDisconnect)},
		nvme.InvalidQueueType|nvme.DNR)
}

func fabricsCommand(t nvme.FabricsType) nvme.SQE {
	c := command(nvme.FabricsOpcode, 0, nil)
	c.SQE[4] = byte(t)
	return c.SQE
}
