package host

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// tcpReceiver is the receiving side of a link. Small data is copied out of buf. The missing part of
// large data is received straight into the memory of its command, with buf after it for the bytes
// that follow.
type tcpReceiver struct {
	buf  []byte
	r, w int // buf[r:w] is not parsed yet

	// The C2HData that is being received.
	slot   int
	dest   []byte // destination of its missing bytes
	crc    uint32
	flags  pdu.Flags
	inData bool // its data or data digest is incomplete

	iov [2]sys.Iovec
	cqe nvme.CQE // the completion that a success flag stands for
}

// receive processes the data in the socket, up to about tcpTurn bytes.
func (l *tcpLink) receive(q *Queue) error {
	rx := &l.rx
	for received := 0; received < tcpTurn; {
		if rx.r == rx.w {
			rx.r, rx.w = 0, 0
		} else if rx.r > 0 && len(rx.buf)-rx.w < len(rx.buf)/4 {
			rx.w = copy(rx.buf, rx.buf[rx.r:rx.w])
			rx.r = 0
		}
		n, drained, errno := l.recv()
		switch {
		case errno == unix.EAGAIN:
			return nil
		case errno != 0:
			return fmt.Errorf("%w: receive: %w", ErrClosed, l.tls.explain(errno))
		case n == 0:
			return fmt.Errorf("%w by the controller", ErrClosed)
		}
		received += n
		if err := l.parse(q); err != nil {
			return err
		}
		if drained {
			return nil
		}
	}
	return nil
}

// recv makes one system call, and returns the bytes received and whether no more were there.
func (l *tcpLink) recv() (n int, drained bool, errno unix.Errno) {
	rx := &l.rx
	if len(rx.dest) < tcpDirectReceive || rx.r != rx.w {
		sys.SetIovec(&rx.iov[0], rx.buf[rx.w:])
		n, drained, errno = l.recvmsg(rx.iov[:1])
		if n > 0 {
			rx.w += n
		}
		return n, drained, errno
	}
	sys.SetIovec(&rx.iov[0], rx.dest)
	sys.SetIovec(&rx.iov[1], rx.buf)
	n, drained, errno = l.recvmsg(rx.iov[:])
	rx.iov[0] = sys.Iovec{}
	if n > 0 {
		direct := min(n, len(rx.dest))
		if l.p.DataDigest {
			rx.crc = pdu.CRC(rx.crc, rx.dest[:direct])
		}
		rx.dest = rx.dest[direct:]
		rx.r, rx.w = 0, n-direct
	}
	return n, drained, errno
}

// parse processes the complete PDUs and the data in the buffer.
func (l *tcpLink) parse(q *Queue) error {
	rx := &l.rx
	for {
		if rx.inData {
			if more, err := l.parseData(q); !more || err != nil {
				return err
			}
			continue
		}
		b := rx.buf[rx.r:rx.w]
		if len(b) < pdu.HeaderSize {
			return nil
		}
		h := (*pdu.Header)(b)
		if f := l.p.CheckFromController(h, maxC2HData); !f.OK() {
			return q.violation("%s: %v: header % x", h.Type(), f, h[:])
		}
		n := h.HLEN() + l.headerDigest(h)
		if h.Type() == pdu.TypeC2HData {
			n = h.PDO()
		}
		if len(b) < n {
			return nil
		}
		if l.headerDigest(h) > 0 && !pdu.HeaderDigestOK(b, h.HLEN()) {
			return q.violation("%s: header digest is wrong", h.Type())
		}
		rx.r += n
		if err := l.dispatch(q, h.Type(), b[:n]); err != nil {
			return err
		}
	}
}

func (l *tcpLink) headerDigest(h *pdu.Header) int {
	if h.Type() == pdu.TypeC2HTermReq {
		return 0 // has no digest (TCP section 3.6.2.5)
	}
	return l.p.HeaderDigestSize()
}

func (l *tcpLink) dispatch(q *Queue, t pdu.Type, b []byte) error {
	switch t {
	case pdu.TypeCapsuleResp:
		return q.complete((*pdu.CapsuleResp)(b[:pdu.CapsuleRespSize]).CQE(), true)
	case pdu.TypeC2HData:
		return l.startData(q, (*pdu.Data)(b[:pdu.DataSize]), b)
	case pdu.TypeR2T:
		return l.addR2T(q, (*pdu.Data)(b[:pdu.DataSize]))
	case pdu.TypeC2HTermReq:
		return fmt.Errorf("%w by C2HTermReq: %w", ErrClosed,
			(*pdu.TermReq)(b[:pdu.TermReqSize]).Fault())
	}
	return q.violation("unexpected %s", t)
}

