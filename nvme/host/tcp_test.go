package host

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

func testOptions() Options {
	return Options{
		HostNQN: "nqn.2026-11.io.nvmf-target:host",
		SubNQN:  "nqn.2026-11.io.nvmf-target:sub", AdminSize: 33, Timeout: testutil.Patience,
	}
}

// connectQueue returns a controller and an I/O queue. The caller closes the queue.
func connectQueue(t *testing.T, tr Transport, o Options, size int) (*Controller, *Queue) {
	t.Helper()
	ctx := testutil.Context(t)
	c := testutil.Value(Connect(ctx, tr, o))(t)
	t.Cleanup(c.Close)
	q := testutil.Value(c.OpenQueue(ctx, 1, size))(t)
	return c, q
}

// connectTCP connects to f and opens an I/O queue.
func connectTCP(t *testing.T, f *fakeTCP, tr TCP, o Options, size int) (*Controller, *Queue) {
	t.Helper()
	tr.Addr = f.addr
	c, q := connectQueue(t, tr, o, size)
	t.Cleanup(func() { _ = q.Close() })
	return c, q
}

func TestTCPReadWrite(t *testing.T) {
	for _, tc := range []struct {
		name string
		tr   TCP
		o    func(*Options)
		f    func(*fakeTCP)
	}{
		{name: "plain"},
		{name: "digests", tr: TCP{HeaderDigest: true, DataDigest: true}},
		{name: "header digest, aligned", tr: TCP{HeaderDigest: true, HPDA: 31}},
		{name: "data digest", tr: TCP{DataDigest: true, HPDA: 3}},
		{
			name: "success flag", o: func(o *Options) { o.NoFlowControl = true },
			f: func(f *fakeTCP) { f.success = true },
		},
		{name: "small PDUs", f: func(f *fakeTCP) { f.maxH2C, f.r2t, f.c2h = 4096, 4096, 512 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.f == nil {
				tc.f = func(*fakeTCP) {}
			}
			f := newFakeTCP(t, tc.f)
			o := testOptions()
			if tc.o != nil {
				tc.o(&o)
			}
			_, q := connectTCP(t, f, tc.tr, o, 16)
			ctx := testutil.Context(t)
			for _, n := range []int{512, 1024, 4096, 8192, 65536, 1 << 20} {
				want := make([]byte, n)
				for i := range want {
					want[i] = byte(rand.Uint32())
				}
				testutil.MustEqual(t, q.Write(ctx, 1, 3, uint32(n/512), want, 0), nil, "write %d",
					n)
				got := make([]byte, n)
				testutil.MustEqual(t, q.Read(ctx, 1, 3, uint32(n/512), got), nil, "read %d", n)
				testutil.MustTrue(t, bytes.Equal(got, want), "%d bytes differ", n)
			}
			testutil.Must(t, q.Flush(ctx, 1))
			var unknown Op
			unknown.set(nvme.NVMWriteZeroes, 1, nil)
			testutil.Is(t, q.run(ctx, &unknown), nvme.InvalidOpcode|nvme.DNR, "write zeroes")
		})
	}
}

// TestTCPPipeline keeps a queue full of mixed commands.
func TestTCPPipeline(t *testing.T) {
	f := newFakeTCP(t)
	_, q := connectTCP(t, f, TCP{DataDigest: true}, testOptions(), 17)
	const size = 20480
	n := q.Depth()
	bufs := make([][]byte, n)
	for i := range bufs {
		bufs[i] = make([]byte, size)
	}
	var op Op
	done := make([]Completion, 5)
	round := func(prepare func(i int)) {
		for i := range n {
			prepare(i)
			op.Token = uint64(i)
			testutil.Value(q.Submit(&op))(t)
		}
		testutil.Is(t, testutil.Err(q.Submit(&op)), ErrFull, "submit to a full queue")
		seen := map[uint64]bool{}
		for q.Outstanding() > 0 {
			k := testutil.Value(q.Poll(done))(t)
			for _, c := range done[:k] {
				testutil.MustTrue(t, c.Status().OK() && !seen[c.Token], "token %d: %v, twice %t",
					c.Token, c.Status(), seen[c.Token])
				seen[c.Token] = true
			}
			if k > 0 {
				continue
			}
			testutil.Must(t, q.Wait(time.Second))
		}
	}
	for gen := range 40 {
		round(func(i int) {
			for j := range bufs[i] {
				bufs[i][j] = byte(i*7 + gen + j>>9)
			}
			op.Write(1, uint64(i*size/512), size/512, bufs[i], 0)
		})
		round(func(i int) {
			clear(bufs[i])
			op.Read(1, uint64(i*size/512), size/512, bufs[i])
		})
		for i, b := range bufs {
			for j := range b {
				testutil.MustEqual(t, b[j], byte(i*7+gen+j>>9), "generation %d, buffer %d, byte %d",
					gen, i, j)
			}
		}
	}
}

