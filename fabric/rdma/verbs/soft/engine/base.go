package engine

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// A Base is the part of a queue pair that does not depend on the protocol: the objects that it
// uses, which cannot be destroyed before End, and the completion of work requests. The holder
// of the engine uses it; Dev, Eng, PD and Own do not change after Create.
type Base struct {
	Handle
	Dev            *Device
	Eng            *Engine
	PD             *PD
	SendCQ, RecvCQ *CQ
	RQ             RecvQueue
	Own            *RecvRing    // RQ unless that is an SRQ
	Recv           verbs.RecvWR // taken last
	Pieces         [][]byte     // memory found by Locate
	Overrun        bool         // a completion queue has failed: the queue pair fails when it runs
	holds          []interface {
		Hold() error
		Release()
	}
}

// Create fills in a Base from the parameters of a queue pair, and attaches ep, the queue pair, to
// its engine. Both completion queues must belong to one engine.
func (b *Base) Create(ep Endpoint, vpd verbs.PD, init verbs.QPInit) (err error) {
	pd, ok := vpd.(*PD)
	if !ok {
		return fmt.Errorf("create queue pair: protection domain of another device: %w", unix.EINVAL)
	}
	scq, ok1 := init.SendCQ.(*CQ)
	rcq, ok2 := init.RecvCQ.(*CQ)
	a := &pd.dev.attr
	switch {
	case !ok1 || !ok2 || scq.engine != rcq.engine || scq.engine.dev != pd.dev:
		return fmt.Errorf("create queue pair: both completion queues must be of this device and "+
			"have the same vector: %w", unix.EINVAL)
	case init.MaxSendWR < 0 || init.MaxSendWR > a.MaxQPWR || init.MaxRecvWR < 0 ||
		init.MaxRecvWR > a.MaxQPWR || init.MaxSendSGE < 0 || init.MaxSendSGE > a.MaxSGE ||
		init.MaxRecvSGE < 0 || init.MaxRecvSGE > a.MaxSGE:
		return fmt.Errorf("create queue pair: %d send and %d receive work requests with %d and %d "+
			"elements, the device has %d with %d: %w", init.MaxSendWR, init.MaxRecvWR,
			init.MaxSendSGE, init.MaxRecvSGE, a.MaxQPWR, a.MaxSGE, unix.EINVAL)
	}
	b.Dev, b.Eng, b.PD, b.SendCQ, b.RecvCQ = pd.dev, scq.engine, pd, scq, rcq
	b.Pieces = make([][]byte, 0, max(init.MaxSendSGE, len(verbs.RecvWR{}.SGE)))
	b.holds = append(b.holds, pd, scq, rcq)
	if init.SRQ != nil {
		srq, ok := init.SRQ.(*SRQ)
		if !ok {
			return fmt.Errorf("create queue pair: shared receive queue of another device: %w",
				unix.EINVAL)
		}
		b.RQ = srq
		b.holds = append(b.holds, srq)
	} else {
		if b.Own, err = NewRecvRing(init.MaxRecvWR, init.MaxRecvSGE); err != nil {
			return fmt.Errorf("create queue pair: %w", err)
		}
		b.RQ = b.Own
	}
	for i, h := range b.holds {
		if err = h.Hold(); err != nil {
			b.holds = b.holds[:i]
			b.release()
			return fmt.Errorf("create queue pair: an object of it was destroyed: %w", err)
		}
	}
	b.Eng.Do(func() { _, err = b.Eng.Attach(ep) })
	if err != nil {
		b.release()
	}
	return err
}

// End ends the queue pair and lets its objects be destroyed. It calls fn with the engine held.
func (b *Base) End(fn func()) error {
	if stuck := b.Dev.opts.Stuck; stuck != nil && stuck.Load() {
		return unix.EBUSY
	}
	b.Eng.Do(func() {
		fn()
		b.Eng.Detach(b.qpn)
	})
	b.release()
	return nil
}

func (b *Base) release() {
	for _, h := range b.holds {
		h.Release()
	}
	b.holds = nil
}

// Num implements verbs.QP.
func (b *Base) Num() uint32 { return b.qpn }

// MaxInline implements verbs.QP: inline data is not offered.
func (b *Base) MaxInline() int { return 0 }

// Locate finds the bytes [off, off+n) of the elements and keeps them in Pieces. It reports whether
// the keys allow the access and the elements have these bytes. It is called for each packet or
// segment, because a region may be deregistered in between. Engine held.
func (b *Base) Locate(sges []verbs.SGE, off, n uint32, need verbs.Access) bool {
	b.Pieces = b.Pieces[:0]
	for i := 0; i < len(sges) && n > 0; i++ {
		s := sges[i]
		if off >= s.Length {
			off -= s.Length
			continue
		}
		s.Addr += uint64(off)
		s.Length = min(n, s.Length-off)
		p, ok := b.Dev.Local(b.PD, s, need)
		if !ok {
			return false
		}
		b.Pieces = append(b.Pieces, p)
		n, off = n-s.Length, 0
	}
	return n == 0
}

// badOpcode is the opcode of failed completions, where it has no meaning.
const badOpcode verbs.WCOpcode = 0xbad

// CompleteSend completes a work request of the send queue. Engine held.
func (b *Base) CompleteSend(id uint64, op verbs.SendOpcode, bytes uint32, status verbs.WCStatus) {
	wc := verbs.WC{WRID: id, Status: status, QPNum: b.qpn, Opcode: badOpcode}
	if status == verbs.WCSuccess {
		wc.ByteLen = bytes
		switch op {
		case verbs.WRRDMAWrite:
			wc.Opcode = verbs.WCRDMAWrite
		case verbs.WRRDMARead:
			wc.Opcode = verbs.WCRDMARead
		default:
			wc.Opcode = verbs.WCSend
		}
	}
	b.push(b.SendCQ, &wc)
}

// CompleteRecv completes Recv, with the fields of wc that depend on the message. Engine held.
func (b *Base) CompleteRecv(wc verbs.WC) {
	wc.WRID, wc.QPNum, wc.Opcode = b.Recv.WRID, b.qpn, verbs.WCRecv
	if wc.Status != verbs.WCSuccess {
		wc.Opcode = badOpcode
	}
	b.push(b.RecvCQ, &wc)
}

// FlushRecvs completes the receives of the queue pair's own queue, as flushed, and Recv as well if
// a message for it has begun. Engine held.
func (b *Base) FlushRecvs(begun bool) {
	if begun {
		b.CompleteRecv(verbs.WC{Status: verbs.WCWRFlushErr})
	}
	for b.Own != nil && b.Own.Take(&b.Recv) {
		b.CompleteRecv(verbs.WC{Status: verbs.WCWRFlushErr})
	}
}

func (b *Base) push(cq *CQ, wc *verbs.WC) {
	if !cq.Push(wc) && !b.Overrun {
		b.Overrun = true
		b.Eng.Schedule(&b.Handle)
	}
}
