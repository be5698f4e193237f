package host

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme"
)

const (
	tcpReceiveBuffer = 256 << 10
	tcpDirectReceive = 16 << 10 // at least this much missing data is received without the buffer
	tcpDataHeaders   = 64       // H2CData PDUs built at once
	// The approximate limit, in bytes, of one poll for receiving, and for sending without TCP.Turn.
	tcpTurn    = 256 << 10
	maxC2HData = 1 << 30 // limit of a C2HData before its command has been looked up
)

// tcpLink is the TCP connection of a queue. Sending: submit appends vectors (header, data, digest)
// to tx, and flush passes them to the kernel in one call; H2CData for R2Ts is built while headers
// are free. Receiving: tcp_receive.go.
type tcpLink struct {
	fd     int
	turn   int // bytes
	admin  bool
	p      pdu.Params
	closed bool

	capsules []tcpCapsule

	// tx[txHead:txEnd] are the vectors not yet sent.
	tx            []sys.Iovec
	txHead, txEnd int
	data          [tcpDataHeaders]tcpDataHeader
	dataUsed      int
	r2ts          list.List[slot] // commands with an R2T that is not completely answered

	rx  tcpReceiver
	tls tcpTLS
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
		tx: make([]sys.Iovec, 3*n+3*tcpDataHeaders),
	}
	l.rx.buf = make([]byte, tcpReceiveBuffer)
	return l
}

func (l *tcpLink) sqe(i int) *nvme.SQE { return (*pdu.CapsuleCmd)(l.capsules[i].header[:]).SQE() }

// describe follows Linux: in-capsule data for writes that fit, a transport data block for
// everything else, commands without data included (TCP section 3.3.2).
func (l *tcpLink) describe(s *slot, _, capsule int) error {
	if l.admin || s.sqe.Opcode() == nvme.FabricsOpcode {
		capsule = pdu.AdminInCapsule
	}
	s.capsuled = s.dir == toCtrl && len(s.data) <= capsule
	if s.raw {
		return nil
	}
	n := uint32(len(s.data))
	if s.capsuled {
		s.sqe.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, n)
	} else {
		s.sqe.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0, n)
	}
	return nil
}

// submit fails if the controller has completed commands that have not been sent: only then do more
// capsules wait than there are slots.
func (l *tcpLink) submit(q *Queue, i int) error {
	if l.txEnd-l.txHead > len(l.tx)-3 {
		return q.violation("completions of commands that have not been sent")
	}
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

// flush sends until everything is sent, the socket is full, or about a turn's bytes are sent.
func (l *tcpLink) flush() error {
	for sent := 0; sent < l.turn; {
		l.buildData()
		if l.txHead == l.txEnd && !l.tls.pending() {
			return nil
		}
		n, errno := l.sendmsg(l.batch(l.turn - sent))
		if errno == unix.EAGAIN {
			return nil
		}
		if errno != 0 {
			return fmt.Errorf("%w: send: %w", ErrClosed, l.tls.explain(errno))
		}
		l.advance(n)
		sent += n
	}
	return nil
}

// batch returns the next vectors to send, of about n bytes.
func (l *tcpLink) batch(n int) []sys.Iovec {
	end := l.txHead
	for most := min(l.txEnd, l.txHead+sys.MaxIovecs); end < most && n > 0; end++ {
		n -= int(l.tx[end].Len)
	}
	return l.tx[l.txHead:end]
}

func (l *tcpLink) advance(n int) {
	batch := l.tx[l.txHead:l.txEnd]
	l.txHead = l.txEnd - len(sys.Advance(batch, n))
	if l.txHead == l.txEnd {
		clear(l.tx[:l.txEnd])
		l.txHead, l.txEnd, l.dataUsed = 0, 0, 0
	}
}

// buildData answers R2Ts in the order of their arrival, with H2CData PDUs of at most MAXH2CDATA
// bytes and about tcpTurn bytes in all (TCP section 3.3.2.2).
func (l *tcpLink) buildData() {
	for built := 0; !l.r2ts.Empty() && l.dataUsed < tcpDataHeaders && built < tcpTurn; {
		s := l.r2ts.First()
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
			l.r2ts.Pop()
		}
	}
}

func (l *tcpLink) poll(q *Queue) error {
	if err := l.flush(); err != nil {
		return err
	}
	if err := l.receive(q); err != nil {
		return err
	}
	if !l.r2ts.Empty() {
		return l.flush()
	}
	return nil
}

func (l *tcpLink) wait(q *Queue, wakeFD int, d time.Duration) error {
	if err := l.flush(); err != nil {
		return q.fail(err)
	}
	if l.tls.ready() {
		return nil
	}
	l.fds = [2]unix.PollFd{
		{Fd: int32(l.fd), Events: unix.POLLIN},
		{Fd: int32(wakeFD), Events: unix.POLLIN},
	}
	if l.txHead != l.txEnd || !l.r2ts.Empty() || l.tls.pending() { // flush may leave data
		l.fds[0].Events |= unix.POLLOUT
	}
	return pollFor(l.fds[:], d)
}

// pollFor is poll(2) with a timeout rounded up to milliseconds; a signal ends it early.
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
	return errors.Join(unix.Close(l.fd), l.tls.close())
}
