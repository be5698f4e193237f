package isolation

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// kinds are the kinds of listeners. The first of a link has the usual target.
var kinds = []kind{
	{name: "tcp", link: nvme.TransportTCP},
	{name: "tcp with digests", link: nvme.TransportTCP, digests: true},
	{name: "tls", link: nvme.TransportTCP, tls: true},
	{name: "rdma", link: nvme.TransportRDMA},
	{name: "iwarp", link: nvme.TransportRDMA, iwarp: true},
	{name: "soft RoCE", link: nvme.TransportRDMA, soft: "soft"},
	{name: "soft iWARP", link: nvme.TransportRDMA, soft: "soft-iwarp"},
}

// refusedRows are hosts with commands that must be refused, and some that are unusual but legal, on
// each kind of listener: the transport must be in step afterwards. nvme/target tests the status of
// each refused command.
var refusedRows = func() (list []row) {
	for _, k := range kinds {
		r := row{
			name: "refused commands over " + k.name, culprit: Host,
			attacks: "the order of the stream", links: []nvme.TransportType{k.link}, busy: true,
			run: refusedCommands, kind: k, alone: true,
		}
		if k.name == "tcp" || k.name == "rdma" {
			r.kind, r.alone = kind{}, false
		}
		list = append(list, r)
		r.name, r.run, r.alone = "random commands over "+k.name, randomCommands, true
		list = append(list, r)
	}
	return list
}()

// refusal is a command and its permitted outcome.
type refusal struct {
	name  string
	op    func(op *host.Op, buf []byte)
	codes []nvme.Status // without DNR, which an error must have
	// ends: the connection may end instead.
	ends  bool
	admin bool // on the admin queue
}

// accepts reports whether a completion, or an error of the queue, is permitted.
func (r *refusal) accepts(st nvme.Status, err error) bool {
	if err != nil {
		return r.ends && errors.Is(err, host.ErrClosed)
	}
	return slices.Contains(r.codes, st.Code()) && (st.OK() || st&nvme.DNR != 0)
}

// knocker is a host that reconnects when its connection ends.
type knocker struct {
	*attack
	p      *party
	buf    []byte      // of 2 mdts
	status nvme.Status // of the last command
}

func (k *knocker) reconnect() (err error) {
	if k.p != nil {
		k.p.close()
	}
	if k.p, err = k.join(context.Background(), 1); err == nil {
		k.buf, err = k.p.Map(2 * mdts)
	}
	return err
}

func (k *knocker) reconnectIfClosed() error {
	if k.p.queues[0].Err() == nil && k.p.Err() == nil {
		if _, err := k.p.queues[0].Poll(nil); err == nil {
			return nil
		}
	}
	return k.reconnect()
}

// do runs a command.
func (k *knocker) do(fn func(context.Context, *host.Op) (nvme.CQE, error), op *host.Op) error {
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
	defer cancel()
	cqe, err := fn(ctx, op)
	k.status = cqe.Status()
	k.takes(1)
	k.inPlace()
	return err
}

// refusedCommands sends all refusals, and repeats them while the attack lasts.
func refusedCommands(ctx context.Context, a *attack) error {
	k := &knocker{attack: a}
	if err := k.reconnect(); err != nil {
		return err
	}
	defer func() { k.p.close() }()
	for first := true; first || ctx.Err() == nil; first = false {
		for _, r := range slices.Concat(descriptors(a.link), lengths) {
			if err := errors.Join(k.refuse(&r), k.reconnectIfClosed()); err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
		}
		if err := errors.Join(k.hugeDescriptors(), k.reconnectIfClosed()); err != nil {
			return fmt.Errorf("a full queue of huge descriptors: %w", err)
		}
	}
	return nil
}

