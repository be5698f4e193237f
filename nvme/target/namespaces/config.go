package namespaces

import (
	"cmp"
	"fmt"
	"math/bits"
	"time"

	"github.com/google/uuid"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// Config describes a namespace.
type Config struct {
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
	// ANAGroup is 1 to ana.MaxGroups, 1 if zero. See Target.SetANAStates.
	ANAGroup uint32
}

const (
	// MaxNSID is NN of Identify Controller: the largest namespace identifier.
	MaxNSID = 8192
	// MaxBlock is the largest block size, in bytes.
	MaxBlock = 64 << 10
)

// identifierSpace is the UUID name space in which identifiers are derived; it must never change.
var identifierSpace = uuid.NewSHA1(uuid.NameSpaceURL,
	[]byte("https://github.com/nvmf-target/nvmf-target/namespace"))

// Attributes are the properties of a namespace that Update may change. They are immutable.
type Attributes struct {
	Config // with identifiers and an ANA group
	// Drive is nil if there is none. It takes the place of Config.Drive.
	Drive *admin.CachedDrive
	// Space is nil if Device cannot tell.
	Space *admin.Query[Space]
	// Limiter is nil if there are no limits.
	Limiter *qos.Limiter

	hosts map[string]bool // nil: all
}

// attributes has the attributes of cfg with a device.
func (ns *Namespace) attributes(cfg Config, dev backend.Device) *Attributes {
	cfg.Device, cfg.ANAGroup = dev, cmp.Or(cfg.ANAGroup, 1)
	if cfg.UUID == uuid.Nil && cfg.NGUID == [16]byte{} && cfg.EUI64 == [8]byte{} {
		cfg.UUID = uuid.NewSHA1(identifierSpace, fmt.Appendf(nil, "%s\n%d", ns.ID.SubNQN, cfg.NSID))
		cfg.NGUID = cfg.UUID
	}
	a := &Attributes{
		Config: cfg, Space: newSpaceQuery(dev),
		Drive: admin.NewCachedDrive(cfg.Drive, ns.common.Log),
	}
	if len(cfg.Hosts) > 0 {
		a.hosts = make(map[string]bool, len(cfg.Hosts))
		for _, h := range cfg.Hosts {
			a.hosts[h] = true
		}
	}
	return a
}

// Visible reports whether a host may use the namespace.
func (a *Attributes) Visible(hostNQN string) bool { return a.hosts == nil || a.hosts[hostNQN] }

// check returns the first reason why a namespace cannot be as cfg describes it.
func (c *Config) check() error {
	switch {
	case c.NSID < 1 || c.NSID > MaxNSID:
		return fmt.Errorf("nsid must be 1 to %d", MaxNSID)
	case c.ANAGroup > ana.MaxGroups:
		return fmt.Errorf("ANA group %d: 1 to %d are allowed", c.ANAGroup, ana.MaxGroups)
	}
	return nil
}

// Geometry has the properties of a device that the I/O path uses. It is immutable.
type Geometry struct {
	Blocks   uint64
	Shift    uint8 // log2 of the block size
	ReadOnly bool
	Unready  bool // the storage is offline or does not answer
	Info     backend.Info
}

// Size is in bytes.
func (g *Geometry) Size() int64 { return int64(g.Blocks << g.Shift) }

func newGeometry(info backend.Info, readOnly bool) (*Geometry, error) {
	bs := info.BlockSize
	if bs < 512 || bs&(bs-1) != 0 || bs > MaxBlock {
		return nil, fmt.Errorf("block size %d: must be a power of two from 512 to %d", bs, MaxBlock)
	}
	if info.Size < int64(bs) {
		return nil, fmt.Errorf("size %d is below one block of %d bytes", info.Size, bs)
	}
	shift := uint8(bits.TrailingZeros(uint(bs)))
	info.Identity = "" // hosts do not see it: another one is not a change
	return &Geometry{
		Blocks: uint64(info.Size) >> shift, Shift: shift, Info: info,
		ReadOnly: readOnly || info.ReadOnly,
	}, nil
}