// startData validates the header of a C2HData (TCP section 3.6.2.9). Linux appends the data to that
// of the previous PDU, so the offsets must be consecutive.
func (l *tcpLink) startData(q *Queue, d *pdu.Data, whole []byte) error {
	s, i := q.find(d.CCCID())
	if s == nil {
		return q.violation("C2HData for CID %#x, which is not outstanding", d.CCCID())
	}
	if f := d.Check(&l.p); !f.OK() {
		return q.violation("C2HData: %v: % x", f, d[:])
	}
	left := uint32(len(s.data)) - s.moved
	flags := d.Header().Flags()
	switch {
	case s.dir != toHost:
		return q.violation("C2HData for CID %#x, opcode %#x, which has no data to the host", s.cid,
			s.sqe.Opcode())
	case d.DATAO() != s.moved:
		return q.violation("C2HData for CID %#x at offset %d, expected %d", s.cid, d.DATAO(),
			s.moved)
	case d.DATAL() > left:
		return q.violation("C2HData for CID %#x: %d bytes, %d are missing", s.cid, d.DATAL(), left)
	case !q.tolerant && (d.TTAG() != 0 || [4]byte(d[20:]) != [4]byte{}):
		return q.violation("C2HData: reserved bytes are not zero: % x", d[:])
	case (flags&pdu.LastPDU != 0) != (d.DATAL() == left) && !s.raw:
		return q.violation("C2HData for CID %#x: last %t with %d of %d bytes", s.cid,
			flags&pdu.LastPDU != 0, d.DATAL(), left)
	case flags&pdu.Success != 0 && (flags&pdu.LastPDU == 0 || q.flow && !q.tolerant):
		return q.violation("C2HData for CID %#x: success flag with flags %#x, flow control %t",
			s.cid, flags, q.flow)
	}
	for _, pad := range whole[pdu.DataSize+l.p.HeaderDigestSize():] {
		if pad != 0 && !q.tolerant {
			return q.violation("C2HData: padding is not zero")
		}
	}
	l.rx.slot, l.rx.flags, l.rx.crc = i, flags, 0
	l.rx.dest, l.rx.inData = s.data[s.moved:s.moved+d.DATAL()], true
	s.moved += d.DATAL()
	return nil
}

// parseData copies data out of the buffer and ends the PDU. more is false if bytes are missing.
func (l *tcpLink) parseData(q *Queue) (more bool, err error) {
	rx := &l.rx
	if len(rx.dest) > 0 {
		n := copy(rx.dest, rx.buf[rx.r:rx.w])
		if l.p.DataDigest {
			rx.crc = pdu.CRC(rx.crc, rx.dest[:n])
		}
		rx.dest, rx.r = rx.dest[n:], rx.r+n
		if len(rx.dest) > 0 {
			return false, nil
		}
	}
	if l.p.DataDigest {
		if rx.w-rx.r < pdu.DigestSize {
			return false, nil
		}
		if got := pdu.GetCRC(rx.buf[rx.r:]); got != rx.crc {
			return false, q.violation("C2HData for CID %#x: data digest %#x, should be %#x",
				q.slots[rx.slot].cid, got, rx.crc)
		}
		rx.r += pdu.DigestSize
	}
	rx.inData, rx.dest = false, nil
	if rx.flags&pdu.Success != 0 {
		rx.cqe.Fill(0, 0, q.slots[rx.slot].cid, nvme.Success)
		return true, q.complete(&rx.cqe, false)
	}
	return true, nil
}

// addR2T validates an R2T (TCP section 3.6.2.10), one per command, and queues it for buildData.
func (l *tcpLink) addR2T(q *Queue, r *pdu.Data) error {
	s, _ := q.find(r.CCCID())
	if s == nil {
		return q.violation("R2T for CID %#x, which is not outstanding", r.CCCID())
	}
	n := uint32(len(s.data))
	switch {
	case s.dir != toCtrl || s.capsuled:
		return q.violation("R2T for CID %#x, opcode %#x, which has no data left to send", s.cid,
			s.sqe.Opcode())
	case s.r2tLeft != 0:
		return q.violation("R2T for CID %#x while another is outstanding", s.cid)
	case r.DATAL() == 0 || r.DATAO() != s.moved || r.DATAL() > n-s.moved:
		return q.violation("R2T for CID %#x: offset %d length %d, %d of %d bytes were requested",
			s.cid, r.DATAO(), r.DATAL(), s.moved, n)
	case !q.tolerant && [4]byte(r[20:]) != [4]byte{}:
		return q.violation("R2T: reserved bytes are not zero")
	}
	s.r2tOff, s.r2tLeft, s.r2tTag = r.DATAO(), r.DATAL(), r.TTAG()
	s.moved += r.DATAL()
	l.r2ts.Push(s, &s.r2tNode)
	return nil
}
