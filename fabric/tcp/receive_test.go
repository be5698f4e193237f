package tcp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// askForWrites sends one command for each of writes, and fills writes in. It returns the number of
// bytes of the later responses, including the responses to the flushes in answers.
func (h *manual) askForWrites(c *client, writes [][]byte, rng *rand.Rand) int {
	var all []byte
	for i := range writes {
		writes[i] = random(i+1, (1+rng.IntN(200))*blockSize)
		sqe := rw(nvme.NVMWrite, uint16(i), i<<18, len(writes[i]), false)
		all = append(all, c.capsule(&sqe, nil)...)
	}
	h.send(all)
	return 2 * len(writes) * (pdu.CapsuleRespSize + c.p.HeaderDigestSize())
}

// answers takes the R2Ts and returns the data for them, shuffled, with a flush for each.
func (h *manual) answers(c *client, writes [][]byte, rng *rand.Rand) (stream []byte) {
	size := pdu.DataSize + c.p.HeaderDigestSize()
	r2ts := bytes.Clone(h.recv())
	testutil.MustTrue(h.tb, len(r2ts) == size*len(writes), "%d bytes of R2Ts, want %d of %d",
		len(r2ts), len(writes), size)
	sent := make([]int, len(writes))
	for left := rng.Perm(len(writes)); len(left) > 0; {
		k := rng.IntN(min(len(left), 1+rng.IntN(2)))
		i := left[k]
		r := (*pdu.Data)(r2ts[i*size:])
		n, flags := len(writes[i])-sent[i], pdu.LastPDU
		if rng.IntN(2) == 0 && n > blockSize {
			n, flags = (1+rng.IntN(n/4-1))*4, 0
		} else {
			left = append(left[:k], left[k+1:]...)
			sqe := rw(nvme.NVMFlush, uint16(100+i), 0, 0, false)
			stream = append(stream, c.capsule(&sqe, nil)...)
		}
		stream = append(stream,
			c.h2cData(flags, r.CCCID(), r.TTAG(), sent[i], writes[i][sent[i]:sent[i]+n])...)
		sent[i] += n
	}
	return stream
}

func (h *manual) cutUp(b []byte, rng *rand.Rand) {
	for len(b) > 0 {
		n := min(len(b), 1+rng.IntN(1<<rng.IntN(19)))
		h.send(b[:n])
		b = b[n:]
	}
}

// A queue receives only its share of a large transfer in a poll, also if it is alone: others may
// have input meanwhile.
func TestTurnOfInput(t *testing.T) {
	const n = 1 << 20
	h, c := joined(t, options{}, pdu.Params{}, 4)
	busy := h.peer
	sqe := rw(nvme.NVMWrite, 1, 0, n, false)
	h.send(c.capsule(&sqe, nil))
	r2t := h.recv()
	testutil.MustTrue(t, len(r2t) == pdu.DataSize, "got %x, want an R2T", r2t)
	tag := (*pdu.Data)(r2t).TTAG()
	h.connect(pdu.Params{}, 4)
	q := h.g.queues.At(0)
	r := q.grants.First()
	h.g.turnsUntil = h.loop.now + recent
	h.g.activate(q)
	all := c.h2cData(pdu.LastPDU, 1, tag, 0, random(1, n))
	sent, _ := sys.Send(busy, all, 0)
	if sent < turnInput+2*partialSize {
		t.Skipf("the socket takes no more than %d bytes", sent)
	}
	h.g.Poll(64)
	inTurns := int(r.recvd)
	testutil.True(t, inTurns >= turnInput-2*pdu.DataSize && inTurns <= turnInput,
		"%d bytes in a turn beside another queue, want about %d", inTurns, turnInput)
	more, _ := sys.Send(busy, all[sent:], 0)
	h.loop.now += 2 * recent
	h.g.Poll(64)
	if alone, there := int(r.recvd)-inTurns, sent+more-pdu.DataSize-
		inTurns; alone != min(max(there, 0), turnInput) {
		t.Errorf("%d bytes in a turn alone, %d were there", alone, there)
	}
	h.hangUp()
	h.peer = busy
	h.close()
}

// A host with a socket buffer smaller than its capsule sends the rest when the beginning is
// acknowledged. After a response the kernel delays acknowledgements unless it is told not to.
func TestUnfinishedCapsule(t *testing.T) {
	tg, c := served(t, options{}, pdu.Params{}, 4, nvme.CATTRNoFlowControl)
	quick := func() (v int, unfinished bool) {
		tg.do(func() {
			q := tg.g.queues.At(0)
			unfinished = q.unfinished()
			v, _ = unix.GetsockoptInt(q.fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK)
		})
		return v, unfinished
	}
	sqe := rw(nvme.NVMWrite, 1, 0, 8192, true)
	b := c.capsule(&sqe, random(1, 8192))
	for _, cut := range []int{1, pdu.CapsuleCmdSize - 1, pdu.CapsuleCmdSize + 1, len(b) - 1} {
		c.send(b)
		c.status(1, nvme.Success)
		c.send(b[:cut])
		testutil.Until(t, "the beginning of a capsule", func() bool {
			_, unfinished := quick()
			return unfinished
		})
		if v, _ := quick(); v != 1 {
			t.Errorf("acknowledgements are held back when %d bytes of %d have arrived", cut, len(b))
		}
		c.send(b[cut:])
		c.status(1, nvme.Success)
	}
}

