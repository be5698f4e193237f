package tcp

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// variants runs fn with each set of parameters that ICReq can negotiate.
func variants(t *testing.T, fn func(t *testing.T, p pdu.Params)) {
	for _, p := range []pdu.Params{
		{},
		{HeaderDigest: true},
		{DataDigest: true},
		{HeaderDigest: true, DataDigest: true},
		{HPDA: 31, HeaderDigest: true},
		{HPDA: 7, DataDigest: true},
	} {
		t.Run(fmt.Sprintf("hdgst=%v,ddgst=%v,hpda=%d", p.HeaderDigest, p.DataDigest, p.HPDA),
			func(t *testing.T) { fn(t, p) })
	}
}

// Memory of the pool, and memory attached by the handler, also in more pieces than one system call
// takes.
func TestReadWrite(t *testing.T) {
	for _, piece := range []int{0, diskSize, 1536, 512} {
		t.Run(fmt.Sprint("zero copy in pieces of ", piece), func(t *testing.T) {
			tg := serve(t, options{})
			tg.do(func() {
				if piece > 0 {
					tg.d.ZeroCopyReads, tg.d.ZeroCopyWrites, tg.d.Piece = true, true, piece
				}
			})
			variants(t, func(t *testing.T, p pdu.Params) {
				for _, cattr := range []nvme.CATTR{0, nvme.CATTRNoFlowControl} {
					readWrite(t, tg.connect(t, p, 8, cattr))
				}
			})
		})
	}
}

func readWrite(t *testing.T, c *client) {
	for i, n := range []int{512, 4096, 8192} { // in the capsule
		off := 1<<20 + i*65536
		want := random(i, n)
		sqe := rw(nvme.NVMWrite, uint16(i), off, n, true)
		c.send(c.Capsule(&sqe, want))
		c.status(uint16(i), nvme.Success)
		testutil.True(t, bytes.Equal(c.readBlocks(9, off, n), want),
			"%d bytes in the capsule: read back something else", n)
	}
	for i, n := range []int{512, 4096, 131072, 1 << 20} { // by R2T
		off := 2 << 20
		want := random(i+100, n)
		c.send(c.request(nvme.NVMWrite, 5, off, n))
		ttag := c.r2t(5, n)
		for at, k := 0, 0; at < n; k++ { // in odd pieces
			m := min([]int{1, 3, 4095, 4097, 100000}[k%5], n-at)
			flags := pdu.Flags(0)
			if at+m == n {
				flags = pdu.LastPDU
			}
			c.send(c.H2CData(flags, 5, ttag, at, want[at:at+m]))
			at += m
		}
		c.status(5, nvme.Success)
		testutil.True(t, bytes.Equal(c.readBlocks(6, off, n), want),
			"%d bytes by R2T: read back something else", n)
	}
}