func TestTermReq(t *testing.T) {
	override := func(c *fakeConn, sqe *nvme.SQE) bool {
		if c.size != 16 || sqe.Opcode() != nvme.NVMFlush {
			return false
		}
		_ = c.write(pdu.AppendTermReq(nil, pdu.TypeC2HTermReq, pdu.Fault{FES: pdu.FESLimit, FEI: 3},
			sqe[:]))
		return true
	}
	f := newFakeTCP(t, func(f *fakeTCP) { f.override = override })
	_, q := connectTCP(t, f, TCP{HeaderDigest: true}, testOptions(), 16)
	err := q.Flush(testutil.Context(t), 1)
	var fault pdu.Fault
	testutil.MustTrue(t, errors.Is(err, ErrClosed) && errors.As(err, &fault) &&
		fault.FES == pdu.FESLimit && fault.FEI == 3, "got %v", err)
}

func TestConnectRefused(t *testing.T) {
	f := newFakeTCP(t)
	o := testOptions()
	o.SubNQN = "nqn.bad"
	_, err := Connect(testutil.Context(t), TCP{Addr: f.addr}, o)
	var ce *ConnectError
	testutil.MustTrue(t, errors.As(err, &ce) &&
		ce.Status == nvme.ConnectInvalidParameters|nvme.DNR && ce.Invalid.IPO() == 256 &&
		ce.Invalid.InData(), "got %v", err)
	f = newFakeTCP(t, func(f *fakeTCP) { f.cpda = 1 })
	_, err = Connect(testutil.Context(t), TCP{Addr: f.addr}, testOptions())
	testutil.MustTrue(t, errors.Is(err, ErrRefused), "CPDA: got %v", err)
	f.ln.Close()
	_, err = Connect(testutil.Context(t), TCP{Addr: f.addr}, testOptions())
	testutil.MustTrue(t, err != nil, "connected to a closed port")
}

func TestAdmin(t *testing.T) {
	o := testOptions()
	o.KATO = 10 * time.Millisecond
	// The event is sent with the third keep alive, or with the first one after the request that it
	// answers.
	var eventCID uint16
	alive, armed, sent := 0, false, false
	override := func(c *fakeConn, sqe *nvme.SQE) bool {
		switch {
		case c.size != 33:
		case sqe.Opcode() == nvme.AdminAsyncEventReq:
			eventCID, armed = sqe.CID(), true
		case sqe.Opcode() == nvme.AdminKeepAlive:
			if alive++; alive >= 3 && armed && !sent {
				sent = true
				_ = c.respond(eventCID, uint64(nvme.AsyncNamespaceChanged), 0)
			}
		}
		return false
	}
	f := newFakeTCP(t, func(f *fakeTCP) { f.override = override })
	c, q := connectTCP(t, f, TCP{}, o, 16)
	ctx := testutil.Context(t)
	testutil.MustEqual(t, testutil.Value(c.SetQueueCount(ctx, 8))(t), 3, "queues")
	testutil.MustTrue(t, c.MaxTransfer() == 1<<20 && c.CNTLID() == 7, "identity: %d %d",
		c.MaxTransfer(), c.CNTLID())
	testutil.Is(t, testutil.Err(c.IdentifyNamespace(ctx, 9)), nvme.InvalidField|nvme.DNR,
		"identify")
	testutil.Must(t, c.Reset(ctx))
	testutil.Must(t, c.Shutdown(ctx))
	_ = q.Close()
	f.mu.Lock()
	f.cons[0].Close()
	f.mu.Unlock()
	<-c.Done()
	testutil.MustTrue(t, errors.Is(c.Err(), ErrClosed), "ended because of %v", c.Err())
	testutil.Is(t, testutil.Err(c.SetQueueCount(ctx, 1)), ErrClosed,
		"command to a controller that has ended")
}