// In-capsule data that its device takes at once stays where it was received. A device that takes
// longer after all may keep it, even while more is received, and even if the list of ready requests
// fills up in the middle.
func TestBorrowedData(t *testing.T) {
	for _, p := range []pdu.Params{{}, {HeaderDigest: true, DataDigest: true}} {
		for _, ready := range []int{1, 2, MaxQueueDepth} {
			t.Run(fmt.Sprintf("digests %v, %d ready", p.HeaderDigest, ready),
				func(t *testing.T) { testBorrowedData(t, p, ready) })
		}
	}
}

func testBorrowedData(t *testing.T, p pdu.Params, ready int) {
	h := newManual(t, options{hold: true})
	h.g.ready = make([]*fabric.Request, 0, ready)
	h.d.optimistic = true
	c := h.connect(p, 16)
	total := h.arena.Available()
	write := func(i, nsid int) []byte {
		sqe := rw(nvme.NVMWrite, uint16(i), i*4096, 4096, true)
		sqe.SetNSID(uint32(nsid))
		return c.capsule(&sqe, random(i, 4096))
	}
	h.send(write(0, holdNSID))
	h.send(append(write(1, 1), write(2, holdNSID)...))
	for i := range 4 {
		h.send(append(write(3+2*i, 1), write(4+2*i, 1)...))
	}
	if len(h.d.held) != 2 || h.arena.Available() != total {
		t.Errorf("%d writes are held, %d bytes taken of the arena for them", len(h.d.held),
			total-h.arena.Available())
	}
	handed := h.d.held[1].Segs[0].B
	free := h.queue().HandOverBuffers(h.d.held[1])
	testutil.MustTrue(t, free != nil, "the data cannot be handed over")
	h.d.held[1].Status = nvme.InternalPathError
	h.d.release()
	h.turn()
	if n, want := len(h.recv()), 11*(pdu.CapsuleRespSize+p.HeaderDigestSize()); n != want {
		t.Errorf("%d bytes of responses, want %d", n, want)
	}
	for i := range 11 {
		testutil.True(t, i == 2 || bytes.Equal(h.d.data.Bytes()[i*4096:][:4096], random(i, 4096)),
			"write %d did not arrive", i)
	}
	testutil.True(t, bytes.Equal(handed, random(2, 4096)),
		"data that was handed over has been overwritten")
	free()
	h.close()
}

// There is more in-capsule data than memory for it, in one batch with reads that need some of it.
// Each gets its turn, and none gets memory promised to another.
func TestPromisedMemory(t *testing.T) {
	const ios = 150 // more than a batch
	for _, size := range []int{512, 4096, 16384} {
		h := newManual(t, options{cfg: Config{MaxDepth: 2 * ios}, hold: true, arena: 128 << 10})
		c := h.connect(pdu.Params{}, 2*ios)
		var all []byte
		for i := range ios {
			w := rw(nvme.NVMWrite, uint16(2*i), i*16384, size, true)
			r := rw(nvme.NVMRead, uint16(2*i+1), 3<<20, 4096, false)
			all = append(all, c.capsule(&w, random(i, size))...)
			all = append(all, c.capsule(&r, nil)...)
		}
		got := 0
		for len(all) > 0 {
			n := min(len(all), rxSize)
			h.send(all[:n])
			all = all[n:]
			got += len(h.recv())
		}
		want := ios * (2*pdu.CapsuleRespSize + pdu.DataSize + 4096)
		testutil.True(t, got == want, "%d bytes of answers, want %d", got, want)
		for i := range ios {
			testutil.True(t, bytes.Equal(h.d.data.Bytes()[i*16384:][:size], random(i, size)),
				"write %d of %d bytes did not arrive", i, size)
		}
		testutil.Equal(t, h.g.cfg.Memory.Promised(), 0, "bytes are still promised")
		h.close()
	}
}

// The handler may use memory of the pool while it executes the first part of a batch. If that
// memory was promised to the rest, the host retries the rest.
func TestPromisedMemoryIsUsed(t *testing.T) {
	h := newManual(t, options{hold: true, arena: 128 << 10})
	h.g.ready = make([]*fabric.Request, 0, 1)
	c := h.connect(pdu.Params{}, 16)
	h.d.onExecute = func() {
		if len(h.taken) == 0 {
			h.taken, _ = h.arena.Alloc(nil, h.arena.Available())
		}
	}
	var all []byte
	for i := range 4 {
		sqe := rw(nvme.NVMWrite, uint16(i), i*4096, 4096, true)
		sqe.SetNSID(holdNSID)
		all = append(all, c.capsule(&sqe, random(i, 4096))...)
	}
	h.send(all)
	h.d.release()
	h.turn()
	got := h.recv()
	for i, want := range []nvme.Status{
		nvme.Success, nvme.Success, nvme.CommandInterrupted, nvme.CommandInterrupted,
	} {
		for b := got; len(b) > 0; b = b[pdu.CapsuleRespSize:] {
			cqe := (*pdu.CapsuleResp)(b).CQE()
			testutil.True(t, int(cqe.CID()) != i || cqe.Status() == want, "command %d: %v, want %v",
				i, cqe.Status(), want)
		}
	}
	testutil.Equal(t, h.d.written.Load(), 2, "writes")
	h.close()
}

