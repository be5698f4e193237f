package host

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme"
)

const (
	tcpReceiveBuffer = 256 << 10
	// what is missing of a payload beyond this is received without the buffer
	tcpDirectReceive = 16 << 10
	tcpDataHeaders   = 64 // H2CData PDUs built at once
	// what one poll receives at most, about, and sends if nothing else is said (TCP.Turn)
	tcpTurn    = 256 << 10
	maxC2HData = 1 << 30 // what a C2HData may carry before its command is known
)

// tcpLink is a queue's TCP connection. Sending: submit appends vectors (header, data, digest) to
// tx, flush hands them to the kernel in one call; H2CData for R2Ts is built while headers are free.
// Receiving: tcp_receive.go.
type tcpLink struct {
	fd     int
	turn   int // bytes
	admin  bool
	p      pdu.Params
	closed bool

	capsules []tcpCapsule

	// tx holds vectors not sent yet in tx[txHead:txEnd].
	tx            []sys.Iovec
	txHead, txEnd int
	data          [tcpDataHeaders]tcpDataHeader
	dataUsed      int
	r2t           []uint16 // slots with an R2T to answer, a ring of one entry per slot
	r2tHead, r2tN int

	rx  tcpReceiver
	fds [2]unix.PollFd // of wait
}

// tcpCapsule is the memory of one command on the wire.
type tcpCapsule struct {
	header [pdu.CapsuleCmdSize + pdu.DigestSize]byte
	digest [pdu.DigestSize]byte
}

type tcpDataHeader struct {
	header [pdu.DataSize + pdu.DigestSize]byte
	digest [pdu.DigestSize]byte
}

func newTCPLink(fd int, p linkParams) *tcpLink {
	n := max(p.size-1, 1)
	l := &tcpLink{
		fd: fd, turn: tcpTurn, admin: p.qid == 0, capsules: make([]tcpCapsule, n),
		r2t: make([]uint16, n),
		tx:  make([]sys.Iovec, 3*n+3*tcpDataHeaders),
	}
	l.rx.buf = make([]byte, tcpReceiveBuffer)
	return l
}

func (l *tcpLink) sqe(i int) *nvme.SQE { return (*pdu.CapsuleCmd)(l.capsules[i].header[:]).SQE() }

func (l *tcpLink) countsData() bool { return true }

// describe follows Linux: data to the controller travels in the capsule if it fits, everything else
// by a transport data block, which also is the null descriptor (TCP section 3.3.2).
func (l *tcpLink) describe(s *slot, _, capsule int) error {
	if l.admin || s.sqe.Opcode() == nvme.FabricsOpcode {
		capsule = pdu.AdminInCapsule
	}
	s.capsuled = s.dir == toCtrl && len(s.data) <= capsule
	if s.raw {
		return nil
	}
	if s.capsuled {
		s.sqe.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, uint32(len(s.data)))
	} else {
		s.sqe.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0,
			uint32(len(s.data)))
	}
	return nil
}

func (l *tcpLink) submit(q *Queue, i int) error {
	s := &q.slots[i]
	c := &l.capsules[i]
	n := 0
	if s.capsuled {
		n = len(s.data)
	}
	h := (*pdu.CapsuleCmd)(c.header[:])
	end := h.Set(&l.p, uint32(n))
	if l.p.HeaderDigest {
		pdu.PutHeaderDigest(c.header[:], pdu.CapsuleCmdSize)
	}
	l.push(c.header[:end])
	if n > 0 {
		l.pushData(s.data, &c.digest)
	}
	return nil
}

// push appends a vector to what is to be sent.
func (l *tcpLink) push(b []byte) {
	if l.txEnd == len(l.tx) {
		n := copy(l.tx, l.tx[l.txHead:])
		l.txHead, l.txEnd = 0, n
	}
	sys.SetIovec(&l.tx[l.txEnd], b)
	l.txEnd++
}

func (l *tcpLink) pushData(b []byte, digest *[pdu.DigestSize]byte) {
	l.push(b)
	if l.p.DataDigest {
		pdu.PutCRC(digest[:], pdu.CRC(0, b))
		l.push(digest[:])
	}
}