// TestTCPTurn: a call passes about tcpTurn bytes to the kernel, even if there is more to send, so
// that other queues of the same thread have their turn.
func TestTCPTurn(t *testing.T) {
	l := newTCPLink(-1, linkParams{qid: 1, size: 129})
	data := make([]byte, 128<<10)
	for range 64 {
		l.push(data[:72])
		l.push(data)
	}
	for sent := 0; l.txHead < l.txEnd; {
		n := 0
		for _, v := range l.batch(tcpTurn) {
			n += int(v.Len)
		}
		if sent += n; n < tcpTurn && sent < 64*(len(data)+72) || n > tcpTurn+len(data) {
			t.Fatalf("%d bytes at once, want about %d", n, tcpTurn)
		}
		l.advance(n)
	}
	l.push(data[:1])
	testutil.Equal(t, len(l.batch(1)), 1, "vectors of one byte")
}

// TestCompletionsOfUnsentCommands completes commands by guessing their identifiers, without reading
// any. The commands must not pile up in the link.
func TestCompletionsOfUnsentCommands(t *testing.T) {
	fd, controller := socketPair(t)
	l := newTCPLink(fd, linkParams{qid: 1, size: 4, tolerant: true})
	q := newQueue(l, 1, 4, 8192)
	q.tolerant = true
	var op Op
	for range 10000 {
		op.Write(1, 0, 16, make([]byte, 8192), 0)
		cid, err := q.Submit(&op)
		if err == nil {
			var (
				resp pdu.CapsuleResp
				cqe  nvme.CQE
				done [4]Completion
			)
			cqe.Fill(0, 0, cid, nvme.Success)
			resp.Set(&l.p, &cqe)
			testutil.Value(unix.Write(controller, resp[:pdu.CapsuleRespSize]))(t)
			_, err = q.Poll(done[:])
		}
		if v, ok := errors.AsType[*Violation](err); ok {
			t.Log(v)
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("no violation")
}

// slowCQ is a completion queue with one SEND in each of the next polls.
type slowCQ struct {
	verbs.CQ
	left, last int
}

func (c *slowCQ) ReqNotify() error { return nil }

func (c *slowCQ) Poll(wcs []verbs.WC) (int, error) {
	c.last = min(c.left, 1)
	c.left -= c.last
	wcs[0] = verbs.WC{}
	return c.last, nil
}

type noChannel struct{ verbs.CompChannel }

func (noChannel) FD() int             { return -1 } // poll ignores it
func (noChannel) Drain() (int, error) { return 0, nil }

// TestWaitPollsUntilNothing has completions that end no command. Wait polls until there is none
// before it sleeps, as verbs.CQ demands: a soft device may have an acknowledgment to send then.
func TestWaitPollsUntilNothing(t *testing.T) {
	c := &slowCQ{left: 3}
	l := &rdmaLink{cq: c, ch: noChannel{}, wakeFD: -1, state: make([]rdmaSlot, 1)}
	testutil.Must(t, l.wait(&Queue{}, -1, 0))
	testutil.True(t, c.left == 0 && c.last == 0, "%d completions are left, the last poll had %d",
		c.left, c.last)
}

func socketPair(t testing.TB) (host, controller int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
		0)
	testutil.Must(t, err)
	for _, fd := range fds { // room for all outstanding commands of a test
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<20)
	}
	t.Cleanup(func() { _ = unix.Close(fds[0]); _ = unix.Close(fds[1]) })
	return fds[0], fds[1]
}

// pipeRoundTrip reads the bytes that the host has sent and sends answer.
func pipeRoundTrip(t testing.TB, fd int, drain, answer []byte) {
	if n, err := unix.Read(fd, drain); n <= 0 || err != nil {
		t.Fatalf("nothing from the host: %v", err)
	}
	if n, err := unix.Write(fd, answer); n != len(answer) || err != nil {
		t.Fatalf("answer: %d of %d bytes: %v", n, len(answer), err)
	}
}

// fault is the wrong reaction of a controller to a command.
type fault func(c *fakeConn, sqe *nvme.SQE)

// answer sends a completion altered by change.
func answer(change func(c *fakeConn, sqe *nvme.SQE, cqe *nvme.CQE)) fault {
	return func(c *fakeConn, sqe *nvme.SQE) {
		var cqe nvme.CQE
		cqe.Fill(0, c.sqhd, sqe.CID(), 0)
		change(c, sqe, &cqe)
		_ = c.write(c.respPDU(&cqe))
	}
}

