package volumes

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/inventory"
)

// ListDisks returns the disks of this machine with their health, which may take long. It returns
// the namespaces on them, too, unless c is nil.
func ListDisks(c *config.Config) ([]control.Disk, error) {
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

// diskAge is the age at which a list of disks is renewed.
const diskAge = 5 * time.Second

// Disks lists the disks for clients. It looks once for all of them.
type Disks struct {
	// Look lists the disks anew, on a goroutine of its own.
	Look func() ([]control.Disk, error)

	mu      sync.Mutex
	running chan struct{} // closed when the look ends; nil: none is in progress
	ended   time.Time     // when the last one has
	found   []control.Disk
	err     error
}

// List returns a list that is not older than diskAge. Any goroutine may call it. It waits for a
// look until ctx ends.
func (l *Disks) List(ctx context.Context) ([]control.Disk, error) {
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

// begin begins a look if one is needed. It returns a channel that is closed when the present look
// ends, nil if there is none.
func (l *Disks) begin() (running chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running != nil || time.Since(l.ended) < diskAge {
		return l.running
	}
	l.running = make(chan struct{})
	go func() {
		found, err := l.Look()
		l.mu.Lock()
		defer l.mu.Unlock()
		close(l.running)
		l.found, l.err, l.ended, l.running = found, err, time.Now(), nil
	}()
	return l.running
}

// diskUsers returns the namespaces on each block device, directly or through other layers, by the
// number of the device ("8:1").
func diskUsers(c *config.Config) map[string][]string {
	users := map[string][]string{}
	for _, n := range All(c) {
		s, ok := stackOf(n)
		if !ok {
			continue
		}
		for _, at := range s.Devices() {
			users[at] = append(users[at], fmt.Sprintf("namespace %d of %s", n.NSID, n.NQN))
		}
	}
	return users
}
