package e2e

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// wire is a TCP connection to the target on which a test sends arbitrary bytes.
type wire struct {
	*net.TCPConn
	t *testing.T
	p pdu.Params
}

func (h *Env) wire() *wire {
	h.T.Helper()
	c := testutil.Value(net.Dial("tcp", h.Addr(nvme.TransportTCP).String()))(h.T)
	h.Must(c.SetDeadline(time.Now().Add(testutil.Patience)))
	h.T.Cleanup(func() { _ = c.Close() })
	return &wire{c.(*net.TCPConn), h.T, pdu.Params{}}
}

// take receives a PDU of type want.
func (w *wire) take(want pdu.Type) []byte {
	w.t.Helper()
	b := make([]byte, pdu.HeaderSize)
	testutil.Value(io.ReadFull(w, b))(w.t)
	head := (*pdu.Header)(b)
	b = append(b, make([]byte, head.PLEN()-pdu.HeaderSize)...)
	if _, err := io.ReadFull(w, b[pdu.HeaderSize:]); err != nil || head.Type() != want {
		w.t.Fatalf("got a %v (%v), want %v", head.Type(), err, want)
	}
	return b
}

// write sends bytes.
func (w *wire) write(b []byte) {
	w.t.Helper()
	testutil.Value(w.Write(b))(w.t)
}

// greeting is an ICReq without digests.
func greeting() []byte {
	req := pdu.ICReq(&pdu.Params{}, 1)
	return req[:]
}

// connectCapsule returns the Connect command of an admin queue, with in-capsule data or with data
// for an R2T.
func connectCapsule(inCapsule bool) (capsule, data []byte) {
	o := Variant{}.HostOptions()
	op := host.ConnectCommand(0, 32, &o, nvme.CNTLIDDynamic)
	op.SQE.SetFlags(1 << 6)
	var c pdu.CapsuleCmd
	if !inCapsule {
		op.SQE.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0,
			nvme.ConnectDataSize)
		c.Set(&pdu.Params{}, 0)
		*c.SQE() = op.SQE
		return c[:], op.Data
	}
	op.SQE.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, nvme.ConnectDataSize)
	c.Set(&pdu.Params{}, nvme.ConnectDataSize)
	*c.SQE() = op.SQE
	return append(c[:], op.Data...), nil
}

// wantLeft waits until only these numbers of controllers and queues are left.
func (h *Env) wantLeft(controllers, queues int) {
	h.T.Helper()
	h.Until(fmt.Sprintf("%d controllers and %d queues are left", controllers, queues), func() bool {
		return len(h.Target.Controllers()) == controllers && h.Target.Sessions() == queues &&
			h.Server.Transport(nvme.TransportTCP).(*tcp.Transport).Usage().Connections == queues
	})
}

// TestConnectDataByR2T: the data of Connect may be sent in answer to an R2T (F20).
func TestConnectDataByR2T(t *testing.T) {
	h := New(t, Options{})
	capsule, data := connectCapsule(false)
	w := h.wire()
	w.write(append(greeting(), capsule...))
	w.take(pdu.TypeICResp)
	r2t := (*pdu.Data)(w.take(pdu.TypeR2T))
	testutil.MustTrue(t, r2t.DATAO() == 0 && r2t.DATAL() == nvme.ConnectDataSize, "R2T %x", r2t)
	for off, flags := range []pdu.Flags{0: 0, 1: pdu.LastPDU} { // in two parts
		var head pdu.Data
		head.SetH2C(&w.p, flags, 0, r2t.TTAG(), uint32(off)*512, 512)
		w.write(append(head[:], data[off*512:][:512]...))
	}
	testutil.Equal(t, (*pdu.CapsuleResp)(w.take(pdu.TypeCapsuleResp)).CQE().Status(), nvme.Success,
		"")
	h.wantLeft(1, 1)
}