func sendData(flags pdu.Flags, off uint32, n int) fault {
	return func(c *fakeConn, sqe *nvme.SQE) {
		_ = c.write(c.dataPDU(flags, sqe.CID(), off, make([]byte, n)))
	}
}

// alterData sends all data in a PDU altered by change.
func alterData(change func(c *fakeConn, b []byte)) fault {
	return func(c *fakeConn, sqe *nvme.SQE) {
		b := c.dataPDU(pdu.LastPDU, sqe.CID(), 0, make([]byte, size))
		change(c, b)
		_ = c.write(b)
	}
}

func requestData(off, n uint32) fault {
	return func(c *fakeConn, sqe *nvme.SQE) { _ = c.write(c.r2tPDU(sqe.CID(), 1, off, n)) }
}

// Bytes of data of a command; big does not fit into a capsule.
const size, big = 1024, 65536

var violations = []struct {
	name  string
	op    nvme.Opcode
	bytes int
	fault fault
}{
	{
		"unknown CID", nvme.NVMFlush, 0,
		answer(func(_ *fakeConn, _ *nvme.SQE, c *nvme.CQE) { c[12] ^= 0x40 }),
	},
	{
		"stale CID", nvme.NVMFlush, 0,
		answer(func(_ *fakeConn, _ *nvme.SQE, c *nvme.CQE) { c[13] ^= 0x10 }),
	},
	{
		"phase tag", nvme.NVMFlush, 0,
		answer(func(_ *fakeConn, _ *nvme.SQE, c *nvme.CQE) { c[14] |= 1 }),
	},
	{"SQID", nvme.NVMFlush, 0, answer(func(_ *fakeConn, _ *nvme.SQE, c *nvme.CQE) { c[10] = 1 })},
	{
		"result of an I/O command", nvme.NVMFlush, 0,
		answer(func(_ *fakeConn, _ *nvme.SQE, c *nvme.CQE) { c[0] = 1 }),
	},
	{
		"SQHD ahead", nvme.NVMFlush, 0,
		answer(func(_ *fakeConn, _ *nvme.SQE, c *nvme.CQE) { c[8]++ }),
	},
	{
		"SQHD out of the queue", nvme.NVMFlush, 0,
		answer(func(_ *fakeConn, _ *nvme.SQE, c *nvme.CQE) { c[8] = 16 }),
	},
	{
		"two completions", nvme.NVMFlush, 0,
		func(c *fakeConn, s *nvme.SQE) {
			_ = c.respond(s.CID(), 0, 0)
			_ = c.respond(s.CID(), 0, 0)
		},
	},
	{"success without data", nvme.NVMRead, size, answer(func(*fakeConn, *nvme.SQE, *nvme.CQE) {})},
	{"short data", nvme.NVMRead, size, func(c *fakeConn, s *nvme.SQE) {
		sendData(0, 0, 512)(c, s)
		_ = c.respond(s.CID(), 0, 0)
	}},
	{"last too early", nvme.NVMRead, size, sendData(pdu.LastPDU, 0, 512)},
	{"not last", nvme.NVMRead, size, sendData(0, 0, size)},
	{"too much data", nvme.NVMRead, size, sendData(pdu.LastPDU, 0, size+4)},
	{"gap", nvme.NVMRead, size, sendData(pdu.LastPDU, 512, 512)},
	{
		"success flag with flow control", nvme.NVMRead, size,
		sendData(pdu.LastPDU|pdu.Success, 0, size),
	},
	{"data for a write", nvme.NVMWrite, size, sendData(pdu.LastPDU, 0, size)},
	{
		"TTAG in C2HData", nvme.NVMRead, size,
		alterData(func(_ *fakeConn, b []byte) { b[10] = 1; pdu.PutHeaderDigest(b, pdu.DataSize) }),
	},
	{"header digest", nvme.NVMRead, size, alterData(func(_ *fakeConn, b []byte) { b[24] ^= 1 })},
	{
		"data digest", nvme.NVMRead, size,
		alterData(func(_ *fakeConn, b []byte) { b[len(b)-1] ^= 1 }),
	},
	{
		"PDU type of a host", nvme.NVMRead, size,
		alterData(func(_ *fakeConn, b []byte) { b[0] = byte(pdu.TypeH2CData) }),
	},
	{"second ICResp", nvme.NVMFlush, 0, func(c *fakeConn, _ *nvme.SQE) {
		r := pdu.ICResp(&c.p)
		_ = c.write(append(r[:], 0, 0, 0, 0))
	}},
	{"failure before the data of an R2T", nvme.NVMWrite, big, func(c *fakeConn, s *nvme.SQE) {
		cqe := c.cqe(s.CID(), 0, nvme.DataTransferError)
		_ = c.write(append(c.r2tPDU(s.CID(), 1, 0, 512), c.respPDU(&cqe)...))
	}},
	{"R2T for a read", nvme.NVMRead, size, requestData(0, size)},
	{"R2T for in-capsule data", nvme.NVMWrite, 512, requestData(0, 512)},
	{"R2T of nothing", nvme.NVMWrite, big, requestData(0, 0)},
	{"R2T too long", nvme.NVMWrite, big, requestData(0, big+4)},
	{"R2T with a gap", nvme.NVMWrite, big, requestData(512, 512)},
	{
		"success of a write without R2T", nvme.NVMWrite, big,
		answer(func(*fakeConn, *nvme.SQE, *nvme.CQE) {}),
	},
}

