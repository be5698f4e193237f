package app

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend/nvmedrive"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/inventory"
)

// Disks lists the disks of this machine. The configuration, which tells which of them the target
// uses, may be missing unless it was asked for.
func Disks(file string, asked bool, environ []string, out io.Writer) error {
	c, err := config.Load(file, environ, backends)
	if err != nil && (asked || !errors.Is(err, os.ErrNotExist)) {
		return err
	}
	var users map[string][]string
	if c != nil {
		users = diskUsers(c)
	}
	list, err := inventory.Linux().List(users)
	if err != nil {
		return err
	}
	return inventory.Print(out, list)
}

// blockPath is the path of a storage, of a namespace of an NVMe drive that of its block device.
func blockPath(s *config.Storage) string {
	path := s.Options.(storage).path()
	if s.Backend == "nvme" {
		if ns, err := nvmedrive.Find(path); err == nil {
			return ns.Block
		}
	}
	return path
}

// diskUsers says which namespaces lie on which device, by its number ("8:1"). Files that do not
// exist yet lie nowhere.
func diskUsers(c *config.Config) map[string][]string {
	users := map[string][]string{}
	for _, s := range c.Subsystems {
		for _, n := range s.Namespaces {
			_, layers := n.Layers("")
			info, err := os.Stat(blockPath(layers[len(layers)-1]))
			if err != nil {
				continue
			}
			st := info.Sys().(*syscall.Stat_t)
			dev := st.Dev
			if st.Mode&unix.S_IFMT == unix.S_IFBLK {
				dev = st.Rdev
			}
			at := fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev))
			users[at] = append(users[at], fmt.Sprintf("namespace %d of %s", n.NSID, s.NQN))
		}
	}
	return users
}
