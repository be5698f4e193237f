package target

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// NamespaceConfig describes a namespace.
type NamespaceConfig struct {
	// NSID is 1 to MaxNSID.
	NSID uint32
	// Device is the storage, open. The target does not close it.
	Device backend.Device
	// UUID, NGUID and EUI64 identify the namespace to hosts and are the same on every path. If all
	// are zero, UUID and NGUID are derived from the subsystem NQN and the NSID.
	UUID  uuid.UUID
	NGUID [16]byte
	EUI64 [8]byte
	// Drive is the hardware that holds Device. Hosts read its health. It is nil if there is none,
	// or if Device shares it with other things.
	Drive admin.Drive
	// ReadOnly refuses writes even if the device would accept them.
	ReadOnly bool
	// Hosts are the NQNs of the hosts of the subsystem that may use the namespace; empty: all.
	Hosts []string
	// Timeout is how long the device may take for a command before the command is given up; 0 means
	// no limit.
	Timeout time.Duration
	// Limits are the limits of all hosts together.
	Limits qos.Limits
	// ANAGroup is 1 to ana.MaxGroups, 1 if zero. See SetANAStates.
	ANAGroup uint32
}

// MaxNSID is NN of Identify Controller: the largest namespace identifier.
const MaxNSID = 8192

// identifierSpace is the UUID name space in which identifiers are derived; it must never change.
var identifierSpace = uuid.NewSHA1(uuid.NameSpaceURL,
	[]byte("https://github.com/nvmf-target/nvmf-target/namespace"))

// derivedSerial is a stable serial number for a subsystem.
func derivedSerial(nqn string) string {
	sum := sha256.Sum256([]byte(nqn))
	return hex.EncodeToString(sum[:10])
}

// namespace is a namespace of one subsystem. It is immutable but for fields that are atomic or have
// a lock.
type namespace struct {
	dispatch.Namespace
	sub  *subsystem
	nsid uint32
	name observe.Namespace
	slot int // index of this namespace's channel in every Handler

	cfg           atomic.Pointer[attributes] // written with state.mu held
	updating      sync.Mutex                 // held while it changes
	paused        atomic.Bool                // see PauseNamespace; written with updating held
	geo           atomic.Pointer[geometry]
	state         namespaceState
	*promises                   // of the NQN and NSID
	errorRecovery atomic.Uint32 // as hosts have set it
	// failureLogged is when a failed IO was last logged, by index of ioErrors; 0: never.
	failureLogged [len(ioErrors)]atomic.Int64
}

// attributes are the properties that UpdateNamespace may change. They are immutable.
type attributes struct {
	dev  backend.Device
	uuid uuid.UUID
	// nguid and eui64 are zero if the namespace has none.
	nguid [16]byte
	eui64 [8]byte

	hosts    map[string]bool     // that may use it; nil: all
	anaGroup uint32              // of ANAGroup
	readOnly bool                // as configured
	timeout  int64               // nanoseconds, 0 is none
	drive    *admin.CachedDrive  // nil if there is none
	space    *admin.Query[space] // nil if dev cannot tell
	limits   qos.Limits
	limiter  *qos.Limiter // nil: no limits
}

// newAttributes has the attributes of cfg with a device.
func (s *subsystem) newAttributes(cfg NamespaceConfig, dev backend.Device) *attributes {
	a := &attributes{
		dev: dev, uuid: cfg.UUID, nguid: cfg.NGUID, eui64: cfg.EUI64, hosts: setOf(cfg.Hosts),
		readOnly: cfg.ReadOnly, anaGroup: cmp.Or(cfg.ANAGroup, 1),
		timeout: cfg.Timeout.Nanoseconds(), drive: admin.NewCachedDrive(cfg.Drive, s.t.log),
		space: newSpaceQuery(dev), limits: cfg.Limits,
	}
	if a.uuid == uuid.Nil && a.nguid == [16]byte{} && a.eui64 == [8]byte{} {
		a.uuid = uuid.NewSHA1(identifierSpace, fmt.Appendf(nil, "%s\n%d", s.nqn, cfg.NSID))
		a.nguid = a.uuid
	}
	return a
}

// geometry has the properties of a device that the I/O path uses.
type geometry struct {
	blocks   uint64
	shift    uint8 // log2 of the block size
	readOnly bool
	unready  bool // the storage is offline or does not answer
	info     backend.Info
}

