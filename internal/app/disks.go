package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/backend/nvmedrive"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/inventory"
)

// Disks lists the disks of this machine. The configuration, which says which of them the target
// uses, may be missing unless it is required.
func Disks(file string, required bool, environ []string) ([]control.Disk, error) {
	c, err := config.Load(file, environ, backends)
	if err != nil && (required || !errors.Is(err, os.ErrNotExist)) {
		return nil, err
	}
	return listDisks(c)
}

// listDisks looks at the disks and asks them for their health, which may take long. There may be no
// configuration.
func listDisks(c *config.Config) ([]control.Disk, error) {
	var users map[string][]string
	if c != nil {
		users = diskUsers(c)
	}
	all, err := inventory.Linux().List(users)
	if err != nil {
		return nil, err
	}
	list := make([]control.Disk, len(all))
	for i, d := range all {
		list[i] = control.Disk{
			Name: d.Name, Path: d.Path, Bus: d.Bus, Model: d.Model, Serial: d.Serial,
			SizeBytes:      d.Size,
			BlockSizeBytes: d.BlockSize, Rotational: d.Rotational, ReadOnly: d.ReadOnly,
			Partitions: append([]string{}, d.Partitions...), Uses: append([]string{}, d.Uses...),
			NotExportable: d.Exportable(), Health: control.DiskHealth{
				State: d.Health.State.String(), Notes: append([]string{}, d.Health.Notes...),
				Celsius: d.Health.Celsius, PowerOnHours: d.Health.Hours,
				UsedPercent: d.Health.Used,
			},
		}
	}
	return list, nil
}

// diskAge is how old a list of disks may be.
const diskAge = 5 * time.Second

// diskLooks looks at the disks for clients: one look at a time for all of them.
type diskLooks struct {
	look func() ([]control.Disk, error)

	mu      sync.Mutex
	running chan struct{} // closed when the look ends; nil: none is in progress
	ended   time.Time     // when the last one has
	found   []control.Disk
	err     error
}

// list returns what a look has found that is not older than diskAge.
func (l *diskLooks) list(ctx context.Context) ([]control.Disk, error) {
	if running := l.begin(); running != nil {
		select {
		case <-running:
		case <-ctx.Done():
			return nil, control.NewProblem(http.StatusServiceUnavailable,
				"a disk takes long to report its health", "Try again in a few seconds.")
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.found, l.err
}

// begin begins a look if one is needed. It returns what is closed when the present one ends.
func (l *diskLooks) begin() (running chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running != nil || time.Since(l.ended) < diskAge {
		return l.running
	}
	l.running = make(chan struct{})
	go func() {
		found, err := l.look()
		l.mu.Lock()
		defer l.mu.Unlock()
		close(l.running)
		l.found, l.err, l.ended, l.running = found, err, time.Now(), nil
	}()
	return l.running
}

// blockPath returns the path of a namespace's storage, for an NVMe drive that of its block device;
// "" if it has none.
func blockPath(n *namespace) string {
	if ns, err := nvmedrive.Find(n.path()); err == nil {
		return ns.Block
	}
	return n.path()
}

// diskUsers returns the namespaces on each block device, by its number ("8:1"), whatever layers are
// between.
func diskUsers(c *config.Config) map[string][]string {
	users := map[string][]string{}
	for _, n := range all(c) {
		s, ok := stackOf(n)
		if !ok {
			continue
		}
		for _, at := range s.Devices() {
			users[at] = append(users[at], fmt.Sprintf("namespace %d of %s", n.NSID, n.nqn))
		}
	}
	return users
}
