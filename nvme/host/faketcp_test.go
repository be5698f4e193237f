package host

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// fakeTCP is a small NVMe/TCP controller, one goroutine per connection, with one namespace of 512-byte blocks in memory. It does
// what it is told to do wrong.
type fakeTCP struct {
	addr netip.AddrPort
	ln   net.Listener
	wg   sync.WaitGroup

	maxH2C, r2t, c2h uint32 // largest H2CData, R2T and C2HData
	success          bool   // use the success flag if it may
	cpda             uint8

	mu   sync.Mutex
	disk [4 << 20]byte
	cons []net.Conn
	cc   nvme.CC

	// evil, if set, sees every command and answers it itself if it returns true.
	evil func(c *fakeConn, sqe *nvme.SQE) bool
}

type fakeConn struct {
	f      *fakeTCP
	c      net.Conn
	p      pdu.Params
	size   uint32
	sqhd   uint16
	noFlow bool
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
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeTCP{ln: ln, addr: netip.MustParseAddrPort(ln.Addr().String()), maxH2C: 8192, r2t: 16384, c2h: 12288}
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
	req := (*pdu.ICReq)(b)
	c.p = pdu.Params{
		HeaderDigest: req.HeaderDigest(), DataDigest: req.DataDigest(), HPDA: req.HPDA(),
		MaxH2CData: c.f.maxH2C, CPDA: c.f.cpda, InCapsule: 8192,
	}
	var resp pdu.ICResp
	resp.Set(&c.p)
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
			err = c.takeData((*pdu.Data)(b), data)
		} else {
			err = c.command((*pdu.CapsuleCmd)(b).SQE(), data)
		}
		if err != nil {
			return err
		}
	}
}

func (c *fakeConn) command(sqe *nvme.SQE, data []byte) error {
	if c.size == 0 {
		c.size = 2
	}
	c.sqhd = uint16((uint32(c.sqhd) + 1) % c.size)
	if c.f.evil != nil && c.f.evil(c, sqe) {
		return nil
	}
	if sqe.Opcode() == nvme.FabricsOpcode {
		return c.fabrics(sqe, data)
	}
	cid := sqe.CID()
	switch {
	case c.size == 33: // the admin queue of these tests
		return c.adminCommand(sqe)
	case sqe.Opcode() == nvme.NVMRead:
		c.f.mu.Lock()
		b := append([]byte(nil), c.f.disk[sqe.SLBA()*512:][:sqe.SGL1().Length()]...)
		c.f.mu.Unlock()
		return c.sendData(cid, b)
	case sqe.Opcode() == nvme.NVMWrite && sqe.SGL1().Type() == nvme.SGLTransportDataBlock:
		w := &fakeWrite{sqe: *sqe, data: make([]byte, sqe.SGL1().Length())}
		c.writes[cid] = w
		return c.askData(w)
	case sqe.Opcode() == nvme.NVMWrite:
		c.store(sqe, data)
		return c.respond(cid, 0, 0)
	case sqe.Opcode() == nvme.NVMFlush, sqe.Opcode() == nvme.NVMDatasetManagement:
		return c.respond(cid, 0, 0)
	}
	return c.respond(cid, 0, nvme.InvalidOpcode|nvme.DNR)
}

func (c *fakeConn) fabrics(sqe *nvme.SQE, data []byte) error {
	p := sqe.Property()
	switch sqe.FabricsType() {
	case nvme.FabricsConnect:
		c.size = uint32(sqe.Connect().SQSIZE()) + 1
		c.noFlow = sqe.Connect().CATTR()&nvme.CATTRNoFlowControl != 0
		if d, _ := nvme.ParseConnectData(data); string(d.SUBNQN[:4]) == "nqn.bad"[:4] && d.SUBNQN[4] == 'b' {
			return c.respond(sqe.CID(), uint64(nvme.InvalidInData(256)), nvme.ConnectInvalidParameters|nvme.DNR)
		}
		return c.respond(sqe.CID(), 7, 0)
	case nvme.FabricsPropertySet:
		c.f.mu.Lock()
		c.f.cc = nvme.CC(p.Value())
		c.f.mu.Unlock()
		return c.respond(sqe.CID(), 0, 0)
	}
	v := uint64(0)
	switch p.Offset() {
	case nvme.PropertyCAP:
		v = uint64(nvme.MakeCAP(128, 4, nvme.CAPCSSNVM))
	case nvme.PropertyVS:
		v = uint64(nvme.Version14)
	case nvme.PropertyCSTS:
		c.f.mu.Lock()
		if c.f.cc.EN() {
			v = uint64(nvme.CSTSReady)
		}
		if c.f.cc.SHN() != 0 {
			v = uint64(nvme.CSTSReady | nvme.CSTSShutdownComplete)
		}
		c.f.mu.Unlock()
	}
	return c.respond(sqe.CID(), v, 0)
}

func (c *fakeConn) adminCommand(sqe *nvme.SQE) error {
	cid := sqe.CID()
	switch sqe.Opcode() {
	case nvme.AdminKeepAlive:
		return c.respond(cid, 0, 0)
	case nvme.AdminSetFeatures:
		return c.respond(cid, uint64(nvme.MakeNumberOfQueues(3)), 0)
	case nvme.AdminAsyncEventReq:
		return nil
	case nvme.AdminIdentify:
		id := nvme.IdentifyController{CNTLID: 7, KAS: 10, IOCCSZ: 68, IORCSZ: 1, SGLS: nvme.SGLSSupported, MDTS: 8, NN: 1}
		switch sqe.Identify().CNS() {
		case nvme.CNSController:
			return c.sendData(cid, id.Append(nil))
		case nvme.CNSActiveNamespaces:
			return c.sendData(cid, nvme.AppendNamespaceList(nil, []uint32{1}))
		}
	}
	return c.respond(cid, 0, nvme.InvalidField|nvme.DNR)
}

func (c *fakeConn) store(sqe *nvme.SQE, data []byte) {
	c.f.mu.Lock()
	copy(c.f.disk[sqe.SLBA()*512:], data)
	c.f.mu.Unlock()
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
	var r pdu.R2T
	r.Set(&c.p, cid, ttag, off, n)
	return c.plain(r[:])
}

func (c *fakeConn) askData(w *fakeWrite) error {
	n := min(uint32(len(w.data))-w.got, c.f.r2t)
	w.end = w.got + n
	return c.write(c.r2tPDU(w.sqe.CID(), w.sqe.CID()^0x5555, w.got, n))
}

func (c *fakeConn) takeData(d *pdu.Data, data []byte) error {
	w := c.writes[d.CCCID()]
	last := d.Header().Flags()&pdu.LastPDU != 0
	if w == nil || d.TTAG() != d.CCCID()^0x5555 || d.DATAO() != w.got || last != (w.got+d.DATAL() == w.end) ||
		d.DATAL() > c.f.maxH2C {
		return pdu.Fault{FES: pdu.FESSequence}
	}
	copy(w.data[w.got:], data)
	w.got += d.DATAL()
	switch {
	case w.got == uint32(len(w.data)):
		delete(c.writes, d.CCCID())
		c.store(&w.sqe, w.data)
		return c.respond(d.CCCID(), 0, 0)
	case w.got == w.end:
		return c.askData(w)
	}
	return nil
}

func (c *fakeConn) respond(cid uint16, result uint64, st nvme.Status) error {
	var cqe nvme.CQE
	sqhd := c.sqhd
	if c.noFlow {
		sqhd = 0xFFFF
	}
	cqe.Fill(result, sqhd, cid, st)
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
