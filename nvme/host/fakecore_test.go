package host

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// fakeCore is the part of a fake controller that does not depend on the transport: one namespace of
// 512-byte blocks in memory.
type fakeCore struct {
	mu   sync.Mutex
	disk [4 << 20]byte
	cc   nvme.CC
}

// fakeIO sends the responses of a fake controller.
type fakeIO interface {
	// sendData sends data and a successful response.
	sendData(cid uint16, data []byte) error
	respond(cid uint16, result uint64, st nvme.Status) error
}

// fakeQueue is the state of a submission queue.
type fakeQueue struct {
	size   uint32
	sqhd   uint16
	noFlow bool
}

// fetched counts a command.
func (q *fakeQueue) fetched() {
	if q.size == 0 {
		q.size = 2
	}
	q.sqhd = uint16((uint32(q.sqhd) + 1) % q.size)
}

func (q *fakeQueue) cqe(cid uint16, result uint64, st nvme.Status) (cqe nvme.CQE) {
	sqhd := q.sqhd
	if q.noFlow {
		sqhd = 0xFFFF
	}
	cqe.Fill(result, sqhd, cid, st)
	return cqe
}

// command executes a command after its data has arrived. A queue of 33 entries is an admin queue.
func (f *fakeCore) command(io fakeIO, q *fakeQueue, sqe *nvme.SQE, data []byte) error {
	cid := sqe.CID()
	switch {
	case sqe.Opcode() == nvme.FabricsOpcode:
		return f.fabrics(io, q, sqe, data)
	case q.size == 33:
		return f.admin(io, sqe)
	case sqe.Opcode() == nvme.NVMRead:
		f.mu.Lock()
		b := append([]byte(nil), f.disk[sqe.SLBA()*512:][:sqe.NLB()*512]...)
		f.mu.Unlock()
		return io.sendData(cid, b)
	case sqe.Opcode() == nvme.NVMWrite:
		f.store(sqe, data)
		return io.respond(cid, 0, 0)
	case sqe.Opcode() == nvme.NVMFlush, sqe.Opcode() == nvme.NVMDatasetManagement:
		return io.respond(cid, 0, 0)
	}
	return io.respond(cid, 0, nvme.InvalidOpcode|nvme.DNR)
}

func (f *fakeCore) fabrics(io fakeIO, q *fakeQueue, sqe *nvme.SQE, data []byte) error {
	p := sqe.Property()
	switch sqe.FabricsType() {
	case nvme.FabricsConnect:
		q.size = uint32(sqe.Connect().SQSIZE()) + 1
		q.noFlow = sqe.Connect().CATTR()&nvme.CATTRNoFlowControl != 0
		if d, _ := nvme.Parse[nvme.ConnectData](data); string(d.SUBNQN[:7]) == "nqn.bad" {
			return io.respond(sqe.CID(), uint64(nvme.InvalidInData(256)),
				nvme.ConnectInvalidParameters|nvme.DNR)
		}
		return io.respond(sqe.CID(), 7, 0)
	case nvme.FabricsPropertySet:
		f.mu.Lock()
		f.cc = nvme.CC(p.Value())
		f.mu.Unlock()
		return io.respond(sqe.CID(), 0, 0)
	}
	v := uint64(0)
	switch p.Offset() {
	case nvme.PropertyCAP:
		v = uint64(nvme.MakeCAP(128, 4, nvme.CAPCSSNVM))
	case nvme.PropertyVS:
		v = uint64(nvme.Version14)
	case nvme.PropertyCSTS:
		f.mu.Lock()
		if f.cc.EN() {
			v = uint64(nvme.CSTSReady)
		}
		if f.cc.SHN() != 0 {
			v = uint64(nvme.CSTSReady | nvme.CSTSShutdownComplete)
		}
		f.mu.Unlock()
	}
	return io.respond(sqe.CID(), v, 0)
}

func (f *fakeCore) admin(io fakeIO, sqe *nvme.SQE) error {
	cid := sqe.CID()
	switch sqe.Opcode() {
	case nvme.AdminKeepAlive:
		return io.respond(cid, 0, 0)
	case nvme.AdminSetFeatures:
		return io.respond(cid, uint64(nvme.MakeNumberOfQueues(3)), 0)
	case nvme.AdminAsyncEventReq:
		return nil
	case nvme.AdminIdentify:
		id := nvme.IdentifyController{
			CNTLID: 7, KAS: 10, IOCCSZ: 68, IORCSZ: 1,
			SGLS: nvme.SGLSSupported | nvme.SGLSKeyed | nvme.SGLSOffset, MDTS: 8, NN: 1,
		}
		switch sqe.Identify().CNS() {
		case nvme.CNSController:
			return io.sendData(cid, nvme.Append(nil, &id))
		case nvme.CNSActiveNamespaces:
			return io.sendData(cid, nvme.AppendNamespaceList(nil, []uint32{1}))
		}
	}
	return io.respond(cid, 0, nvme.InvalidField|nvme.DNR)
}

