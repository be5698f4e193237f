package tcp

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// connect opens a connection and makes its queue ready for commands.
func (h *manual) connect(p pdu.Params, depth int) *client {
	h.tb.Helper()
	c := &client{tb: h.tb, p: p}
	h.open()
	r := pdu.ICReq(&p, 1)
	h.send(r[:])
	h.send(c.connectPDU(1, depth, 0))
	want := pdu.ICSize + pdu.CapsuleRespSize + p.HeaderDigestSize()
	testutil.MustEqual(h.tb, len(h.recv()), want, "bytes of answers")
	return c
}

// roundTrips returns a function that makes the target serve depth commands in one batch, and the
// size of the expected answer in bytes.
func (h *manual) roundTrips(c *client, op nvme.Opcode, n, depth int, inCapsule bool) (func(), int) {
	var batch []byte
	answer := pdu.CapsuleRespSize + c.p.HeaderDigestSize()
	for i := range depth {
		sqe := rw(op, uint16(i), i*n, n, inCapsule)
		var data []byte
		if inCapsule {
			data = random(i, n)
		}
		batch = append(batch, c.capsule(&sqe, data)...)
	}
	if op == nvme.NVMRead {
		answer += c.p.PDO(pdu.DataSize, c.p.HPDA) + n + c.p.DataDigestSize()
	}
	if op == nvme.NVMRead || inCapsule {
		return func() { h.send(batch) }, answer * depth
	}
	// Writes by R2T take their tags from the R2Ts. Answering them allocates nothing either.
	r2t := pdu.DataSize + c.p.HeaderDigestSize()
	tmpl := c.h2cData(pdu.LastPDU, 0, 0, 0, random(1, n))
	return func() {
		h.send(batch)
		got := h.recv()
		testutil.MustEqual(h.tb, len(got), r2t*depth, "bytes of R2Ts")
		for i := range depth {
			r := (*pdu.Data)(got[i*r2t:])
			(*pdu.Data)(tmpl).SetH2C(&c.p, pdu.LastPDU, r.CCCID(), r.TTAG(), 0, uint32(n))
			c.fixHeaderDigest(tmpl, pdu.DataSize)
			h.send(tmpl)
		}
	}, answer * depth
}

// TestNoAllocations: commands allocate nothing: reads with and without zero copy, writes with small
// and large data in their capsules and by R2T, with and without digests.
func TestNoAllocations(t *testing.T) {
	for _, zeroCopy := range []bool{false, true} {
		for _, p := range []pdu.Params{{}, {HeaderDigest: true, DataDigest: true}} {
			h, c := joined(t, options{zeroCopy: zeroCopy, arena: 32 << 20}, p, 32)
			for _, w := range []struct {
				name string
				op   nvme.Opcode
				n    int
				ic   bool
			}{
				{"4K read", nvme.NVMRead, 4096, false},
				{"128K read", nvme.NVMRead, 131072, false},
				{"4K write", nvme.NVMWrite, 4096, true},
				{"128K write", nvme.NVMWrite, 131072, false},
				{"128K write in the capsule", nvme.NVMWrite, 131072, true},
			} {
				depth := 16
				trip, answer := h.roundTrips(c, w.op, w.n, depth, w.ic)
				run := func() {
					trip()
					if got := len(h.recv()); got != answer {
						t.Fatalf("%s: %d bytes of answers, want %d", w.name, got, answer)
					}
				}
				run() // the backing arrays of segments grow to their size
				if a := testutil.AllocsPerRun(20, run); a != 0 {
					t.Errorf("%s, zero copy %v, digests %v: %v allocations per %d commands", w.name,
						zeroCopy, p.DataDigest, a, depth)
				}
			}
			h.close()
		}
	}
}

func benchmark(b *testing.B, p pdu.Params, op nvme.Opcode, n, depth int, ic bool) {
	h := newManual(b, options{zeroCopy: true, arena: 64 << 20})
	c := h.connect(p, depth+1)
	trip, answer := h.roundTrips(c, op, n, depth, ic)
	for b.Loop() {
		trip()
		testutil.MustEqual(b, len(h.recv()), answer, "bytes of answers")
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*depth), "ns/cmd")
	h.close()
}

func BenchmarkRead4K(b *testing.B)  { benchmark(b, pdu.Params{}, nvme.NVMRead, 4096, 32, false) }
func BenchmarkWrite4K(b *testing.B) { benchmark(b, pdu.Params{}, nvme.NVMWrite, 4096, 16, true) }
func BenchmarkRead4KDigests(b *testing.B) {
	benchmark(b, pdu.Params{HeaderDigest: true, DataDigest: true}, nvme.NVMRead, 4096, 32, false)
}
