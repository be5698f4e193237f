package subsystems

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/bits"
	"strings"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// Config describes an NVM subsystem.
type Config struct {
	// NQN names the subsystem; required. A name that does not begin as an NQN causes a warning.
	NQN string
	// Serial (at most 20 ASCII characters; derived from the NQN if empty) and Model (at most 40;
	// "nvmf-target" if empty) are shown by Identify Controller.
	Serial, Model string
	// AllowAnyHost admits every host. Otherwise only hosts with an NQN in Hosts are admitted,
	// compared byte by byte. Neither is authentication.
	AllowAnyHost bool
	Hosts        []string
	// Security is the security required of admitted hosts.
	Security Security
	// Listeners are the listeners of the subsystem for hosts, as in Port.Listener. Empty: all.
	Listeners []string
	// RefuseDuplicateHosts refuses a host that is connected with another Host Identifier already.
	// It is logged in any case.
	RefuseDuplicateHosts bool
	// CNTLIDMin and CNTLIDMax bound the controller identifiers, 1 to FFEFh if zero. Targets that
	// share a subsystem NQN need disjoint ranges.
	CNTLIDMin, CNTLIDMax uint16
	// MaxIOQueues is the number of I/O queues a controller may have, 128 if zero; MaxQueueSize the
	// entries of a queue, 32 to 65536, 128 if zero.
	MaxIOQueues, MaxQueueSize int
	// MaxTransfer is the largest amount of data of a command in bytes, a power of two from 64 KiB
	// to 4 MiB; 1 MiB if zero. The data memory of a reactor must hold several.
	MaxTransfer int
	// Limits are the limits of all hosts together.
	Limits     qos.Limits
	Namespaces []namespaces.Config
}

// The bounds of Config, which the configuration's parser uses as well.
const (
	SerialSize  = 20 // Base section 5.1.13.2.1
	ModelSize   = 40 // as above
	MinCNTLID   = 1
	MaxIOQueues = 1024
	// MinQueueSize is the least size of a queue. Discovery controllers, which anybody may create,
	// have no more.
	MinQueueSize = discovery.MinQueueSize
	// MinTransfer is the least that MDTS may allow (Base section 5.1.13.2.1). No block is larger.
	MinTransfer = namespaces.MaxBlock
	// MaxTransfer is the most that MDTS may allow.
	MaxTransfer = 4 << 20
)

const (
	defaultModel    = "nvmf-target"
	defaultIOQueues = 128
	defaultEntries  = 128
	defaultTransfer = 1 << 20
)

// Discovery is the configuration of the discovery service besides subsystems and ports.
type Discovery struct {
	// NQN is a name of its own beside nvme.DiscoveryNQN, which all discovery services have; ""
	// for none.
	NQN string
	// Security is the security that it requires of hosts.
	Security Security
	// Referrals are other discovery services.
	Referrals []discovery.Referral
}

// SetDefaults replaces zero values by the defaults; Serial if there is an NQN.
func (c *Config) SetDefaults() {
	if c.Serial == "" && c.NQN != "" {
		c.Serial = derivedSerial(c.NQN)
	}
	c.Model = cmp.Or(c.Model, defaultModel)
	c.CNTLIDMin = cmp.Or(c.CNTLIDMin, MinCNTLID)
	c.CNTLIDMax = cmp.Or(c.CNTLIDMax, nvme.CNTLIDMax)
	c.MaxIOQueues = cmp.Or(c.MaxIOQueues, defaultIOQueues)
	c.MaxQueueSize = cmp.Or(c.MaxQueueSize, defaultEntries)
	c.MaxTransfer = cmp.Or(c.MaxTransfer, defaultTransfer)
}

// Validate returns an error that names an invalid value, or nil. It leaves out the namespaces.
func (c *Config) Validate() error {
	if err := nvme.ValidateNQN(c.NQN); err != nil {
		return fmt.Errorf("subsystem: %w", err)
	}
	fail := func(format string, args ...any) error {
		return fmt.Errorf("subsystem %q: %s", c.NQN, fmt.Sprintf(format, args...))
	}
	switch {
	case c.NQN == nvme.DiscoveryNQN:
		return fail("the discovery subsystem is built in")
	case len(c.Serial) > SerialSize || !isText(c.Serial):
		return fail("serial %q: at most %d printable ASCII characters are allowed", c.Serial,
			SerialSize)
	case len(c.Model) > ModelSize || !isText(c.Model):
		return fail("model %q: at most %d printable ASCII characters are allowed", c.Model,
			ModelSize)
	case c.CNTLIDMin > c.CNTLIDMax || c.CNTLIDMax > nvme.CNTLIDMax:
		return fail("CNTLID range %d to %d: must ascend and end at most at %d", c.CNTLIDMin,
			c.CNTLIDMax, nvme.CNTLIDMax)
	case c.MaxIOQueues < 1 || c.MaxIOQueues > MaxIOQueues:
		return fail("%d I/O queues: 1 to %d are allowed", c.MaxIOQueues, MaxIOQueues)
	case c.MaxQueueSize < MinQueueSize || c.MaxQueueSize > 65536:
		return fail("queue size %d: %d to 65536 are allowed", c.MaxQueueSize, MinQueueSize)
	case c.MaxTransfer < MinTransfer || c.MaxTransfer > MaxTransfer ||
		c.MaxTransfer&(c.MaxTransfer-1) != 0:
		return fail("largest transfer %d: a power of two from %d to %d is allowed", c.MaxTransfer,
			MinTransfer, MaxTransfer)
	}
	for _, h := range c.Hosts {
		if err := nvme.ValidateNQN(h); err != nil {
			return fmt.Errorf("subsystem %q: host: %w", c.NQN, err)
		}
	}
	return nil
}

// derivedSerial is a stable serial number for a subsystem.
func derivedSerial(nqn string) string {
	sum := sha256.Sum256([]byte(nqn))
	return hex.EncodeToString(sum[:10])
}

func isText(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// MDTS is MaxTransfer as Identify Controller has it: a power of two in units of 4 KiB (CAP.MPSMIN).
func (c *Config) MDTS() uint8 { return uint8(bits.TrailingZeros(uint(c.MaxTransfer)) - 12) }