func (f *fakeCore) store(sqe *nvme.SQE, data []byte) {
	f.mu.Lock()
	copy(f.disk[sqe.SLBA()*512:], data)
	f.mu.Unlock()
}

const (
	fakeCapsule = 64 + 8192
	fakeData    = 1 << 20
)

// fakeRDMA is a small NVMe/RDMA controller on a fake fabric: one goroutine for connection events,
// one per queue, one command at a time.
type fakeRDMA struct {
	t    *testing.T
	fab  *verbstest.Fabric
	addr netip.AddrPort
	cm   verbs.CM
	core *fakeCore
	wg   sync.WaitGroup

	requests sync.Map // cmwire.Req by queue ID
	// reject, if not Accepted, refuses connections.
	reject cmwire.Status
	// override, if set, is called with every command and answers it if it returns true.
	override func(q *fakeRDMAQueue, sqe *nvme.SQE) bool
}

type fakeRDMAQueue struct {
	f *fakeRDMA
	fakeQueue
	id     verbs.ID
	pd     verbs.PD
	ch     verbs.CompChannel
	cq     verbs.CQ
	qp     verbs.QP
	region *mem.Region
	mr     verbs.MR
	depth  int
	wait   []verbs.WC // receives that completed while send waited

	mu    sync.Mutex
	ended bool

	sqe nvme.SQE // the current command
	key uint32   // of its data
}

func newFakeRDMA(t *testing.T, configure ...func(*fakeRDMA)) *fakeRDMA {
	t.Helper()
	fab := verbstest.New(verbstest.Options{})
	fab.AddHost("controller", verbstest.RoCE("fake0", netip.MustParseAddr("10.0.0.1")))
	f := &fakeRDMA{t: t, fab: fab, core: new(fakeCore)}
	for _, fn := range configure {
		fn(f)
	}
	var err error
	if f.cm, err = fab.Provider("controller").NewCM(); err != nil {
		t.Fatal(err)
	}
	f.addr = netip.AddrPortFrom(fab.Addr("controller"), 4420)
	listener := testutil.Value(f.cm.Listen(f.addr, 16, 0))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.events()
	}()
	t.Cleanup(func() {
		f.wg.Wait() // hosts have disconnected: their cleanup runs first
		testutil.Check(t, listener.Destroy())
		testutil.Check(t, f.cm.Close())
		<-done
		fab.Close()
		for _, machine := range []string{"controller", "host"} {
			testutil.Equal(t, fab.Live(machine), (verbstest.Counts{}), "%s: not freed", machine)
		}
	})
	return f
}

func (f *fakeRDMA) events() {
	for {
		ev, err := f.cm.Next()
		if err != nil {
			return
		}
		switch ev.Type {
		case verbs.EventConnectRequest:
			f.accept(ev)
		case verbs.EventEstablished, verbs.EventTimewaitExit:
		default: // the connection has ended, or failed before it was established
			if q, ok := ev.ID.Context().(*fakeRDMAQueue); ok {
				q.mu.Lock()
				if !q.ended {
					_ = q.id.Disconnect()
					_ = q.qp.ToError()
				}
				q.mu.Unlock()
			}
		}
	}
}

func (f *fakeRDMA) accept(ev verbs.Event) {
	f.wg.Add(1) // before the host sees the connection and the test may end
	if f.reject != cmwire.Accepted {
		defer f.wg.Done()
		_ = ev.ID.Reject(cmwire.Bytes(cmwire.Rej{Status: f.reject}))
		_ = ev.ID.Destroy()
		return
	}
	req, ok := cmwire.ParseReq(ev.Param.PrivateData)
	if !ok {
		f.t.Error("no private data")
		f.wg.Done()
		return
	}
	f.requests.Store(req.QID, req)
	q := &fakeRDMAQueue{f: f, id: ev.ID, depth: int(req.HSQSize) + 1}
	ev.ID.SetContext(q)
	q.must(q.create())
	q.must(ev.ID.Accept(verbs.ConnParam{
		PrivateData:    cmwire.Bytes(cmwire.Rep{CRQSize: uint16(q.depth)}),
		InitiatorDepth: ev.Param.InitiatorDepth, RNRRetryCount: 7, RetryCount: 7,
	}))
	go func() {
		defer f.wg.Done()
		q.serve()
		q.free()
	}()
}

func (q *fakeRDMAQueue) must(err error) { testutil.Check(q.f.t, err) }

func (q *fakeRDMAQueue) create() (err error) {
	dev := q.id.Device()
	if q.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	if q.ch, err = dev.CreateCompChannel(); err != nil {
		return err
	}
	if q.cq, err = dev.CreateCQ(4*q.depth+4, q.ch, 0); err != nil {
		return err
	}
	q.region, err = mem.Map("fake controller", q.depth*fakeCapsule+nvme.CQESize+fakeData)
	if err != nil {
		return err
	}
	if q.mr, err = q.pd.RegMR(q.region.Bytes(), verbs.AccessLocalWrite); err != nil {
		return err
	}
	q.qp, err = q.id.CreateQP(q.pd, verbs.QPInit{
		SendCQ: q.cq, RecvCQ: q.cq, MaxSendWR: 4, MaxRecvWR: q.depth, MaxSendSGE: 1, MaxRecvSGE: 1,
	})
	for i := range q.depth {
		q.post(i)
	}
	return err
}

