package hosttest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/tls"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// Wire is a connection over TCP on which a test sends any bytes.
type Wire struct {
	net.Conn
	P pdu.Params // in use; the zero value has no digests
}

// Message is a PDU from the target, checked as a strict host would.
type Message struct {
	Type pdu.Type
	Raw  []byte // header
	Data []byte
}

// ErrEnd means an orderly or abrupt end of the stream.
var ErrEnd = errors.New("the end of the stream")

// Receive receives a PDU.
func (w *Wire) Receive() (m Message, err error) {
	h := make([]byte, pdu.HeaderSize, 256)
	if _, err := io.ReadFull(w, h); err != nil {
		return m, errors.Join(ErrEnd, err)
	}
	ch := (*pdu.Header)(h)
	m.Type = ch.Type()
	if f := w.P.CheckFromController(ch, 1<<30); !f.OK() {
		return m, f
	}
	rest := make([]byte, ch.PLEN()-pdu.HeaderSize)
	if _, err := io.ReadFull(w, rest); err != nil {
		return m, errors.Join(ErrEnd, err)
	}
	all, hlen := append(h, rest...), ch.HLEN()
	m.Raw = all[:hlen]
	digests := m.Type == pdu.TypeCapsuleResp || m.Type == pdu.TypeC2HData || m.Type == pdu.TypeR2T
	if digests && w.P.HeaderDigest && !pdu.HeaderDigestOK(all, hlen) {
		return m, errors.New("bad header digest")
	}
	switch m.Type {
	case pdu.TypeC2HData:
		d := (*pdu.Data)(m.Raw)
		if f := d.Check(&w.P); !f.OK() {
			return m, f
		}
		m.Data = all[ch.PDO():][:d.DATAL()]
		if w.P.DataDigest && pdu.GetCRC(all[len(all)-4:]) != pdu.CRC(0, m.Data) {
			return m, errors.New("bad data digest")
		}
	case pdu.TypeC2HTermReq:
		m.Data = all[pdu.TermReqSize:]
	}
	return m, nil
}

// Take receives a PDU of this type and returns its header.
func (w *Wire) Take(want pdu.Type) ([]byte, error) {
	m, err := w.Receive()
	if err == nil && m.Type != want {
		err = fmt.Errorf("got %v %x, want %v", m.Type, m.Raw, want)
	}
	return m.Raw, err
}

// Greet sends an ICReq, and uses its parameters after the response.
func (w *Wire) Greet(p pdu.Params) error {
	req := pdu.ICReq(&p, 1)
	if _, err := w.Write(req[:]); err != nil {
		return err
	}
	b, err := w.Take(pdu.TypeICResp)
	if err != nil {
		return err
	}
	// Linux refuses an alignment requested by the controller, and digests it did not request.
	resp := (*pdu.IC)(b)
	if !resp.Check().OK() || resp.HeaderDigest() != p.HeaderDigest ||
		resp.DataDigest() != p.DataDigest || resp.PDA() != 0 {
		return fmt.Errorf("ICResp %x", b)
	}
	p.CPDA, p.MaxH2CData, p.InCapsule = resp.PDA(), resp.MaxH2CData(), w.P.InCapsule
	w.P = p
	return nil
}

// Do sends a command and receives its response.
func (w *Wire) Do(capsule []byte) (nvme.CQE, error) {
	if _, err := w.Write(capsule); err != nil {
		return nvme.CQE{}, err
	}
	b, err := w.Take(pdu.TypeCapsuleResp)
	if err != nil {
		return nvme.CQE{}, err
	}
	cqe := *(*pdu.CapsuleResp)(b).CQE()
	if !cqe.Status().OK() {
		return cqe, cqe.Status()
	}
	return cqe, nil
}

// Associate makes the connection queue qid of a controller; qid 0 is an admin queue.
func (w *Wire) Associate(qid uint16, size int, o host.Options, cntlid uint16) (nvme.CQE, error) {
	if err := w.Greet(pdu.Params{}); err != nil {
		return nvme.CQE{}, err
	}
	return w.Do(InCapsule(host.ConnectCommand(qid, size, &o, cntlid)))
}

// Capsule returns the capsule of a command, with data in it.
func (w *Wire) Capsule(sqe *nvme.SQE, data []byte) []byte {
	var h pdu.CapsuleCmd
	pdo := h.Set(&w.P, uint32(len(data)))
	*h.SQE() = *sqe
	return w.Assemble(h[:], pdo, data)
}

// H2CData returns an H2CData.
func (w *Wire) H2CData(flags pdu.Flags, cid, ttag uint16, off int, data []byte) []byte {
	var h pdu.Data
	pdo := h.SetH2C(&w.P, flags, cid, ttag, uint32(off), uint32(len(data)))
	return w.Assemble(h[:], pdo, data)
}

// Assemble returns a PDU with its digests.
func (w *Wire) Assemble(h []byte, pdo int, data []byte) []byte {
	b := append([]byte(nil), h...)
	if w.P.HeaderDigest {
		b = binary.LittleEndian.AppendUint32(b, pdu.CRC(0, h))
	}
	for len(b) < pdo {
		b = append(b, 0)
	}
	b = append(b, data...)
	if w.P.DataDigest && len(data) > 0 {
		b = binary.LittleEndian.AppendUint32(b, pdu.CRC(0, data))
	}
	return b
}

// InCapsule returns the capsule of a command with its data, without digests.
func InCapsule(op *host.Op) []byte {
	op.SQE.SetFlags(1 << 6)
	op.SQE.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, uint32(len(op.Data)))
	return new(Wire).Capsule(&op.SQE, op.Data)
}

// Bare returns the capsule of a command with n bytes of data outside of it, without digests.
func Bare(op *host.Op, n int) []byte {
	op.SQE.SetFlags(1 << 6)
	op.SQE.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0, uint32(n))
	return new(Wire).Capsule(&op.SQE, nil)
}

// WithTLS calls fn with a client of TLS.
func WithTLS(psk *auth.TLSPSK, fn func(*tls.Client) error) error {
	client, err := tls.NewClient(psk)
	if err != nil {
		return err
	}
	defer client.Free()
	return fn(client)
}

// Shake completes a handshake of TLS.
func Shake(c net.Conn, psk *auth.TLSPSK) error {
	return WithTLS(psk, func(client *tls.Client) error {
		b := make([]byte, tls.MaxInput)
		for n := 0; ; {
			out, conn, err := client.Step(b[:n])
			if err != nil {
				return err
			}
			if _, err := c.Write(out); err != nil {
				return err
			}
			if conn != nil {
				conn.Close()
				return nil
			}
			if n, err = c.Read(b); err != nil {
				return err
			}
		}
	})
}
