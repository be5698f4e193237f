package rdma

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// invalidated sends a read with a key that may be invalidated, and reports whether it was. ok is
// false if the queue failed.
func (q *hostQueue) invalidated() (did, ok bool) {
	t := q.t
	t.Helper()
	r := testutil.Value(mem.Map("test host", 4096))(t)
	mr := testutil.Value(q.pd.RegMR(r.Bytes(),
		verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite))(t)
	s := command(opRead, 1, 0, 512)
	s.SGL1().SetKeyed(nvme.SGLSubtypeInvalidate, mem.Addr(r.Bytes()), 512, mr.RKey())
	q.send(&s, nil)
	_, wc, ok := q.response()
	testutil.Must(t, errors.Join(mr.Dereg(), r.Unmap()))
	return wc.Flags&verbs.WCWithInv != 0, ok
}

// A device that takes SEND_WITH_INV and gets stuck on it, as soft iWARP does, or fails it: one
// queue ends, and the next ones work.
func TestInvalidateFoundOut(t *testing.T) {
	for name, fault := range map[string]verbstest.Fault{
		"stuck":  {Host: "target", Ops: verbstest.OpSend, Hold: true},
		"failed": {Host: "target", Ops: verbstest.OpSend, Fail: verbs.WCLocQPOpErr},
	} {
		t.Run(name, func(t *testing.T) {
			b, q := joined(t, harnessOptions{}, ioParam(8))
			b.f.Inject(fault)
			s := command(opRead, 1, 0, 512)
			s.SGL1().SetKeyed(nvme.SGLSubtypeInvalidate, mem.Addr(q.buf), 512, q.mr.RKey())
			q.send(&s, nil)
			if fault.Hold {
				b.stick()
			}
			b.host.event(verbs.EventDisconnected)
			b.idle()
			q = b.host.connect(b.addr(), ioParam(8))
			did, ok := q.invalidated()
			testutil.True(t, !did && ok, "afterwards: invalidated %v, answered %v", did, ok)
			testutil.True(t, strings.Contains(b.log.String(), "does not invalidate"), "log:\n%s",
				b.log)
		})
	}
}

// A device on which SEND_WITH_INV has worked is not suspected when a queue ends. Nor is a device
// that has sent responses without it.
func TestInvalidateNotSuspected(t *testing.T) {
	for name, proven := range map[string]bool{"proven": true, "not used": false} {
		t.Run(name, func(t *testing.T) {
			b, q := joined(t, harnessOptions{}, ioParam(8))
			sub := uint8(nvme.SGLSubtypeAddress)
			if proven {
				sub = nvme.SGLSubtypeInvalidate
				did, ok := q.invalidated()
				testutil.MustTrue(t, did && ok, "not invalidated")
			}
			b.f.Inject(verbstest.Fault{Host: "target", Ops: verbstest.OpSend, Hold: true})
			s := command(opRead, 1, 0, 512)
			s.SGL1().SetKeyed(sub, mem.Addr(q.buf), 512, q.mr.RKey())
			q.send(&s, nil)
			b.stick()
			b.host.event(verbs.EventDisconnected)
			b.idle()
			q = b.host.connect(b.addr(), ioParam(8))
			did, ok := q.invalidated()
			testutil.True(t, did && ok, "afterwards: invalidated %v, answered %v", did, ok)
		})
	}
}

// TestNothingIsRemote: a host that knows the keys and addresses of the target's memory can neither
// read, write nor invalidate it. Its queue ends, and the others continue (R14).
func TestNothingIsRemote(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		b, good := joined(t, o, ioParam(8))
		want := 0
		if o.fabric.IWARP {
			want = 1 // the sink of RDMA READs
		}
		testutil.Equal(t, b.f.Live("target").RemoteMRs, want, "memory regions with remote rights")
		var key uint32
		b.on(func() { key = b.g.pollers[0].data.mr.RKey() })
		arena := b.arena.Region().Bytes()
		before := bytes.Clone(arena)
		attacks := map[string]verbs.SendWR{
			"write": {Opcode: verbs.WRRDMAWrite, RemoteAddr: mem.Addr(arena), RKey: key},
			"read":  {Opcode: verbs.WRRDMARead, RemoteAddr: mem.Addr(arena), RKey: key},
		}
		if !o.fabric.IWARP {
			attacks["invalidate"] = verbs.SendWR{Opcode: verbs.WRSendWithInv, InvalidateRKey: key}
		}
		for name, wr := range attacks {
			q := b.host.connect(b.addr(), ioParam(8))
			q.sges[0] = verbs.SGE{Addr: mem.Addr(q.buf), Length: 64, LKey: q.mr.LKey()}
			wr.WRID, wr.Flags, wr.NumSGE = 1<<32, verbs.SendSignaled, 1
			q.swrs[0] = wr
			testutil.Value(q.qp.PostSend(q.swrs[:], q.sges[:1]))(t)
			if _, wc, ok := q.response(); ok {
				t.Errorf("%s: %+v", name, wc)
			}
			if name != "read" { // it does not leave the host: the target serves none
				b.host.event(verbs.EventDisconnected)
			}
			q.free()
			testutil.Equal(t, good.do(good.keyed(command(opWrite, 1, 0, 512), 0, 512), nil),
				nvme.Success, "another queue after %s", name)
		}
		if !o.fabric.IWARP {
			before = before[4096:] // the data of the good queue went there
			arena = arena[4096:]
		}
		testutil.True(t, bytes.Equal(arena, before), "the memory has changed")
	})
}

// ioRound sends n commands, turns the loop and takes the responses.
func (m *manual) ioRound(sqes []nvme.SQE) {
	for i := range sqes {
		m.host.send(&sqes[i], nil)
	}
	m.turn()
	m.turn()
	m.turn()
	for range sqes {
		m.host.response()
	}
}

func TestNothingIsAllocatedPerCommand(t *testing.T) {
	for name, iwarp := range map[string]bool{"roce": false, "iwarp": true} {
		t.Run(name, func(t *testing.T) {
			m := newManual(t, verbstest.Options{IWARP: iwarp}, Config{}, ioParam(32))
			m.q.p.dev.attr.WritesFirst = !iwarp
			var sqes []nvme.SQE
			for i := range 32 {
				op := []nvme.Opcode{opRead, opWrite, opZeroCopyRead, opNothing}[i%4]
				s := m.host.keyed(command(op, uint16(i), 0, 4096), i*4096, 4096)
				if op == opWrite && i%8 == 1 {
					s.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, 0)
					s.SetCDW(12, 0)
				}
				sqes = append(sqes, s)
			}
			m.ioRound(sqes)
			testutil.Equal(t, testutil.AllocsPerRun(50, func() { m.ioRound(sqes) }), 0,
				"allocations in 32 commands")
		})
	}
}
