package namespaces

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/marks"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// Common is the state that the namespaces of a target share.
type Common struct {
	Log     *slog.Logger
	Started time.Time // of the target
	// CloseDeadline is how long a change waits for a first flush and for hosts to end zero-copy
	// reads and writes, and DrainDeadline how long it waits for the device to complete others.
	CloseDeadline, DrainDeadline time.Duration
}

// Notice is a change for the controllers and the reactors of a namespace.
type Notice uint8

// The notices.
const (
	Changed  Notice = iota // Identify shows another namespace, or none, or one that was hidden
	Regroups               // the namespace is in another ANA group
	Degrades               // accepted writes may be lost
	Relimits               // reactors with a channel use other limits; it does not concern hosts
)

// Namespace is a namespace of one subsystem. It is immutable but for fields that are atomic or have
// a lock. The caller of Init sets Storage, Reservations, Marks, Protected, Owner and Slot before
// Start.
type Namespace struct {
	dispatch.Namespace
	ID    observe.Namespace
	Marks *marks.Marks
	// Protected changes while no reactor has a channel to the device, or the device is offline.
	Protected *Protected
	// Owner is the subsystem, and Slot the place of the namespace in lists of the caller of Init.
	Owner any
	Slot  int
	// ErrorRecovery is TLER, as hosts have set it.
	ErrorRecovery atomic.Uint32

	common *Common
	tell   func(n Notice, concerns func(hostNQN string) bool)

	cfg      atomic.Pointer[Attributes] // written with state.mu held
	updating sync.Mutex                 // held while it changes
	paused   atomic.Bool                // see Pause; written with updating held
	geo      atomic.Pointer[Geometry]
	state    state
	// failureLogged is when a failed IO was last logged, by index of ioErrors; 0: never.
	failureLogged [len(ioErrors)]atomic.Int64
}

// Protected is the state of the write protection by hosts, an nvme.WriteProtection. It outlives the
// namespace. Changing is held while that and the store change, before locks of the namespace.
type Protected struct {
	atomic.Uint32
	Changing sync.Mutex
}

// Init makes a namespace of the subsystem nqn with the device of cfg. tell notifies the hosts that
// a notice concerns. concerns is nil if these are the hosts that may use the namespace, and always
// on reactors. Any goroutine calls tell, which does not block.
func (ns *Namespace) Init(nqn string, cfg Config, c *Common,
	tell func(n Notice, concerns func(hostNQN string) bool),
) error {
	ns.ID = observe.Namespace{SubNQN: nqn, NSID: cfg.NSID}
	ns.common, ns.tell = c, tell
	if err := cfg.check(); err != nil {
		return ns.fail(err)
	}
	if cfg.Device == nil {
		return ns.fail(errors.New("no device"))
	}
	g, err := newGeometry(cfg.Device.Info(), cfg.ReadOnly)
	if err != nil {
		return ns.fail(err)
	}
	a := ns.attributes(cfg, cfg.Device)
	a.Limiter = qos.NewLimiter(a.Limits, nil)
	ns.cfg.Store(a)
	ns.geo.Store(g)
	return nil
}

// Start begins with the marks of the device.
func (ns *Namespace) Start() {
	ns.Marks.Attach(ns.Device())
	ns.Marks.Cut(ns.Geometry().Size())
	ns.startNotify()
}

// Attributes returns the current attributes.
func (ns *Namespace) Attributes() *Attributes { return ns.cfg.Load() }

// Geometry returns the current geometry.
func (ns *Namespace) Geometry() *Geometry { return ns.geo.Load() }

// fail names the namespace that an error is about.
func (ns *Namespace) fail(err error) error {
	return fmt.Errorf("subsystem %q: namespace %d: %w", ns.ID.SubNQN, ns.ID.NSID, err)
}

// startNotify begins the notifications of the device.
func (ns *Namespace) startNotify() {
	if d, ok := ns.Device().(backend.Changer); ok {
		d.Notify(ns.changed)
	}
	ns.changed() // it may have changed, or have been offline, before
}

// StopNotify ends the notifications of the device. It waits for one that is in progress.
func (ns *Namespace) StopNotify() {
	if d, ok := ns.Device().(backend.Changer); ok {
		d.Notify(nil)
	}
}

// identity names the storage in logs.
func (ns *Namespace) identity() string { return ns.Device().Info().Identity }

// Name implements dispatch.Storage.
func (ns *Namespace) Name() (nqn string, nsid uint32) { return ns.ID.SubNQN, ns.ID.NSID }

// Device implements dispatch.Storage.
func (ns *Namespace) Device() backend.Device { return ns.cfg.Load().Device }

// Mark implements dispatch.Storage.
func (ns *Namespace) Mark(dev backend.Channel, wake func()) backend.Channel {
	if !ns.Marks.Begun() {
		return nil
	}
	size := func() int64 { return ns.geo.Load().Size() }
	return ns.Marks.Wrap(dev, wake, size, ns.geo.Load().Info.Volatile)
}
