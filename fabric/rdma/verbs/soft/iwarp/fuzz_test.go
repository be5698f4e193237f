package iwarp

import (
	"bytes"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/mpa"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

var zeroes [2 << 20]byte

// FuzzStream sends any bytes, in pieces, to a queue pair with work outstanding. Only memory that
// the peer may write changes.
func FuzzStream(f *testing.F) {
	for i, c := range []struct {
		h       header
		payload string
	}{
		{header{op: opSend, last: true, msn: 1}, "hello"},
		{header{op: opSendSolicitedInvalidate, last: true, msn: 1}, "x"},
		{header{op: opReadResponse, last: true}, "hello"},
		{header{op: opReadRequest, last: true, queue: queueRead, msn: 1}, ""},
		{header{op: opTerminate, last: true, queue: queueTerminate, msn: 1}, "abcd"},
	} {
		f.Add(frame(c.h, c.payload, i%2 == 1), byte(3*i), i%2 == 1)
	}
	f.Add(make([]byte, 64), byte(2), false)
	f.Fuzz(func(t *testing.T, data []byte, piece byte, crc bool) {
		if len(data) > 4096 {
			return
		}
		x := newAttacker(t, mpa.Peer{CRC: crc, ResponderResources: 2, InitiatorDepth: 2})
		for i := range 3 {
			x.victim.recv(uint64(i), 2<<20+1000*i, 1000)
		}
		x.victim.rdma(9, verbs.WRRDMARead, 3<<20, 1000, 0)
		for len(data) > 0 {
			n := min(len(data), int(piece)+1)
			if _, err := x.socket.Write(data[:n]); err != nil {
				break
			}
			data = data[n:]
			x.victim.poll()
		}
		x.step()
		testutil.True(t, bytes.Equal(x.buf[:2<<20], zeroes[:]), "memory was written")
		x.neighbour()
	})
}