// hugeDescriptors fills a queue with reads and writes of a block with descriptors of the largest
// possible length, which take no memory (CVE-2026-80789, S07).
func (k *knocker) hugeDescriptors() error {
	q, sent := k.p.queues[0], 0
	for ; q.Free() > 0; sent++ {
		length := typed(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0, 0xFFFFFFFF)
		if k.link == nvme.TransportRDMA {
			length = keyed(0xFFFFFF, 1)
		}
		op := new(host.Op)
		rawOp(k.link, []nvme.Opcode{nvme.NVMRead, nvme.NVMWrite}[sent%2], length)(op, nil)
		if _, err := q.Submit(op); err != nil {
			return err
		}
	}
	done := make([]host.Completion, sent)
	for sent > 0 {
		n, err := q.Poll(done)
		for i := range done[:n] {
			if st := done[i].Status().Code(); st != nvme.DataSGLLengthInvalid {
				return st
			}
		}
		if sent -= n; err == nil && n == 0 {
			err = q.Wait(testutil.Patience)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// refuse sends a command. Unless that ends the connection, a read succeeds afterwards.
func (k *knocker) refuse(r *refusal) error {
	op, do := new(host.Op), k.p.queues[0].Do
	if r.op(op, k.buf); r.admin {
		do = k.p.Admin
	}
	err := k.do(do, op)
	if !r.accepts(k.status, err) {
		got := fmt.Sprint(k.status, ", error ", err) // err may be nil
		return fmt.Errorf("got %s; want %v, or the end %t", got, r.codes, r.ends)
	}
	if err != nil || k.p.queues[0].Err() != nil {
		return nil
	}
	return hosttest.Read(context.Background(), k.p.queues[0], nsPool, 0, 1, k.buf[:blockSize])
}

type setSGL func(*nvme.SQE, *nvme.SGLDescriptor)

// rawOp is a read or write of a block with a descriptor altered by set.
func rawOp(link nvme.TransportType, code nvme.Opcode, set setSGL) func(*host.Op, []byte) {
	return func(op *host.Op, _ []byte) {
		op.Read(nsPool, 0, 1, nil)
		op.SQE.SetOpcode(code)
		op.Raw, op.Data = true, nil
		op.SQE.SetFlags(1 << 6)
		if link == nvme.TransportRDMA {
			op.SQE.SGL1().SetKeyed(nvme.SGLSubtypeAddress, 0, blockSize, 0)
		} else {
			op.SQE.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0,
				blockSize)
		}
		set(&op.SQE, op.SQE.SGL1())
	}
}

func typed(ty nvme.SGLType, sub uint8, addr uint64, n uint32) setSGL {
	return func(_ *nvme.SQE, d *nvme.SGLDescriptor) { d.SetData(ty, sub, addr, n) }
}

// shorter sets the length of the descriptor.
func shorter(n uint32) setSGL {
	return func(_ *nvme.SQE, d *nvme.SGLDescriptor) {
		if d.Type() == nvme.SGLKeyedDataBlock {
			d.SetKeyed(0, 0x1000, n, d.Key())
		} else {
			d.SetData(d.Type(), d.Subtype(), 0, n)
		}
	}
}

// flags sets PSDT and FUSE.
func flags(v uint8) setSGL { return func(s *nvme.SQE, _ *nvme.SGLDescriptor) { s.SetFlags(v) } }

// keyed is a keyed data block at 4096.
func keyed(n, key uint32) setSGL {
	return func(_ *nvme.SQE, d *nvme.SGLDescriptor) { d.SetKeyed(0, 4096, n, key) }
}

func oddSubtype(_ *nvme.SQE, d *nvme.SGLDescriptor) { d[15] = d[15]&0xF0 | 7 }

// descriptors are reads and writes with wrong descriptors, some for a single transport.
func descriptors(link nvme.TransportType) (list []refusal) {
	const (
		r, w      = nvme.NVMRead, nvme.NVMWrite
		both      = nvme.TransportType(0)
		tcp, rdma = nvme.TransportTCP, nvme.TransportRDMA
		transport = nvme.SGLTransportDataBlock
		block     = nvme.SGLDataBlock
		offset    = nvme.SGLSubtypeOffset
		fabric    = nvme.SGLSubtypeTransport
	)
	type codes = []nvme.Status
	field := refusal{codes: codes{nvme.InvalidField}}
	kind := refusal{codes: codes{nvme.SGLTypeInvalid, nvme.InvalidField}, ends: true}
	segment := refusal{codes: codes{
		nvme.InvalidSGLSegment, nvme.InvalidSGLCount, nvme.SGLTypeInvalid, nvme.InvalidField,
	}, ends: true}
	length := refusal{codes: codes{nvme.DataSGLLengthInvalid}, ends: link == tcp}
	place := refusal{codes: codes{
		nvme.SGLOffsetInvalid, nvme.DataSGLLengthInvalid, nvme.InvalidField,
	}, ends: true}
	into := refusal{codes: append(place.codes, nvme.SGLTypeInvalid), ends: true}
	end := refusal{ends: true}
	for _, one := range []struct {
		name string
		code nvme.Opcode
		set  setSGL
		want refusal
		only nvme.TransportType
	}{
		{"PRPs", r, flags(0), field, both},
		{"PSDT 10b", r, flags(2 << 6), field, both},
		{"PSDT 11b", r, flags(3 << 6), field, both},
		{"FUSE 11b", r, flags(1<<6 | 3), field, both},
		{"type 3", r, typed(nvme.SGLLastSegment, 0, 0, 16), segment, both},
		{"type 6", r, typed(6, 0, 0, 4096), kind, both},
		{"type F", w, typed(0xF, 0xF, 0, 4096), kind, both},
		{"bit bucket", r, typed(nvme.SGLBitBucket, 0, 0, 4096), kind, both},
		{"subtype", r, oddSubtype, kind, both},
		{"keyed on TCP", r, keyed(4096, 1), kind, tcp},
		{"transport on RDMA", r, typed(transport, fabric, 0, 4096), kind, rdma},
		{"segment", r, typed(nvme.SGLSegment, offset, 0, 32), segment, both},
		{"odd length", w, typed(nvme.SGLLastSegment, offset, 0, 17), segment, both},
		{"16 MiB keyed", r, keyed(0xFFFFFF, 1), length, rdma},
		{"4 GiB", r, typed(transport, fabric, 0, 0xFFFFFFFF), length, tcp},
		{"4 GiB write", w, typed(transport, fabric, 0, 0xFFFFFFFF), length, tcp},
		{"too short", r, shorter(512), length, both},
		{"too short for a write", w, shorter(4095), length, both},
		{"too long", r, shorter(4097), length, both},
		{"too long for a write", w, shorter(8192), length, both},
		{"nothing", r, shorter(0), length, both},
		{"read into the capsule", r, typed(block, offset, 0, 4096), into, both},
		{"beyond the capsule", w, typed(block, offset, 1<<20, 4096), place, both},
		{"wrap", w, typed(block, offset, math.MaxUint64-10, 4096), place, both},
		{"missing data", w, typed(block, offset, 0, 4096), place, both},
		{"read to an unknown key", r, keyed(4096, 0xDEADBEEF), end, rdma},
		{"write from an unknown key", w, keyed(4096, 0xDEADBEEF), end, rdma},
	} {
		if one.only == both || one.only == link {
			one.want.name, one.want.op = one.name, rawOp(link, one.code, one.set)
			list = append(list, one.want)
		}
	}
	return list
}

// lengths are commands with more or less data than they take, and refused commands with data.
var lengths = []refusal{
	{name: "MPTR", op: func(op *host.Op, buf []byte) {
		op.Read(nsPool, 0, 1, buf[:blockSize])
		op.SQE.SetCDW64(4, 0x1234)
	}, codes: []nvme.Status{nvme.Success, nvme.InvalidField}},
	{name: "write across the end", op: func(op *host.Op, buf []byte) {
		op.Write(nsPool, namespaceSize/blockSize-1, 2, buf[:2*blockSize], 0)
	}, codes: []nvme.Status{nvme.LBAOutOfRange}},
	{name: "long write across the end", op: func(op *host.Op, buf []byte) {
		op.Write(nsPool, namespaceSize/blockSize-1, 32, buf[:32*blockSize], 0)
	}, codes: []nvme.Status{nvme.LBAOutOfRange}},
	{name: "bytes wrap", op: func(op *host.Op, buf []byte) {
		op.Read(nsPool, 1<<61, 1, buf[:blockSize])
	}, codes: []nvme.Status{nvme.LBAOutOfRange}},
	{name: "read beyond MDTS", op: func(op *host.Op, buf []byte) {
		op.Read(nsPool, 0, mdts/blockSize+1, buf[:mdts+blockSize])
	}, codes: []nvme.Status{nvme.InvalidField}},
	{name: "write to an unknown namespace", op: func(op *host.Op, buf []byte) {
		op.Write(77, 0, 1, buf[:blockSize], 0)
	}, codes: []nvme.Status{nvme.InvalidField}},
	{name: "not enough data", op: func(op *host.Op, buf []byte) {
		hosttest.SetDiscard(op, nsPool, buf[:nvme.DSMRangeSize])
		op.SQE.DSM().Set(2, true)
	}, codes: []nvme.Status{nvme.DataSGLLengthInvalid}},
	{name: "256 ranges of nothing", op: func(op *host.Op, buf []byte) {
		clear(buf[:256*nvme.DSMRangeSize])
		hosttest.SetDiscard(op, nsPool, buf[:256*nvme.DSMRangeSize])
	}, codes: []nvme.Status{nvme.Success}},
	{name: "short keys of a reservation", op: func(op *host.Op, buf []byte) {
		op.SQE.SetOpcode(nvme.IOReservationAcquire)
		op.SQE.SetNSID(nsPool)
		op.SQE.SetCDW(10, 0x100)
		op.Data = buf[:8]
	}, codes: []nvme.Status{nvme.DataSGLLengthInvalid}},
	{name: "second Connect", op: func(op *host.Op, _ []byte) {
		o := hostOptions(culpritNQN)
		*op = *host.ConnectCommand(1, 32, &o, 1)
	}, codes: []nvme.Status{nvme.CommandSequenceError}},
	{name: "512 bytes of Identify", op: func(op *host.Op, _ []byte) {
		op.SQE.SetOpcode(nvme.AdminIdentify)
		op.SQE.Identify().Set(nvme.CNSController, 0, 0)
		op.Data = make([]byte, 512)
	}, codes: []nvme.Status{nvme.DataSGLLengthInvalid}, admin: true},
	{name: "16 GiB of log", op: func(op *host.Op, _ []byte) {
		op.SQE.SetOpcode(nvme.AdminGetLogPage)
		op.SQE.SetNSID(nvme.NSIDAll)
		op.SQE.GetLog().Set(nvme.LogSMART, 16<<30, 0, 0, false)
		op.Data = make([]byte, 512)
	}, codes: []nvme.Status{nvme.DataSGLLengthInvalid, nvme.InvalidField}, admin: true},
}
