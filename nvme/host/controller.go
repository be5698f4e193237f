package host

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// Options describe a connection to a controller.
type Options struct {
	// HostNQN and HostID identify the host.
	HostNQN string
	HostID  [16]byte
	// SubNQN is the subsystem; nvme.DiscoveryNQN for a discovery controller.
	SubNQN string
	// Key authenticates the host if the controller requires it. With ControllerKey the controller
	// has to authenticate itself, too. Hashes and Groups are offered; empty means all.
	Key, ControllerKey *auth.Key
	Hashes             []auth.Hash
	Groups             []auth.Group
	// Concatenation is requested in authentication; Generated is the resulting PSK.
	Concatenation auth.Concatenation
	Generated     *auth.TLSPSK
	// KATO is the keep alive timeout, in whole milliseconds; 0 turns keep alive off. A Keep Alive
	// is sent at half of it.
	KATO time.Duration
	// NoKeepAlive suppresses Keep Alive commands, for tests of expiry.
	NoKeepAlive bool
	// NoFlowControl turns SQ flow control off. A TCP controller may then use the success flag.
	NoFlowControl bool
	// AdminSize is the number of entries of the admin queue, 32 if 0.
	AdminSize int
	// Tolerant accepts violations of the specification that the Linux host accepts and that do not
	// endanger memory of this host: values in reserved fields, any SQHD, the success flag with flow
	// control.
	Tolerant bool
	// Timeout bounds each admin command, 10 s if 0.
	Timeout time.Duration
}

// Controller is an association with one controller: its admin queue and its identity. Any
// goroutine may call its methods.
type Controller struct {
	t      Transport
	o      Options
	cntlid uint16
	cap    nvme.CAP
	id     *nvme.IdentifyController
	mem    *memory
	admin  *admin
	close  sync.Once
}

// Dial opens an admin queue and sends the Connect command. The controller is not yet enabled.
func Dial(ctx context.Context, t Transport, o Options) (*Controller, error) {
	o.AdminSize = cmp.Or(o.AdminSize, 32)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	c := &Controller{t: t, o: o, mem: new(memory)}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	l, err := t.open(ctx,
		c.params(0, o.AdminSize, nvme.CNTLIDDynamic))
	if err != nil {
		return nil, fmt.Errorf("admin queue: %w", err)
	}
	q := newQueue(l, 0, o.AdminSize, 0)
	q.flow, q.tolerant = !o.NoFlowControl, o.Tolerant
	if c.admin, err = startAdmin(q); err != nil {
		_ = q.Close()
		return nil, err
	}
	cqe, err := c.Admin(ctx, ConnectCommand(0, o.AdminSize, &o, nvme.CNTLIDDynamic))
	if err == nil && !cqe.Status().OK() {
		err = &ConnectError{Status: cqe.Status(), Invalid: nvme.InvalidParameter(cqe.DW0())}
	}
	if err == nil && nvme.ConnectResult(cqe.DW0())&nvme.ConnectATR != 0 {
		err = c.Authenticate(ctx)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("connect %q: %w", o.SubNQN, err)
	}
	c.cntlid = nvme.ConnectResult(cqe.DW0()).CNTLID()
	if o.KATO > 0 && !o.NoKeepAlive {
		c.admin.keepAlive(o.KATO / 2)
	}
	return c, nil
}

// ConnectError is a refused Connect command.
type ConnectError struct {
	Status nvme.Status
	// Invalid names the offending field for Connect Invalid Parameters and Connect Invalid Host.
	Invalid nvme.InvalidParameter
}

func (e *ConnectError) Error() string {
	c := e.Status.Code()
	if e.Invalid != 0 && (c == nvme.ConnectInvalidParameters || c == nvme.ConnectInvalidHost) {
		return fmt.Sprintf("%s: the target refuses %s", e.Status, invalidField(e.Invalid))
	}
	return e.Status.String()
}

// invalidField names the field of a Connect command or its data.
func invalidField(p nvme.InvalidParameter) string {
	if !p.InData() {
		return fmt.Sprintf("byte %d of the command", p.IPO())
	}
	switch p.IPO() {
	case nvme.ConnectDataOffsetHostID:
		return "the host identifier"
	case nvme.ConnectDataOffsetCNTLID:
		return "the controller ID"
	case nvme.ConnectDataOffsetSUBNQN:
		return "the subsystem NQN"
	case nvme.ConnectDataOffsetHOSTNQN:
		return "the host NQN"
	}
	return fmt.Sprintf("byte %d of the data", p.IPO())
}

func (e *ConnectError) Unwrap() error { return e.Status }

// Connect is Dial and Enable.
func Connect(ctx context.Context, t Transport, o Options) (*Controller, error) {
	c, err := Dial(ctx, t, o)
	if err != nil {
		return nil, err
	}
	if err := c.Enable(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("enable %q: %w", o.SubNQN, err)
	}
	return c, nil
}

