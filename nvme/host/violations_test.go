package host

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// fault is the wrong reaction of a controller to a command.
type fault func(c *fakeConn, sqe *nvme.SQE)

// answer sends a completion altered by change.
func answer(change func(c *fakeConn, sqe *nvme.SQE, cqe *nvme.CQE)) fault {
	return func(c *fakeConn, sqe *nvme.SQE) {
		var cqe nvme.CQE
		cqe.Fill(0, c.sqhd, sqe.CID(), 0)
		change(c, sqe, &cqe)
		_ = c.write(c.respPDU(&cqe))
	}
}

func sendData(flags pdu.Flags, off uint32, n int) fault {
	return func(c *fakeConn, sqe *nvme.SQE) {
		_ = c.write(c.dataPDU(flags, sqe.CID(), off, make([]byte, n)))
	}
}

// alterData sends all data in a PDU altered by change.
func alterData(change func(c *fakeConn, b []byte)) fault {
	return func(c *fakeConn, sqe *nvme.SQE) {
		b := c.dataPDU(pdu.LastPDU, sqe.CID(), 0, make([]byte, size))
		change(c, b)
		_ = c.write(b)
	}
}

func requestData(off, n uint32) fault {
	return func(c *fakeConn, sqe *nvme.SQE) { _ = c.write(c.r2tPDU(sqe.CID(), 1, off, n)) }
}

// Bytes of data of a command; big does not fit into a capsule.
const size, big = 1024, 65536

var violations = []struct {
	name  string
	op    nvme.Opcode
	bytes int
	fault fault
}{
	{
		"unknown CID", nvme.NVMFlush, 0,
		answer(func(_ *fakeConn, _ *nvme.SQE, c *nvme.CQE) { c[12] ^= 0x40 }),
	},
	{
		"stale CID", nvme.NVMFlush, 0,
		answer(func(_ *fakeConn, _ *nvme.SQE, c *nvme.CQE) { c[13] ^= 0x10 }),
	},
	{
		"phase tag", nvme.NVMFlush, 0,
		answer(func(_ *fakeConn, _ *nvme.SQE, c *nvme.CQE) { c[14] |= 1 }),
	},
	{"SQID", nvme.NVMFlush, 0, answer(func(_ *fakeConn, _ *nvme.SQE, c *nvme.CQE) { c[10] = 1 })},
	{
		"result of an I/O command", nvme.NVMFlush, 0,
		answer(func(_ *fakeConn, _ *nvme.SQE, c *nvme.CQE) { c[0] = 1 }),
	},
	{
		"SQHD ahead", nvme.NVMFlush, 0,
		answer(func(_ *fakeConn, _ *nvme.SQE, c *nvme.CQE) { c[8]++ }),
	},
	{
		"SQHD out of the queue", nvme.NVMFlush, 0,
		answer(func(_ *fakeConn, _ *nvme.SQE, c *nvme.CQE) { c[8] = 16 }),
	},
	{
		"two completions", nvme.NVMFlush, 0,
		func(c *fakeConn, s *nvme.SQE) {
			_ = c.respond(s.CID(), 0, 0)
			_ = c.respond(s.CID(), 0, 0)
		},
	},
	{"success without data", nvme.NVMRead, size, answer(func(*fakeConn, *nvme.SQE, *nvme.CQE) {})},
	{"short data", nvme.NVMRead, size, func(c *fakeConn, s *nvme.SQE) {
		sendData(0, 0, 512)(c, s)
		_ = c.respond(s.CID(), 0, 0)
	}},
	{"last too early", nvme.NVMRead, size, sendData(pdu.LastPDU, 0, 512)},
	{"not last", nvme.NVMRead, size, sendData(0, 0, size)},
	{"too much data", nvme.NVMRead, size, sendData(pdu.LastPDU, 0, size+4)},
	{"gap", nvme.NVMRead, size, sendData(pdu.LastPDU, 512, 512)},
	{
		"success flag with flow control", nvme.NVMRead, size,
		sendData(pdu.LastPDU|pdu.Success, 0, size),
	},
	{"data for a write", nvme.NVMWrite, size, sendData(pdu.LastPDU, 0, size)},
	{
		"TTAG in C2HData", nvme.NVMRead, size,
		alterData(func(_ *fakeConn, b []byte) { b[10] = 1; pdu.PutHeaderDigest(b, pdu.DataSize) }),
	},
	{"header digest", nvme.NVMRead, size, alterData(func(_ *fakeConn, b []byte) { b[24] ^= 1 })},
	{
		"data digest", nvme.NVMRead, size,
		alterData(func(_ *fakeConn, b []byte) { b[len(b)-1] ^= 1 }),
	},
	{
		"PDU type of a host", nvme.NVMRead, size,
		alterData(func(_ *fakeConn, b []byte) { b[0] = byte(pdu.TypeH2CData) }),
	},
	{"second ICResp", nvme.NVMFlush, 0, func(c *fakeConn, _ *nvme.SQE) {
		r := pdu.ICResp(&c.p)
		_ = c.write(append(r[:], 0, 0, 0, 0))
	}},
	{"failure before the data of an R2T", nvme.NVMWrite, big, func(c *fakeConn, s *nvme.SQE) {
		cqe := c.cqe(s.CID(), 0, nvme.DataTransferError)
		_ = c.write(append(c.r2tPDU(s.CID(), 1, 0, 512), c.respPDU(&cqe)...))
	}},
	{"R2T for a read", nvme.NVMRead, size, requestData(0, size)},
	{"R2T for in-capsule data", nvme.NVMWrite, 512, requestData(0, 512)},
	{"R2T of nothing", nvme.NVMWrite, big, requestData(0, 0)},
	{"R2T too long", nvme.NVMWrite, big, requestData(0, big+4)},
	{"R2T with a gap", nvme.NVMWrite, big, requestData(512, 512)},
	{
		"success of a write without R2T", nvme.NVMWrite, big,
		answer(func(*fakeConn, *nvme.SQE, *nvme.CQE) {}),
	},
}

