package isolation

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/tls"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// raw is a TCP connection on which a culprit sends arbitrary bytes.
type raw struct {
	hosttest.Wire
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
	return &raw{hosttest.Wire{Conn: patient{c}}}, nil
}

// patient gives the target testutil.Patience for the next bytes.
type patient struct {
	net.Conn
}

func (p patient) Read(b []byte) (int, error) {
	_ = p.SetReadDeadline(time.Now().Add(testutil.Patience))
	return p.Conn.Read(b)
}

// greet sends an ICReq without digests and receives the response.
func (r *raw) greet() error { return r.Greet(pdu.Params{}) }

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
	return hosttest.WithTLS(psk, fn)
}

// shake completes a handshake.
func (r *raw) shake() error {
	psk, err := hostPSK(victimNQN2, subNQN)
	if err != nil {
		return err
	}
	return hosttest.Shake(r, psk)
}

// take receives a PDU.
func (r *raw) take() ([]byte, error) {
	m, err := r.Receive()
	return slices.Concat(m.Raw, m.Data), err
}

// Commands with data in the capsule, and outside of it.
var capsule, bare = hosttest.InCapsule, hosttest.Bare

// setCC returns a command that sets the controller configuration.
func setCC(cc nvme.CC) []byte {
	var op host.Op
	op.SQE.Property().Set(nvme.FabricsPropertySet, nvme.PropertyCC, uint64(cc))
	return new(hosttest.Wire).Capsule(&op.SQE, nil)
}
