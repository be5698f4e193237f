package host

import (
	"sync"

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