// violate connects to a controller that violates the protocol, and returns the queue and the result
// of the command.
func violate(t *testing.T, i int, o Options) (*Queue, error) {
	tc := &violations[i]
	override := func(c *fakeConn, sqe *nvme.SQE) bool {
		if c.size != 16 || sqe.Opcode() != tc.op {
			return false
		}
		tc.fault(c, sqe)
		return true
	}
	f := newFakeTCP(t, func(f *fakeTCP) { f.override = override })
	_, q := connectTCP(t, f, TCP{HeaderDigest: true, DataDigest: true}, o, 16)
	op := Op{Data: make([]byte, tc.bytes)}
	op.SQE.SetOpcode(tc.op)
	_, err := q.Do(testutil.Context(t), &op)
	return q, err
}

// TestViolations: the host detects each violation of the protocol.
func TestViolations(t *testing.T) {
	for i, tc := range violations {
		t.Run(tc.name, func(t *testing.T) {
			q, err := violate(t, i, testOptions())
			for err == nil { // the next poll finds "two completions"
				_ = q.Wait(time.Second)
				_, err = q.Poll(nil)
			}
			var v *Violation
			testutil.MustTrue(t, errors.As(err, &v) && v.QID == 1, "got %v, want a violation", err)
			_, err = q.Submit(new(Op))
			testutil.MustTrue(t, errors.As(err, &v), "submit to a ended queue: %v", err)
		})
	}
}

// TestTolerant: with Tolerant, faults that the Linux host accepts are not violations. All others
// still are.
func TestTolerant(t *testing.T) {
	accepted := []string{
		"phase tag", "SQID", "result of an I/O command", "SQHD ahead", "SQHD out of the queue",
		"success flag with flow control",
	}
	o := testOptions()
	o.Tolerant = true
	for i, tc := range violations {
		if tc.name == "TTAG in C2HData" {
			continue // accepted, but no response follows here
		}
		t.Run(tc.name, func(t *testing.T) {
			q, err := violate(t, i, o)
			ok := slices.Contains(accepted, tc.name)
			for err == nil && !ok {
				_ = q.Wait(time.Second)
				_, err = q.Poll(nil)
			}
			var v *Violation
			testutil.True(t, (!ok || err == nil) && (ok || errors.As(err, &v)), "accepted %t: %v",
				ok, err)
		})
	}
}
