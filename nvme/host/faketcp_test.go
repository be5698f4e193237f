package host

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// fakeTCP is a small NVMe/TCP controller, one goroutine per connection, with one namespace of
// 512-byte blocks in memory.
type fakeTCP struct {
	addr netip.AddrPort
	ln   net.Listener
	wg   sync.WaitGroup

	maxH2C, r2t, c2h uint32 // largest H2CData, R2T and C2HData
	success          bool   // use the success flag if it may
	cpda             uint8

	core *fakeCore
	mu   sync.Mutex
	cons []net.Conn

	// override, if set, is called with every command and answers it if it returns true.
	override func(c *fakeConn, sqe *nvme.SQE) bool
}

type fakeConn struct {
	f *fakeTCP
	c net.Conn
	p pdu.Params
	fakeQueue
	writes map[uint16]*fakeWrite // by CID
}

type fakeWrite struct {
	sqe  nvme.SQE
	data []byte
	got  uint32
	end  uint32 // of the R2T outstanding
}

func newFakeTCP(t *testing.T, configure ...func(*fakeTCP)) *fakeTCP {
	t.Helper()
	ln := testutil.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	f := &fakeTCP{
		ln: ln, addr: netip.MustParseAddrPort(ln.Addr().String()), maxH2C: 8192,
		r2t: 16384, c2h: 12288, core: new(fakeCore),
	}
	for _, fn := range configure {
		fn(f)
	}
	f.wg.Add(1)
	go func() {
		defer f.wg.Done()
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.cons = append(f.cons, c)
			f.mu.Unlock()
			f.wg.Add(1)
			go func() {
				defer f.wg.Done()
				defer c.Close()
				fc := &fakeConn{f: f, c: c, writes: map[uint16]*fakeWrite{}}
				_ = fc.serve()
			}()
		}
	}()
	t.Cleanup(func() {
		f.ln.Close()
		f.mu.Lock()
		for _, c := range f.cons {
			c.Close()
		}
		f.mu.Unlock()
		f.wg.Wait()
	})
	return f
}

func (c *fakeConn) readPDU() ([]byte, error) {
	b := make([]byte, pdu.HeaderSize)
	if _, err := io.ReadFull(c.c, b); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(b[4:])
	b = append(b, make([]byte, n-pdu.HeaderSize)...)
	_, err := io.ReadFull(c.c, b[pdu.HeaderSize:])
	return b, err
}

func (c *fakeConn) serve() error {
	b, err := c.readPDU()
	if err != nil {
		return err
	}
	req := (*pdu.IC)(b)
	c.p = pdu.Params{
		HeaderDigest: req.HeaderDigest(), DataDigest: req.DataDigest(), HPDA: req.PDA(),
		MaxH2CData: c.f.maxH2C, CPDA: c.f.cpda, InCapsule: 8192,
	}
	resp := pdu.ICResp(&c.p)
	if _, err := c.c.Write(resp[:]); err != nil {
		return err
	}
	for {
		b, err := c.readPDU()
		if err != nil {
			return err
		}
		h := (*pdu.Header)(b)
		if f := c.p.CheckFromHost(h); !f.OK() {
			return f
		}
		data := b[len(b)-int(c.p.DataLength(h))-c.p.DataDigestSize():]
		if c.p.DataLength(h) > 0 && c.p.DataDigest {
			n := len(data) - pdu.DigestSize
			if pdu.GetCRC(data[n:]) != pdu.CRC(0, data[:n]) {
				return pdu.Fault{FES: pdu.FESHeaderDigest}
			}
			data = data[:n]
		}
		if h.Type() == pdu.TypeH2CData {
			err = c.writeData((*pdu.Data)(b), data)
		} else {
			err = c.command((*pdu.CapsuleCmd)(b).SQE(), data)
		}
		if err != nil {
			return err
		}
	}
}

