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
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// Disks lists the disks of this machine. The configuration, which says which of them the target
// uses, may be missing unless it is required.
func Disks(file string, required bool, environ []string, out io.Writer) error {
	c, err := config.Load(file, environ, backends)
	if err != nil && (required || !errors.Is(err, os.ErrNotExist)) {
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

// blockPath returns the path of a namespace's storage, for an NVMe drive that of its block device;
// "" if it has none.
func blockPath(n *namespace) string {
	if ns, err := nvmedrive.Find(n.path()); err == nil {
		return ns.Block
	}
	return n.path()
}

// diskUsers returns the namespaces on each block device, by its number ("8:1"). Files that do not
// exist yet are on none.
func diskUsers(c *config.Config) map[string][]string {
	users := map[string][]string{}
	for _, n := range all(c) {
		info, err := os.Stat(blockPath(n))
		if err != nil {
			continue
		}
		st := info.Sys().(*syscall.Stat_t)
		dev := st.Dev
		if st.Mode&unix.S_IFMT == unix.S_IFBLK {
			dev = st.Rdev
		}
		at := sys.DeviceNumber(dev)
		users[at] = append(users[at], fmt.Sprintf("namespace %d of %s", n.NSID, n.nqn))
	}
	return users
}