// size is in bytes.
func (g *geometry) size() int64 { return int64(g.blocks << g.shift) }

func newGeometry(info backend.Info, readOnly bool) (*geometry, error) {
	bs := info.BlockSize
	if bs < 512 || bs&(bs-1) != 0 || bs > MinTransfer {
		return nil, fmt.Errorf("block size %d: must be a power of two from 512 to %d", bs,
			MinTransfer)
	}
	if info.Size < int64(bs) {
		return nil, fmt.Errorf("size %d is below one block of %d bytes", info.Size, bs)
	}
	shift := uint8(bits.TrailingZeros(uint(bs)))
	info.Identity = "" // hosts do not see it: another one is no change
	return &geometry{
		blocks: uint64(info.Size) >> shift, shift: shift, info: info,
		readOnly: readOnly || info.ReadOnly,
	}, nil
}

// newNamespace makes a namespace that no table lists yet. The caller holds t.mu.
func (s *subsystem) newNamespace(cfg NamespaceConfig) (*namespace, error) {
	ns := &namespace{sub: s, nsid: cfg.NSID}
	ns.name = observe.Namespace{SubNQN: s.nqn, NSID: cfg.NSID}
	fail := func(err error) (*namespace, error) { return nil, ns.fail(err) }
	if cfg.NSID < 1 || cfg.NSID > MaxNSID {
		return fail(fmt.Errorf("nsid must be 1 to %d", MaxNSID))
	}
	if cfg.ANAGroup > ana.MaxGroups {
		return fail(fmt.Errorf("ANA group %d: 1 to %d are allowed", cfg.ANAGroup, ana.MaxGroups))
	}
	if cfg.Device == nil {
		return fail(errors.New("no device"))
	}
	geo, err := newGeometry(cfg.Device.Info(), cfg.ReadOnly)
	if err != nil {
		return fail(err)
	}
	a := s.newAttributes(cfg, cfg.Device)
	a.limiter = qos.NewLimiter(a.limits, nil)
	ns.cfg.Store(a)
	ns.geo.Store(geo)
	ns.state.protection = s.t.protectionOf(s.nqn, cfg.NSID)
	ns.slot = s.t.takeSlot(ns)
	ns.promises = s.t.promisesOf(namespaceName{s.nqn, cfg.NSID})
	ns.Storage, ns.Reservations = ns, ns.reservations
	ns.reservations.Attach(ns)
	ns.marks.Attach(cfg.Device)
	ns.marks.Cut(geo.size())
	ns.startNotify()
	return ns, nil
}

// fail says which namespace an error is about.
func (ns *namespace) fail(err error) error {
	return fmt.Errorf("subsystem %q: namespace %d: %w", ns.sub.nqn, ns.nsid, err)
}

// startNotify begins the notifications of the device.
func (ns *namespace) startNotify() {
	log := ns.sub.t.log
	if d, ok := ns.cfg.Load().dev.(backend.Changer); ok {
		d.Notify(func() { ns.changed(log) })
	}
	ns.changed(log) // it may have changed, or have been offline, before
}

// stopNotify ends the notifications of devices. It waits for one that is in progress, which does
// not take Target.mu.
func stopNotify(list []*namespace) {
	for _, ns := range list {
		if d, ok := ns.cfg.Load().dev.(backend.Changer); ok {
			d.Notify(nil)
		}
	}
}

// namespaceTable is an immutable set of namespaces.
type namespaceTable struct {
	list []*namespace // ascending
	byID []*namespace // indexed by NSID, nil where there is none
}

func newNamespaceTable(list []*namespace) *namespaceTable {
	slices.SortFunc(list, func(a, b *namespace) int { return int(a.nsid) - int(b.nsid) })
	t := &namespaceTable{list: list}
	if n := len(list); n > 0 {
		t.byID = make([]*namespace, list[n-1].nsid+1)
	}
	for _, ns := range list {
		t.byID[ns.nsid] = ns
	}
	return t
}

// get returns the namespace, or nil.
func (t *namespaceTable) get(nsid uint32) *namespace {
	if uint64(nsid) < uint64(len(t.byID)) {
		return t.byID[nsid]
	}
	return nil
}