// Enable enables the controller and identifies it, in the order of the Linux host.
func (c *Controller) Enable(ctx context.Context) error {
	v, err := c.PropertyGet(ctx, nvme.PropertyCAP)
	if err != nil {
		return err
	}
	c.cap = nvme.CAP(v)
	cc := nvme.CCLinux
	if err := c.PropertySet(ctx, nvme.PropertyCC, uint64(cc&^nvme.CCEnable)); err != nil {
		return err
	}
	if v, err = c.PropertyGet(ctx, nvme.PropertyCAP); err != nil {
		return err
	}
	if nvme.CAP(v)&nvme.CAPCRMSMedia != 0 {
		if _, err := c.PropertyGet(ctx, nvme.PropertyCRTO); err != nil {
			return err
		}
	}
	if err := c.PropertySet(ctx, nvme.PropertyCC, uint64(cc)); err != nil {
		return err
	}
	if err := c.waitStatus(ctx, "ready", func(s nvme.CSTS) bool { return s.RDY() }); err != nil {
		return err
	}
	if _, err = c.PropertyGet(ctx, nvme.PropertyVS); err != nil { // as Linux does
		return err
	}
	if c.id, err = c.IdentifyController(ctx); err != nil {
		return err
	}
	return c.checkIdentity()
}

// waitStatus reads CSTS until ok returns true, with the timeout of the Linux host.
func (c *Controller) waitStatus(ctx context.Context, what string, ok func(nvme.CSTS) bool) error {
	limit := time.Duration(int(c.cap.TO())+1) * 500 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		v, err := c.PropertyGet(ctx, nvme.PropertyCSTS)
		if err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
		if s := nvme.CSTS(v); ok(s) {
			return nil
		} else if s.CFS() {
			return fmt.Errorf("waiting for %s: CSTS %#x: the controller has failed", what, s)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting %v for %s: %w", limit, what, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// Reset clears CC.EN and waits until the controller is not ready. That ends its I/O queues. Enable
// starts it again.
func (c *Controller) Reset(ctx context.Context) error {
	if err := c.PropertySet(ctx, nvme.PropertyCC, uint64(nvme.CCLinux&^nvme.CCEnable)); err != nil {
		return err
	}
	return c.waitStatus(ctx, "not ready", func(s nvme.CSTS) bool { return !s.RDY() })
}

// Shutdown requests a normal shutdown with CC.SHN and waits until it is complete.
func (c *Controller) Shutdown(ctx context.Context) error {
	if err := c.PropertySet(ctx, nvme.PropertyCC,
		uint64(nvme.CCLinux|nvme.CCShutdownNormal)); err != nil {
		return err
	}
	return c.waitStatus(ctx, "shutdown",
		func(s nvme.CSTS) bool { return s&nvme.CSTSShutdownComplete != 0 })
}

// Close ends the admin queue without a shutdown, after all I/O queues, and frees Map's memory.
func (c *Controller) Close() {
	c.close.Do(func() {
		if c.admin != nil {
			c.admin.stop()
		}
		c.mem.free()
	})
}

// Done is closed when the admin queue has ended; Err returns the reason.
func (c *Controller) Done() <-chan struct{} { return c.admin.ended }

// Err is the reason why the admin queue ended, nil while it works.
func (c *Controller) Err() error {
	select {
	case <-c.admin.ended:
		return c.admin.err
	default:
		return nil
	}
}

// Options returns the options of the association. Authenticate uses and changes them.
func (c *Controller) Options() *Options { return &c.o }

// CNTLID returns the controller's identifier.
func (c *Controller) CNTLID() uint16 { return c.cntlid }

// CAP returns the controller's capabilities, once enabled.
func (c *Controller) CAP() nvme.CAP { return c.cap }

// Identity returns the Identify Controller data read by Enable.
func (c *Controller) Identity() *nvme.IdentifyController { return c.id }

// MaxTransfer returns the largest data transfer of a command in bytes (MDTS), 0 if unlimited.
func (c *Controller) MaxTransfer() int {
	if c.id.MDTS == 0 {
		return 0
	}
	return c.cap.MPSMin() << c.id.MDTS
}

func (c *Controller) params(qid uint16, size int, cntlid uint16) linkParams {
	return linkParams{
		qid: qid, size: size, cntlid: cntlid, mem: c.mem, hostNQN: c.o.HostNQN, subNQN: c.o.SubNQN,
		tolerant: c.o.Tolerant,
	}
}

// OpenQueue connects an I/O queue of size entries. The caller closes it.
func (c *Controller) OpenQueue(ctx context.Context, qid uint16, size int) (*Queue, error) {
	if size > MaxQueueSize {
		return nil, fmt.Errorf("queue %d: %d entries, at most %d", qid, size, MaxQueueSize)
	}
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	l, err := c.t.open(ctx, c.params(qid, size, c.cntlid))
	if err != nil {
		return nil, fmt.Errorf("queue %d: %w", qid, err)
	}
	capsule := 0
	if c.id != nil {
		capsule = max(int(c.id.IOCCSZ)*16-nvme.SQESize, 0)
		if c.t.Type() == nvme.TransportRDMA && c.id.SGLS&nvme.SGLSOffset == 0 {
			capsule = 0
		}
	}
	q := newQueue(l, qid, size, capsule)
	q.tolerant = c.o.Tolerant
	cqe, err := q.Do(ctx, ConnectCommand(qid, size, &c.o, c.cntlid))
	if err == nil && !cqe.Status().OK() {
		err = &ConnectError{Status: cqe.Status(), Invalid: nvme.InvalidParameter(cqe.DW0())}
	}
	if err == nil && nvme.ConnectResult(cqe.DW0()).CNTLID() != c.cntlid {
		err = q.violation("Connect answered with CNTLID %#x instead of %#x", cqe.DW0(), c.cntlid)
	}
	if err == nil && nvme.ConnectResult(cqe.DW0())&nvme.ConnectATR != 0 {
		err = q.Authenticate(ctx, &c.o)
	}
	if err != nil {
		_ = q.Close()
		return nil, fmt.Errorf("queue %d: connect: %w", qid, err)
	}
	return q, nil
}