// violate connects to a controller that violates the protocol, and returns the queue and the result
// of the command.
func violate(t *testing.T, i int, o Options) (*Queue, error) {
	tc := &violations[i]
	override := func(c *fakeConn, sqe *nvme.SQE) bool {
		if c.size != 16 || sqe.Opcode() != tc.op {
			return false
		}
		tc.fault(c, sqe)
		return true
	}
	f := newFakeTCP(t, func(f *fakeTCP) { f.override = override })
	_, q := connectTCP(t, f, TCP{HeaderDigest: true, DataDigest: true}, o, 16)
	op := Op{Data: make([]byte, tc.bytes)}
	op.SQE.SetOpcode(tc.op)
	_, err := q.Do(testutil.Context(t), &op)
	return q, err
}

// TestViolations: the host detects each violation of the protocol.
func TestViolations(t *testing.T) {
	for i, tc := range violations {
		t.Run(tc.name, func(t *testing.T) {
			q, err := violate(t, i, testOptions())
			for err == nil { // the next poll finds "two completions"
				_ = q.Wait(time.Second)
				_, err = q.Poll(nil)
			}
			var v *Violation
			testutil.MustTrue(t, errors.As(err, &v) && v.QID == 1, "got %v, want a violation", err)
			_, err = q.Submit(new(Op))
			testutil.MustTrue(t, errors.As(err, &v), "submit to a ended queue: %v", err)
		})
	}
}

// TestTolerant: with Tolerant, faults that the Linux host accepts are not violations. All others
// still are.
func TestTolerant(t *testing.T) {
	accepted := []string{
		"phase tag", "SQID", "result of an I/O command", "SQHD ahead", "SQHD out of the queue",
		"success flag with flow control",
	}
	o := testOptions()
	o.Tolerant = true
	for i, tc := range violations {
		if tc.name == "TTAG in C2HData" {
			continue // accepted, but no response follows here
		}
		t.Run(tc.name, func(t *testing.T) {
			q, err := violate(t, i, o)
			ok := slices.Contains(accepted, tc.name)
			for err == nil && !ok {
				_ = q.Wait(time.Second)
				_, err = q.Poll(nil)
			}
			var v *Violation
			testutil.True(t, (!ok || err == nil) && (ok || errors.As(err, &v)), "accepted %t: %v",
				ok, err)
		})
	}
}

// Read reads blocks logical blocks into data.
func (q *Queue) Read(ctx context.Context, nsid uint32, slba uint64, blocks uint32,
	data []byte,
) error {
	var op Op
	op.Read(nsid, slba, blocks, data)
	return q.run(ctx, &op)
}

// Write writes blocks logical blocks from data.
func (q *Queue) Write(ctx context.Context, nsid uint32, slba uint64, blocks uint32, data []byte,
	flags nvme.RWFlags,
) error {
	var op Op
	op.Write(nsid, slba, blocks, data, flags)
	return q.run(ctx, &op)
}

// Flush makes completed writes durable.
func (q *Queue) Flush(ctx context.Context, nsid uint32) error {
	var op Op
	op.Flush(nsid)
	return q.run(ctx, &op)
}

// run is Do, with an unsuccessful status returned as an error.
func (q *Queue) run(ctx context.Context, op *Op) error {
	cqe, err := q.Do(ctx, op)
	if err == nil && !cqe.Status().OK() {
		err = cqe.Status()
	}
	return err
}