// store is a Sockets that works across transports, as a service manager does across programs.
type store struct {
	t    *testing.T
	kept map[netip.AddrPort]*os.File
	done bool // the program ends: Drop does nothing
}

func (s *store) Take(at netip.AddrPort) *os.File {
	f := s.kept[at]
	delete(s.kept, at)
	return f
}

func (s *store) Keep(at netip.AddrPort, fd int) {
	d, err := unix.Dup(fd)
	testutil.True(s.t, err == nil && s.kept[at] == nil, "%v is kept twice, or %v", at, err)
	s.kept[at] = os.NewFile(uintptr(d), at.String())
}

func (s *store) Drop(at netip.AddrPort, fd int) {
	if s.done {
		return
	}
	s.t.Helper()
	testutil.Check(s.t, unix.Shutdown(fd, unix.SHUT_RDWR))
	_ = s.kept[at].Close()
	delete(s.kept, at)
}

// TestKeptSockets: a host that connects after a transport has ended is served by the next one, with
// its options. A listener that is closed while the program continues is closed for good.
func TestKeptSockets(t *testing.T) {
	for _, ip := range []string{"127.0.0.1", "[::1]", "[::]"} {
		s := &store{t, map[netip.AddrPort]*os.File{}, false}
		at := listenAddr(ip + ":" + strconv.Itoa(int(testutil.FreePort(t))))
		before := New(Config{Log: quiet, Sockets: s})
		if _, err := before.Listen(at, 1, refuse); err != nil {
			t.Log(ip, err) // no IPv6
			continue
		}
		s.done = true
		testutil.Must(t, before.Close())
		c, err := net.Dial("tcp", at.AddrPort.String())
		testutil.MustEqual(t, err, nil, "%s: refused while nobody accepts", ip)
		defer c.Close()

		s.done = false
		f := s.kept[at.AddrPort]
		d := testutil.Value(unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0))(t)
		defer unix.Close(d)
		testutil.Must(t, unix.SetsockoptInt(d, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0))
		testutil.Must(t, unix.SetsockoptInt(d, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 30000))
		accepted := make(chan netip.AddrPort, 1)
		tr := New(Config{Log: quiet, Sockets: s})
		l := testutil.Value(tr.Listen(at, 1, func(c fabric.Conn) {
			accepted <- c.Info().Remote
			_ = c.Close()
		}))(t)
		a := testutil.Receive(t, "the connection", accepted)
		testutil.True(t, a.String() == c.LocalAddr().String(), "accepted %v, want %v", a,
			c.LocalAddr())
		for _, o := range inherited {
			testutil.Equal(t, testutil.Value(unix.GetsockoptInt(d, o.level, o.name))(t), o.value,
				"%s", o.what)
		}
		testutil.Equal(t, testutil.Value(unix.GetsockoptInt(d, unix.IPPROTO_TCP,
			unix.TCP_USER_TIMEOUT))(t), 0, "%s: the timeout of an iWARP listener", ip)
		testutil.Check(t, l.Close())
		testutil.True(t, testutil.Err(net.Dial("tcp", at.AddrPort.String())) != nil,
			"%s: a closed listener accepts", ip)
		testutil.Check(t, tr.Close())
	}
}

// TestKeptSocketUnfit: a kept socket that cannot be the listener is replaced by a new socket, which
// is kept instead.
func TestKeptSocketUnfit(t *testing.T) {
	port := testutil.FreePort(t)
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	elsewhere, _, err := listen(netip.MustParseAddrPort("127.0.0.1:0"), &Config{})
	testutil.Must(t, err)
	packets := testutil.Value(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	defer packets.Close()
	fd := testutil.Value(bind(at, &Config{}))(t)
	udp := testutil.Value(packets.(*net.UDPConn).File())(t)
	for what, f := range map[string]*os.File{
		"another address":      os.NewFile(uintptr(elsewhere), "elsewhere"),
		"UDP":                  udp,
		"one that only binds":  os.NewFile(uintptr(fd), "bound"),
		"a file, not a socket": os.Stdin,
	} {
		s := &store{t, map[netip.AddrPort]*os.File{at: f}, false}
		if f == os.Stdin {
			s.kept[at], err = os.Open(os.DevNull)
			testutil.MustTrue(t, err == nil, "%v", err)
		}
		tr := New(Config{Log: quiet, Sockets: s})
		l, err := tr.Listen(listenAddr(at.String()), 1, refuse)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		testutil.True(t, s.kept[at] != nil && s.kept[at] != f, "%s: the new socket is not kept",
			what)
		testutil.Check(t, l.Close())
	}
}
