package isolation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// randomCommands changes some bytes of valid commands. Responses must follow the protocol, which
// nvme/host checks. The seed is fixed, so that a failure can be repeated.
func randomCommands(ctx context.Context, a *attack) error {
	const least = 600 // for each kind of listener
	k := &knocker{attack: a}
	if err := k.reconnect(); err != nil {
		return err
	}
	defer func() { k.p.close() }()
	rng := rand.New(rand.NewPCG(2026, 11))
	for i := 0; i < least || ctx.Err() == nil; i++ {
		do, op := k.p.Admin, randomAdmin(rng)
		admin := rng.IntN(2) == 0
		if !admin {
			do, op = k.p.queues[0].Do, randomIO(rng, k.buf)
		}
		mutate(rng, op)
		switch op.SQE.NSID() {
		case nsRAM, nsPool: // with the data of victims
			op.SQE.SetNSID(nsThin)
		}
		if admin && op.SQE.Opcode() == nvme.AdminAsyncEventReq {
			continue // may never complete
		}
		was := op.SQE
		// If the data has another length than the descriptor, the host caused the violation.
		var v *host.Violation
		if err := k.do(do, op); err != nil && !errors.Is(err, host.ErrClosed) &&
			(!errors.As(err, &v) || described(&was) == uint32(len(op.Data))) {
			return fmt.Errorf("command %d, admin %t, % x: %w", i, admin, was, err)
		}
		if err := k.reconnectIfClosed(); err != nil {
			return err
		}
	}
	return nil
}

func described(s *nvme.SQE) uint32 {
	if d := s.SGL1(); d.Type() != nvme.SGLKeyedDataBlock {
		return d.Length()
	}
	return s.SGL1().KeyedLength()
}

func randomIO(rng *rand.Rand, buf []byte) *host.Op {
	op := new(host.Op)
	blocks := uint32(1) << rng.IntN(8)
	data := buf[:blocks*blockSize]
	switch slba := rng.Uint64N(1000); rng.IntN(5) {
	case 0:
		op.Read(nsThin, slba, blocks, data)
	case 1:
		op.Write(nsThin, slba, blocks, data, 0)
	case 2:
		hosttest.SetWriteZeroes(op, nsThin, slba, blocks, 0)
	case 3:
		op.Flush(nsThin)
	case 4:
		b := buf[:nvme.DSMRangeSize*(1+rng.IntN(4))]
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		hosttest.SetDiscard(op, nsThin, b)
	}
	return op
}

func randomAdmin(rng *rand.Rand) *host.Op {
	op := new(host.Op)
	s := &op.SQE
	switch rng.IntN(7) {
	case 0:
		s.SetOpcode(nvme.AdminIdentify)
		s.SetNSID(nsThin)
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
		s.SetNSID([]uint32{0, nsThin, nvme.NSIDAll}[rng.IntN(3)])
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
