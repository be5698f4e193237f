package volumes

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend/nvmedrive"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/inventory"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
)

// Namespace is a namespace of a configuration.
type Namespace struct {
	*config.Namespace
	NQN string // of its subsystem
	Key string // its place in the configuration: "subsystems[0].namespaces[1]"
}

// All lists the namespaces of the configuration in which no error was found.
func All(c *config.Config) (list []*Namespace) {
	for i := range c.Subsystems {
		for j := range c.Subsystems[i].Namespaces {
			if n := namespaceAt(c, i, j); !c.Faulty(n.Key) {
				list = append(list, n)
			}
		}
	}
	return list
}

// namespaceAt returns namespace j of subsystem i.
func namespaceAt(c *config.Config, i, j int) *Namespace {
	sub := &c.Subsystems[i]
	return &Namespace{
		&sub.Namespaces[j], sub.NQN, fmt.Sprintf("subsystems[%d].namespaces[%d]", i, j),
	}
}

// Find returns the namespace with this name, nil if the configuration has none.
func Find(c *config.Config, name config.Object) *Namespace {
	for i := range c.Subsystems {
		sub := &c.Subsystems[i]
		if sub.NQN != name.NQN {
			continue
		}
		for j := range sub.Namespaces {
			if sub.Namespaces[j].NSID == name.NSID {
				return namespaceAt(c, i, j)
			}
		}
	}
	return nil
}

// Name returns the name that the namespace has in changes of the configuration.
func (n *Namespace) Name() config.Object {
	return config.Object{Kind: config.KindNamespace, NQN: n.NQN, NSID: n.NSID}
}

// backing returns the storage below all wrappers, and its key.
func (n *Namespace) backing() (s *store, key string) {
	keys, layers := n.Layers(n.Key)
	last := len(layers) - 1
	return layers[last].Options.(*store), keys[last]
}

// Path returns the path of the storage, "" if it has none.
func (n *Namespace) Path() string {
	if s, _ := n.backing(); s.path != nil {
		return *s.path
	}
	return ""
}

// Image returns the name of the RBD image, "" if the storage is none.
func (n *Namespace) Image() string {
	if s, _ := n.backing(); s.image != nil {
		return *s.image
	}
	return ""
}

// Facts describes an image as hosts see it, for comparison with other gateways.
func (n *Namespace) Facts() string {
	s, _ := n.backing()
	if s.image == nil {
		return ""
	}
	return fmt.Sprintf("image %s, read_only %v, block_size %d, uuid %v, nguid %x, eui64 %x, "+
		"hosts %q", *s.image, n.ReadOnly, *s.blockSize, n.UUID, n.NGUID, n.EUI64,
		slices.Sorted(slices.Values(n.Hosts)))
}

// Place returns the path of the storage or the name of the image, "" if it has neither.
func (n *Namespace) Place() string { return n.Path() + n.Image() }

// BlockPath returns the path of the storage, of an NVMe drive that of its block device, or "".
func (n *Namespace) BlockPath() string {
	if ns, err := nvmedrive.Find(n.Path()); err == nil {
		return ns.Block
	}
	return n.Path()
}

// Memory returns the bytes of memory that volatile storage may take; 0: next to none.
func (n *Namespace) Memory() int64 {
	if s, _ := n.backing(); s.memory != nil {
		return *s.memory
	}
	return 0
}

// ConfiguredSize returns the size in bytes that the configuration gives a file, 0 without one.
func (n *Namespace) ConfiguredSize() int64 {
	if s, _ := n.backing(); s.least != nil {
		return s.least()
	}
	return 0
}

// Overlaps reports whether two namespaces have the same storage; images may be of two clusters.
func (n *Namespace) Overlaps(o *Namespace) bool {
	if n.Image() != "" {
		return n.Image() == o.Image()
	}
	mine, ok := stackOf(n)
	theirs, also := stackOf(o)
	if !ok || !also {
		return false
	}
	_, overlaps := mine.Overlaps(theirs.Stack)
	return overlaps
}

// drive returns the drive of the namespace, also of its partition; nil for others, as of files.
func (n *Namespace) drive() admin.Drive {
	var st unix.Stat_t
	if err := unix.Stat(n.BlockPath(), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return nil
	}
	if d := inventory.Linux().DriveOf(sys.DeviceNumber(st.Rdev)); d != nil {
		return d
	}
	return nil
}

// attrs identify the namespace in a log line.
func (n *Namespace) attrs() []any {
	return []any{"subsystem", n.NQN, "nsid", n.NSID, "path", n.Place()}
}
