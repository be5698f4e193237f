package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// TCP is the NVMe/TCP transport.
type TCP struct {
	// Addr is the controller's address and port.
	Addr netip.AddrPort
	// HeaderDigest and DataDigest request digests, and refuse controllers without, as Linux does.
	HeaderDigest, DataDigest bool
	// HPDA is the requested alignment of C2HData: (HPDA+1)*4 bytes; 0 to 31.
	HPDA uint8
	// Source is the local address to connect from; the zero value leaves it to the system.
	Source netip.Addr
	// CongestionControl is the congestion control algorithm of the connection (TCP_CONGESTION in
	// tcp(7)); "" is the system's default.
	CongestionControl string
	// Turn is the approximate number of bytes that one Poll sends, so that a goroutine that polls
	// several queues serves all of them. 0 means 256 KiB.
	Turn int
	// PSK makes the connections use TLS 1.3. It returns the PSK for the names of a controller,
	// which are empty with DialQueue.
	PSK func(hostNQN, subNQN string) (*auth.TLSPSK, error)
}

func (t TCP) Type() nvme.TransportType { return nvme.TransportTCP }

func (t TCP) open(ctx context.Context, p linkParams) (link, error) {
	fd, err := dialTCP(ctx, t)
	if err != nil {
		return nil, err
	}
	l := newTCPLink(fd, p)
	if t.Turn > 0 {
		l.turn = t.Turn
	}
	if t.PSK != nil {
		err = l.secure(ctx, t, p)
	}
	if err == nil {
		err = l.initialize(ctx, t, p.tolerant)
	}
	if err != nil {
		_ = l.close()
		return nil, err
	}
	return l, nil
}

// dialTCP returns a connected non-blocking socket.
func dialTCP(ctx context.Context, t TCP) (fd int, err error) {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if t.CongestionControl == "" {
			return nil
		}
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION,
				t.CongestionControl)
		}), err)
	}}
	if t.Source.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(t.Source, 0))
	}
	c, err := d.DialContext(ctx, "tcp", t.Addr.String())
	if err != nil {
		return -1, err
	}
	defer func() { _ = c.Close() }()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return -1, err
	}
	failed := raw.Control(func(from uintptr) {
		fd, err = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0)
	})
	return fd, errors.Join(failed, err)
}

// pollFD waits until fd has one of the events or ctx is done.
func pollFD(ctx context.Context, fd int, events int16) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		fds := []unix.PollFd{{Fd: int32(fd), Events: events}}
		if n, err := unix.Poll(fds, int(waitSlice(ctx).Milliseconds())); n > 0 {
			return nil
		} else if err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("poll", err)
		}
	}
}

func vector(b []byte) []sys.Iovec {
	iov := make([]sys.Iovec, 1)
	sys.SetIovec(&iov[0], b)
	return iov
}

// initialize exchanges ICReq and ICResp, checked as by Linux (TCP sections 3.6.2.2, 3.6.2.3).
func (l *tcpLink) initialize(ctx context.Context, t TCP, tolerant bool) error {
	want := pdu.Params{HeaderDigest: t.HeaderDigest, DataDigest: t.DataDigest, HPDA: t.HPDA}
	req := pdu.ICReq(&want, 1)
	for b := req[:]; len(b) > 0; {
		n, errno := l.sendmsg(vector(b))
		if errno == unix.EAGAIN {
			if err := pollFD(ctx, l.fd, unix.POLLOUT); err != nil {
				return err
			}
		} else if errno != 0 {
			return fmt.Errorf("%w: send ICReq: %w", ErrClosed, errno)
		}
		b = b[n:]
	}
	var resp pdu.IC
	for b := resp[:]; len(b) > 0; {
		n, _, errno := l.recvmsg(vector(b))
		switch {
		case errno == unix.EAGAIN:
			if err := pollFD(ctx, l.fd, unix.POLLIN); err != nil {
				return err
			}
			continue
		case errno != 0:
			return fmt.Errorf("%w: waiting for ICResp: %w", ErrRefused, errno)
		case n == 0:
			return fmt.Errorf("%w: the controller closed the connection instead of sending ICResp",
				ErrRefused)
		}
		b = b[n:]
		if done := len(resp) - len(b); done >= pdu.TermReqSize &&
			pdu.Type(resp[0]) == pdu.TypeC2HTermReq {
			return fmt.Errorf("%w: %w", ErrRefused, (*pdu.TermReq)(resp[:pdu.TermReqSize]).Fault())
		}
	}
	if f := want.CheckFromController(resp.Header(), 0); !f.OK() {
		return fmt.Errorf("%w: ICResp: %w", ErrRefused, f)
	}
	if f := resp.Check(); !f.OK() {
		return fmt.Errorf("%w: ICResp: %w", ErrRefused, f)
	}
	switch {
	case resp.HeaderDigest() != t.HeaderDigest || resp.DataDigest() != t.DataDigest:
		return fmt.Errorf("%w: ICResp: digests header %t data %t, requested %t %t", ErrRefused,
			resp.HeaderDigest(), resp.DataDigest(), t.HeaderDigest, t.DataDigest)
	case resp.PDA() != 0:
		return fmt.Errorf("%w: ICResp: CPDA %d, Linux accepts only 0", ErrRefused, resp.PDA())
	case !tolerant && [112]byte(resp[16:]) != [112]byte{}:
		return fmt.Errorf("%w: ICResp: reserved bytes are not zero", ErrRefused)
	}
	l.p = want
	l.p.MaxH2CData = resp.MaxH2CData()
	return nil
}