func (q *fakeRDMAQueue) sge(off, n int) verbs.SGE {
	return verbs.SGE{
		Addr: mem.Addr(q.region.Bytes()) + uint64(off), Length: uint32(n),
		LKey: q.mr.LKey(),
	}
}

func (q *fakeRDMAQueue) post(i int) {
	_, err := q.qp.PostRecv([]verbs.RecvWR{{
		WRID: uint64(i), NumSGE: 1,
		SGE: [2]verbs.SGE{q.sge(i*fakeCapsule, fakeCapsule)},
	}})
	if err != nil {
		q.f.t.Log(err) // the connection ends
	}
}

// next waits for a work completion. It returns false if the connection has ended.
func (q *fakeRDMAQueue) next() (verbs.WC, bool) {
	for {
		var wc [1]verbs.WC
		n, err := q.cq.Poll(wc[:])
		q.must(err)
		if n == 1 {
			return wc[0], wc[0].Status == verbs.WCSuccess
		}
		q.must(q.cq.ReqNotify())
		if n, _ = q.cq.Poll(wc[:]); n == 1 {
			return wc[0], wc[0].Status == verbs.WCSuccess
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(q.ch.FD()), Events: unix.POLLIN}}, 5000)
		_, err = q.ch.Drain()
		q.must(err)
	}
}

func (q *fakeRDMAQueue) serve() {
	for {
		var wc verbs.WC
		if len(q.wait) > 0 {
			wc, q.wait = q.wait[0], q.wait[1:]
		} else if w, ok := q.next(); ok {
			wc = w
		} else {
			return
		}
		b := q.region.Bytes()[int(wc.WRID)*fakeCapsule:][:wc.ByteLen]
		q.sqe = nvme.SQE(b)
		data := append([]byte(nil), b[nvme.SQESize:]...)
		q.post(int(wc.WRID))
		q.fetched()
		d := q.sqe.SGL1()
		q.key = d.Key()
		if q.f.override != nil && q.f.override(q, &q.sqe) {
			continue
		}
		if dir := directionOf(&q.sqe); dir == toCtrl && d.Type() == nvme.SGLKeyedDataBlock &&
			d.KeyedLength() > 0 {
			data = q.dataArea()[:d.KeyedLength()]
			wr := verbs.SendWR{Opcode: verbs.WRRDMARead, RemoteAddr: d.Address(), RKey: d.Key()}
			if !q.send(wr, q.dataOff(), len(data)) {
				return
			}
		}
		if q.f.core.command(q, &q.fakeQueue, &q.sqe, data) != nil {
			return
		}
	}
}

func (q *fakeRDMAQueue) cqeOff() int      { return q.depth * fakeCapsule }
func (q *fakeRDMAQueue) dataOff() int     { return q.cqeOff() + nvme.CQESize }
func (q *fakeRDMAQueue) dataArea() []byte { return q.region.Bytes()[q.dataOff():] }

// send posts a work request on n bytes at off and waits for it.
func (q *fakeRDMAQueue) send(wr verbs.SendWR, off, n int) bool {
	wr.Flags, wr.NumSGE, wr.WRID = verbs.SendSignaled, 1, 1<<32
	if _, err := q.qp.PostSend([]verbs.SendWR{wr}, []verbs.SGE{q.sge(off, n)}); err != nil {
		return false
	}
	for {
		wc, ok := q.next()
		if !ok || wc.WRID == 1<<32 {
			return ok
		}
		q.wait = append(q.wait, wc)
	}
}

func (q *fakeRDMAQueue) sendData(cid uint16, data []byte) error {
	copy(q.dataArea(), data)
	d := q.sqe.SGL1()
	wr := verbs.SendWR{Opcode: verbs.WRRDMAWrite, RemoteAddr: d.Address(), RKey: d.Key()}
	if !q.send(wr, q.dataOff(), len(data)) {
		return ErrClosed
	}
	return q.respond(cid, 0, 0)
}

func (q *fakeRDMAQueue) respond(cid uint16, result uint64, st nvme.Status) error {
	cqe := q.cqe(cid, result, st)
	return q.sendResponse(cqe[:], verbs.SendWR{Opcode: verbs.WRSend})
}

func (q *fakeRDMAQueue) sendResponse(b []byte, wr verbs.SendWR) error {
	copy(q.region.Bytes()[q.cqeOff():], b)
	if !q.send(wr, q.cqeOff(), len(b)) {
		return ErrClosed
	}
	return nil
}

func (q *fakeRDMAQueue) free() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	_ = q.id.Disconnect()
	q.must(q.qp.Destroy())
	q.must(q.id.Destroy())
	q.must(q.cq.Destroy())
	q.must(q.ch.Close())
	q.must(q.mr.Dereg())
	q.must(q.pd.Dealloc())
	q.must(q.region.Unmap())
}

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

func TestMain(m *testing.M) { testutil.Main(m) }
