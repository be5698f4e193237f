package controllers

import (
	"sync/atomic"
	"time"
	"unique"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/marks"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/internal/turns"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/association"
	"github.com/nvmf-target/nvmf-target/nvme/target/authn"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// Target is the state that all controllers of a target share.
type Target struct {
	Firmware string
	Started  time.Time
	// Reservations, Protection and Uncorrectable are stores, or nil.
	Reservations  reservation.Store
	Protection    ProtectionStore
	Uncorrectable marks.Store
	// QuiesceTime is CQT in milliseconds.
	QuiesceTime uint16
	Auth        *authn.Hosts
	Hosts       *subsystems.Hosts
	// HostLog is for lines that allowed hosts can cause, StrangerLog for lines that anybody can.
	HostLog, StrangerLog *ratelog.Logger
	// Workers do work that takes time for each namespace, controller or subsystem.
	Workers   turns.Pool
	Discovery atomic.Pointer[discovery.Table]
	// Commands returns the entries of log 05h, and the bits of ONCS, of the commands that a
	// controller has: of the admin queue or of I/O queues.
	Commands func(c *Controller, admin bool) ([256]nvme.Effect, nvme.ONCS)

	promises promises
}

// Init begins without promises. The caller has set the other fields.
func (t *Target) Init() {
	t.promises.of = map[observe.Namespace]*promise{}
	t.promises.untilRestart = map[observe.Namespace]bool{}
}

// ProtectionStore keeps through a restart which namespaces hosts have write protected.
type ProtectionStore interface {
	// Protected reports whether a namespace is. AddSubsystem and AddNamespace call it.
	Protected(nqn string, nsid uint32) bool
	// SetProtected keeps that, durably when it returns nil. It may block: no reactor calls it.
	SetProtected(nqn string, nsid uint32, protected bool) error
}

// Reactor is the reactor of a controller.
type Reactor struct {
	Now    func() int64
	Post   func(func())
	Pieces func(next func() int, done func()) // see list.Pieces
}

// Hooks are the functions of the admin queue of a controller.
type Hooks struct {
	// Fail ends the association. Any goroutine may call it.
	Fail func(why error)
	// Raised is called when an event has been raised.
	Raised func()
	// Work makes work that another goroutine does, in the turn of the host, once it is requested.
	Work func(run func()) *Work
	// Queues asks at most this number of queues of the controller, the newest ones, about their
	// state. It returns a channel with room for all answers, and their number.
	Queues func(most int) (answers <-chan []observed.Connection, n int)
	// SetKeepAlive starts the keep alive timer with a timeout in milliseconds. It returns the
	// timeout that applies.
	SetKeepAlive func(ms uint32) uint32
	// Grant lets the host connect n I/O queues. It returns false if some are connected.
	Grant func(n int) bool
}

// Controller is one association of a host with a subsystem.
type Controller struct {
	Target    *Target
	Subsystem *Subsystem
	Settings  *subsystems.Settings // as when it was created
	Port      *Port                // of the admin queue
	Info      *fabric.QueueInfo    // of the admin queue
	Reactor   *Reactor
	Hooks     Hooks
	Owner     any // the caller's

	CNTLID   uint16
	HostNQN  string
	HostID   [16]byte
	Identity reservation.HostHandle // of HostID and HostNQN
	Proof    authn.Proof
	// MustConcatenate: the host gets a PSK by authentication, and connects again with it.
	MustConcatenate bool
	Gone            chan struct{} // closed when the subsystem lists it no more

	Registers
	featureState
	driveWatch
	logs
	Events admin.Events
}

// Registers are the properties of a controller, and the state that follows from its last enabling.
type Registers struct {
	// I/O queues read Ready, WriteThrough and Discard.
	Ready atomic.Bool // enabled, not resetting, not shutting down, not failed
	// WriteThrough: completed writes must be durable: WCE is 0, or Identify reports no cache.
	WriteThrough atomic.Bool
	Discard      atomic.Bool // Dataset Management is offered

	admin.Registers
	cached     bool // Identify reports a volatile cache
	rotational bool // Identify reports endurance groups, see Independent
}

// Init begins with the defaults. The caller has set Target, Subsystem, Settings, Port, Info,
// Reactor, Hooks, HostNQN and HostID.
func (c *Controller) Init() {
	c.Identity = unique.Make(reservation.Host{HostID: c.HostID, NQN: c.HostNQN})
	c.Gone = make(chan struct{})
	c.Events.Discovery, c.Registers.Discovery = c.Subsystem.Discovery, c.Subsystem.Discovery
	c.Telemetry.Query = admin.Query[[]byte]{Ask: c.capture, Age: admin.TelemetryAge}
	c.resetFeatures()
}

// Reset is a Controller Reset.
func (c *Controller) Reset() {
	c.Events.Reset()
	c.logs.reset()
	c.resetFeatures()
}

// Entries is the size of the controller's queues: CAP.MQES+1.
func (c *Controller) Entries() int { return min(c.Settings.MaxQueueSize, max(c.Info.MaxDepth, 2)) }

// AdminEntries returns the largest size of its admin queue. MQES of a discovery controller is
// larger, because Linux warns if it is less than the requested size of I/O queues.
func (c *Controller) AdminEntries() int {
	if c.Subsystem.Discovery {
		return subsystems.MinQueueSize
	}
	return c.Entries()
}

// Made returns the data of package association; nil: there is no controller.
func (c *Controller) Made() *association.Controller {
	if c == nil {
		return nil
	}
	return &association.Controller{
		HostNQN: c.HostNQN, HostID: c.HostID, Admin: c.Info, Entries: c.Entries(),
		Discovery: c.Subsystem.Discovery,
	}
}

// Namespace returns the namespace if the host may use it, else nil. To a controller, others are
// inactive, as if they did not exist (Base section 3.2.1). Any goroutine.
func (c *Controller) Namespace(nsid uint32) *namespaces.Namespace {
	return c.Subsystem.Namespaces.Of(c.HostNQN, nsid)
}

// Namespaces lists the namespaces that the host may use. It looks at all, which are at most
// namespaces.MaxNSID. The caller does not change the list. Any goroutine.
func (c *Controller) Namespaces() []*namespaces.Namespace {
	return namespaces.Visible(c.Subsystem.Namespaces.Load().List, c.HostNQN)
}

// CommonInfo has the properties that any namespace of the host has, and Discard also if there is
// none. Any goroutine.
func (c *Controller) CommonInfo() (all backend.Info) {
	list := c.Namespaces()
	all.Discard = len(list) == 0
	for _, ns := range list {
		info := &ns.Geometry().Info
		all.VolatileCache = all.VolatileCache || info.VolatileCache
		all.Rotational = all.Rotational || info.Rotational
		all.Discard = all.Discard || info.Discard
	}
	return all
}

// Check validates an admin command, which has a buffer of this size, for the state of the
// controller. It returns the length of the data.
func (c *Controller) Check(sqe *nvme.SQE, buffer uint32) (n uint32, st nvme.Status) {
	switch sqe.Opcode() {
	case nvme.AdminIdentify:
		return nvme.IdentifyDataSize, c.checkIdentify(sqe.Identify())
	case nvme.AdminGetLogPage:
		return uint32(sqe.GetLog().Bytes()), c.checkGetLog(sqe)
	case nvme.AdminGetFeatures:
		return buffer, c.checkGetFeatures(sqe, buffer)
	}
	return c.checkSetFeatures(sqe)
}

// Adopt takes the properties of CommonInfo. Identify Controller reports them, and they do not
// change while the controller is enabled.
func (c *Controller) Adopt(all backend.Info) {
	c.cached, c.rotational = all.VolatileCache, all.Rotational
	c.WriteThrough.Store(!c.cached)
	c.Discard.Store(all.Discard)
}

// Scope reports whether a controller has a row of a table; nil means that all of them do.
type Scope func(c *Controller) bool

// Has reports whether a controller has the row.
func (s Scope) Has(c *Controller) bool { return s == nil || s(c) }

// OnIO is the scope of I/O controllers.
func OnIO(c *Controller) bool { return !c.Subsystem.Discovery }

func onDiscovery(c *Controller) bool { return c.Subsystem.Discovery }

// WithUncorrectable is the scope of Write Uncorrectable: a mark that a restart would end is none.
func WithUncorrectable(c *Controller) bool { return OnIO(c) && c.Target.Uncorrectable != nil }

// withProtection: a protection that a restart would end is none.
func withProtection(c *Controller) bool { return OnIO(c) && c.Target.Protection != nil }

// Refusals that a retry of the same command would meet again.
const (
	invalidField     = nvme.InvalidField | nvme.DNR
	invalidLength    = nvme.DataSGLLengthInvalid | nvme.DNR
	invalidNamespace = nvme.InvalidNamespaceOrFormat | nvme.DNR
	sequenceError    = nvme.CommandSequenceError | nvme.DNR
)

// NoNamespace is the status of a command with an NSID that names no namespace (Base section
// 3.2.1.5).
func NoNamespace(nsid uint32) nvme.Status {
	if nsid == 0 || nsid > namespaces.MaxNSID {
		return invalidNamespace
	}
	return invalidField
}