func (c *fakeConn) command(sqe *nvme.SQE, data []byte) error {
	c.fetched()
	if c.f.override != nil && c.f.override(c, sqe) {
		return nil
	}
	if sqe.Opcode() == nvme.NVMWrite && sqe.SGL1().Type() == nvme.SGLTransportDataBlock {
		w := &fakeWrite{sqe: *sqe, data: make([]byte, sqe.SGL1().Length())}
		c.writes[sqe.CID()] = w
		return c.requestData(w)
	}
	return c.f.core.command(c, &c.fakeQueue, sqe, data)
}

// sendData sends C2HData and the response.
func (c *fakeConn) sendData(cid uint16, data []byte) error {
	for off := uint32(0); off < uint32(len(data)); {
		n := min(uint32(len(data))-off, c.f.c2h)
		var flags pdu.Flags
		last := off+n == uint32(len(data))
		success := last && c.f.success && c.noFlow
		if last {
			flags |= pdu.LastPDU
		}
		if success {
			flags |= pdu.Success
		}
		if err := c.write(c.dataPDU(flags, cid, off, data[off:off+n])); err != nil {
			return err
		}
		if off += n; success {
			return nil
		}
	}
	return c.respond(cid, 0, 0)
}

func (c *fakeConn) dataPDU(flags pdu.Flags, cid uint16, off uint32, data []byte) []byte {
	var d pdu.Data
	b := make([]byte, d.SetC2H(&c.p, flags, cid, off, uint32(len(data))))
	copy(b, d[:])
	if c.p.HeaderDigest {
		pdu.PutHeaderDigest(b, pdu.DataSize)
	}
	b = append(b, data...)
	if c.p.DataDigest {
		b = binary.LittleEndian.AppendUint32(b, pdu.CRC(0, data))
	}
	return b
}

func (c *fakeConn) r2tPDU(cid, ttag uint16, off, n uint32) []byte {
	var r pdu.Data
	r.SetR2T(&c.p, cid, ttag, off, n)
	return c.plain(r[:])
}

func (c *fakeConn) requestData(w *fakeWrite) error {
	n := min(uint32(len(w.data))-w.got, c.f.r2t)
	w.end = w.got + n
	return c.write(c.r2tPDU(w.sqe.CID(), w.sqe.CID()^0x5555, w.got, n))
}

func (c *fakeConn) writeData(d *pdu.Data, data []byte) error {
	w := c.writes[d.CCCID()]
	last := d.Header().Flags()&pdu.LastPDU != 0
	if w == nil || d.TTAG() != d.CCCID()^0x5555 || d.DATAO() != w.got ||
		last != (w.got+d.DATAL() == w.end) ||
		d.DATAL() > c.f.maxH2C {
		return pdu.Fault{FES: pdu.FESSequence}
	}
	copy(w.data[w.got:], data)
	w.got += d.DATAL()
	switch {
	case w.got == uint32(len(w.data)):
		delete(c.writes, d.CCCID())
		c.f.core.store(&w.sqe, w.data)
		return c.respond(d.CCCID(), 0, 0)
	case w.got == w.end:
		return c.requestData(w)
	}
	return nil
}

func (c *fakeConn) respond(cid uint16, result uint64, st nvme.Status) error {
	cqe := c.cqe(cid, result, st)
	return c.write(c.respPDU(&cqe))
}

func (c *fakeConn) respPDU(cqe *nvme.CQE) []byte {
	var r pdu.CapsuleResp
	r.Set(&c.p, cqe)
	return c.plain(r[:])
}

func (c *fakeConn) plain(b []byte) []byte {
	if !c.p.HeaderDigest {
		return b
	}
	b = append(append([]byte(nil), b...), 0, 0, 0, 0)
	pdu.PutHeaderDigest(b, len(b)-pdu.DigestSize)
	return b
}

func (c *fakeConn) write(b []byte) error {
	_, err := c.c.Write(b)
	return err
}
