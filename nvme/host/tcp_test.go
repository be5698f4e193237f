package host

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

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
	if c.MaxTransfer() != 1<<20 || c.CNTLID() != 7 {
		t.Fatalf("identity: %d %d", c.MaxTransfer(), c.CNTLID())
	}
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