// flush sends until everything is sent, the socket is full, or about a turn's bytes have left.
func (l *tcpLink) flush(q *Queue) error {
	for left := 0; left < l.turn; {
		l.buildData(q)
		if l.txHead == l.txEnd {
			return nil
		}
		n, errno := sys.Sendmsg(l.fd, l.batch(l.turn-left), 0)
		if errno == unix.EAGAIN {
			return nil
		}
		if errno != 0 {
			return fmt.Errorf("%w: send: %w", ErrClosed, errno)
		}
		l.sent(n)
		left += n
	}
	return nil
}

// batch is the vectors of about the next n bytes to be sent.
func (l *tcpLink) batch(n int) []sys.Iovec {
	end := l.txHead
	for most := min(l.txEnd, l.txHead+sys.MaxIovecs); end < most && n > 0; end++ {
		n -= int(l.tx[end].Len)
	}
	return l.tx[l.txHead:end]
}

// sent takes n bytes off the vectors.
func (l *tcpLink) sent(n int) {
	batch := l.tx[l.txHead:l.txEnd]
	l.txHead = l.txEnd - len(sys.Advance(batch, n))
	if l.txHead == l.txEnd {
		clear(l.tx[:l.txEnd])
		l.txHead, l.txEnd, l.dataUsed = 0, 0, 0
	}
}

// buildData turns R2Ts, up to about tcpTurn bytes, into H2CData PDUs of at most MAXH2CDATA bytes,
// in the order the R2Ts came (TCP section 3.3.2.2).
func (l *tcpLink) buildData(q *Queue) {
	for built := 0; l.r2tN > 0 && l.dataUsed < tcpDataHeaders && built < tcpTurn; {
		s := &q.slots[l.r2t[l.r2tHead]]
		n := min(s.r2tLeft, l.p.MaxH2CData)
		var flags pdu.Flags
		if n == s.r2tLeft {
			flags = pdu.LastPDU
		}
		d := &l.data[l.dataUsed]
		l.dataUsed++
		end := (*pdu.Data)(d.header[:]).SetH2C(&l.p, flags, s.cid, s.r2tTag, s.r2tOff, n)
		if l.p.HeaderDigest {
			pdu.PutHeaderDigest(d.header[:], pdu.DataSize)
		}
		l.push(d.header[:end])
		l.pushData(s.data[s.r2tOff:s.r2tOff+n], &d.digest)
		built += int(n)
		s.r2tOff += n
		s.r2tLeft -= n
		if s.r2tLeft == 0 {
			l.r2tHead = (l.r2tHead + 1) % len(l.r2t)
			l.r2tN--
		}
	}
}

func (l *tcpLink) poll(q *Queue) error {
	if err := l.flush(q); err != nil {
		return err
	}
	if err := l.receive(q); err != nil {
		return err
	}
	if l.r2tN > 0 {
		return l.flush(q)
	}
	return nil
}

func (l *tcpLink) wait(q *Queue, wakeFD int, d time.Duration) error {
	if err := l.flush(q); err != nil {
		return q.fail(err)
	}
	l.fds = [2]unix.PollFd{
		{Fd: int32(l.fd), Events: unix.POLLIN},
		{Fd: int32(wakeFD), Events: unix.POLLIN},
	}
	if l.txHead != l.txEnd || l.r2tN > 0 { // flush ends before everything is sent
		l.fds[0].Events |= unix.POLLOUT
	}
	return pollFor(l.fds[:], d)
}

// pollFor is poll(2), rounded up to milliseconds; a signal ends it early.
func pollFor(fds []unix.PollFd, d time.Duration) error {
	_, err := unix.Poll(fds, int((d+time.Millisecond-1)/time.Millisecond))
	if err == unix.EINTR {
		err = nil
	}
	return err
}

func (l *tcpLink) close() error {
	if l.closed {
		return nil
	}
	l.closed = true
	return unix.Close(l.fd)
}
