package isolation

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/tls"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// raw is a TCP connection on which a culprit sends arbitrary bytes.
type raw struct {
	*net.TCPConn
}

// dial connects from an address. The receive buffer is small, so that unread data stays with the
// target.
func (e *env) dial(ctx context.Context, from netip.Addr) (*raw, error) {
	d := net.Dialer{
		LocalAddr: &net.TCPAddr{IP: from.AsSlice()}, Timeout: testutil.Patience,
		Control: func(_, _ string, c syscall.RawConn) (err error) {
			return c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096)
			})
		},
	}
	c, err := d.DialContext(ctx, "tcp", e.addrs[nvme.TransportTCP].String())
	if err != nil {
		return nil, err
	}
	return &raw{c.(*net.TCPConn)}, nil
}

// greet sends an ICReq without digests and receives the response.
func (r *raw) greet() error {
	req := pdu.ICReq(&pdu.Params{}, 1)
	if _, err := r.Write(req[:]); err != nil {
		return err
	}
	_, err := r.take()
	return err
}

// halfGreet sends half an ICReq.
func (r *raw) halfGreet() error {
	req := pdu.ICReq(&pdu.Params{}, 1)
	_, err := r.Write(req[:len(req)/2])
	return err
}

// hello sends a ClientHello of a known host.
func (r *raw) hello() error { return r.sendHello(0) }

// halfHello does not send the end of it.
func (r *raw) halfHello() error { return r.sendHello(9) }

func (r *raw) sendHello(less int) error {
	return withClient(func(c *tls.Client) error {
		hello, _, err := c.Step(nil)
		if err == nil {
			_, err = r.Write(hello[:len(hello)-less])
		}
		return err
	})
}

// withClient calls fn with the client of a known host.
func withClient(fn func(*tls.Client) error) error {
	psk, err := hostPSK(victimNQN2, subNQN)
	if err != nil {
		return err
	}
	client, err := tls.NewClient(psk)
	if err != nil {
		return err
	}
	defer client.Free()
	return fn(client)
}

// shake completes a handshake.
func (r *raw) shake() error {
	return withClient(func(client *tls.Client) error {
		b := make([]byte, tls.MaxInput)
		for n := 0; ; {
			out, conn, err := client.Step(b[:n])
			if err != nil {
				return err
			}
			if _, err := r.Write(out); err != nil {
				return err
			}
			if conn != nil {
				conn.Close()
				return nil
			}
			if n, err = r.Read(b); err != nil {
				return err
			}
		}
	})
}

// take receives a PDU.
func (r *raw) take() ([]byte, error) {
	_ = r.SetReadDeadline(time.Now().Add(testutil.Patience))
	b := make([]byte, pdu.HeaderSize)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	head := (*pdu.Header)(b)
	if head.PLEN() < pdu.HeaderSize || head.PLEN() > 2<<20 {
		return nil, fmt.Errorf("PDU % x", b)
	}
	b = append(b, make([]byte, head.PLEN()-pdu.HeaderSize)...)
	_, err := io.ReadFull(r, b[pdu.HeaderSize:])
	return b, err
}

// capsule returns a command with in-capsule data, described by an SGL.
func capsule(op *host.Op) []byte {
	op.SQE.SetFlags(1 << 6)
	op.SQE.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, uint32(len(op.Data)))
	return encode(op, op.Data)
}

// bare returns a command with n bytes of data outside the capsule.
func bare(op *host.Op, n int) []byte {
	op.SQE.SetFlags(1 << 6)
	op.SQE.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0, uint32(n))
	return encode(op, nil)
}

func encode(op *host.Op, data []byte) []byte {
	var c pdu.CapsuleCmd
	c.Set(&pdu.Params{}, uint32(len(data)))
	*c.SQE() = op.SQE
	return append(c[:], data...)
}

// do sends a command and receives its response.
func (r *raw) do(b []byte) (nvme.CQE, error) {
	if _, err := r.Write(b); err != nil {
		return nvme.CQE{}, err
	}
	resp, err := r.take()
	if err != nil {
		return nvme.CQE{}, err
	}
	if pdu.Type(resp[0]) != pdu.TypeCapsuleResp || len(resp) < pdu.CapsuleRespSize {
		return nvme.CQE{}, fmt.Errorf("got PDU % x", resp[:pdu.HeaderSize])
	}
	cqe := *(*pdu.CapsuleResp)(resp).CQE()
	if !cqe.Status().OK() {
		return cqe, cqe.Status()
	}
	return cqe, nil
}

// associate makes the connection queue qid of a controller; qid 0 is an admin queue.
func (r *raw) associate(qid uint16, size int, o host.Options, cntlid uint16) (nvme.CQE, error) {
	if err := r.greet(); err != nil {
		return nvme.CQE{}, err
	}
	return r.do(capsule(host.ConnectCommand(qid, size, &o, cntlid)))
}

// setCC returns a command that sets the controller configuration.
func setCC(cc nvme.CC) []byte {
	var op host.Op
	op.SQE.Property().Set(nvme.FabricsPropertySet, nvme.PropertyCC, uint64(cc))
	return encode(&op, nil)
}
