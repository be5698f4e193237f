package e2e

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestRandomCommands changes some bytes of valid commands. The target must continue, another host
// must be unaffected, and responses must follow the protocol (nvme/host checks them). The seed is
// fixed, so that a failure can be repeated.
func TestRandomCommands(t *testing.T) {
	t.Parallel()
	const rounds = 1500
	eachTransport(t, nil, func(t *testing.T, h *env, v variant) {
		a := newAttacker(h, v)
		rng := rand.New(rand.NewPCG(2026, 11))
		for i := range rounds {
			admin := rng.IntN(2) == 0
			var op *host.Op
			if admin {
				op = randomAdmin(rng, a)
			} else {
				op = randomIO(rng, a)
			}
			mutate(rng, op)
			if op.SQE.NSID() == 2 { // with the data of the other host
				op.SQE.SetNSID(1)
			}
			if admin && op.SQE.Opcode() == nvme.AdminAsyncEventReq {
				continue // may never complete
			}
			was := op.SQE
			var err error
			if admin {
				_, err = a.c.Admin(testutil.Context(t), op)
			} else {
				_, err = a.q.Do(testutil.Context(t), op)
			}
			// If the data has another length than the descriptor, the host caused the violation.
			var v *host.Violation
			if err != nil && !errors.Is(err, host.ErrClosed) &&
				(!errors.As(err, &v) || described(&was) == uint32(len(op.Data))) {
				t.Fatalf("command %d, admin %t, % x: %v", i, admin, was, err)
			}
			if i%50 == 0 {
				a.checkBystander(t)
			}
			a.reconnectIfClosed()
		}
		a.checkBystander(t)
	})
}

// reconnectIfClosed reconnects if the last command ended the connection. It frees the resources of
// the old connection at once, because there are many.
func (a *attacker) reconnectIfClosed() {
	if a.q.Err() == nil && a.c.Err() == nil {
		if _, err := a.q.Poll(nil); err == nil {
			return
		}
	}
	_ = a.q.Close()
	a.c.Close()
	a.reconnect()
}

func described(s *nvme.SQE) uint32 {
	if d := s.SGL1(); d.Type() != nvme.SGLKeyedDataBlock {
		return d.Length()
	}
	return s.SGL1().KeyedLength()
}

func randomIO(rng *rand.Rand, a *attacker) *host.Op {
	op := new(host.Op)
	blocks := uint32(1) << rng.IntN(8)
	data := a.buf[:blocks*512]
	switch slba := rng.Uint64N(1000); rng.IntN(5) {
	case 0:
		op.Read(1, slba, blocks, data)
	case 1:
		op.Write(1, slba, blocks, data, 0)
	case 2:
		hosttest.SetWriteZeroes(op, 1, slba, blocks, 0)
	case 3:
		op.Flush(1)
	case 4:
		b := a.buf[:nvme.DSMRangeSize*(1+rng.IntN(4))]
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		hosttest.SetDiscard(op, 1, b)
	}
	return op
}

func randomAdmin(rng *rand.Rand, a *attacker) *host.Op {
	op := new(host.Op)
	s := &op.SQE
	switch rng.IntN(7) {
	case 0:
		s.SetOpcode(nvme.AdminIdentify)
		s.SetNSID(1)
		s.Identify().Set(nvme.CNS(rng.IntN(9)), 0, 0)
		op.Data = make([]byte, 4096)
	case 1:
		n := 4 << rng.IntN(11)
		s.SetOpcode(nvme.AdminGetLogPage)
		s.SetNSID(nvme.NSIDAll)
		lids := []nvme.LID{0, 1, 2, 3, 4, 5, 6, 7, 8, nvme.LogANA, nvme.LogDiscovery}
		s.GetLog().Set(lids[rng.IntN(len(lids))], uint64(n), 0, 0, false)
		op.Data = make([]byte, n)
	case 2:
		s.SetOpcode(nvme.AdminGetFeatures)
		s.SetCDW(10, uint32(rng.IntN(0x20)))
	case 3:
		s.SetOpcode(nvme.AdminSetFeatures)
		s.Features().Set(nvme.FID(rng.IntN(0x20)), rng.Uint32())
	case 4:
		s.Property().Set(nvme.FabricsPropertyGet, nvme.PropertyOffset(rng.IntN(30)*4), 0)
	case 5:
		s.SetOpcode(nvme.AdminAbort)
		s.Abort().Set(uint16(rng.IntN(3)), uint16(rng.Uint32()))
	case 6:
		s.SetOpcode(nvme.AdminSelfTest)
		s.SetNSID([]uint32{0, 1, nvme.NSIDAll}[rng.IntN(3)])
		s.SetCDW(10, []uint32{1, 2, 0xF}[rng.IntN(3)])
	}
	return op
}

// mutate changes up to four bytes of a command, and sometimes its descriptor, which is otherwise
// set by the host.
func mutate(rng *rand.Rand, op *host.Op) {
	for range rng.IntN(5) {
		at := rng.IntN(nvme.SQESize)
		if at >= 24 && at < 40 || at == 2 || at == 3 {
			continue // set by the host
		}
		op.SQE[at] = byte(rng.Uint32())
	}
	if rng.IntN(4) > 0 {
		return
	}
	op.Raw = true
	op.SQE.SetFlags(1 << 6)
	for range 1 + rng.IntN(3) {
		op.SQE[24+rng.IntN(16)] = byte(rng.Uint32())
	}
}
