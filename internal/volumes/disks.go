package volumes

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/flight"
	"github.com/nvmf-target/nvmf-target/internal/inventory"
	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// ListDisks returns the disks with health and, unless c is nil, namespaces. It may take long.
func ListDisks(c *config.Config) ([]observed.Disk, error) {
	var users map[string][]string
	if c != nil {
		users = diskUsers(c)
	}
	return inventory.Linux().List(users)
}

// diskAge is the age at which a list of disks is renewed.
const diskAge = 5 * time.Second

// Disks returns a function that lists the disks, with the namespaces of current. One look answers
// all clients for diskAge. Any goroutine may call the function, which waits until its context ends.
func Disks(current func() *config.Config) func(context.Context) ([]observed.Disk, error) {
	look := flight.Question[[]observed.Disk]{
		Ask:   func() ([]observed.Disk, error) { return ListDisks(current()) },
		Fresh: diskAge,
	}
	return func(ctx context.Context) ([]observed.Disk, error) {
		list, err := look.Answer(ctx)
		if err != nil && err == context.Cause(ctx) {
			err = control.NewProblem(http.StatusServiceUnavailable,
				"a disk takes long to report its health", "Try again in a few seconds.")
		}
		return list, err
	}
}

// diskUsers returns the namespaces on each block device, through any layers, by number ("8:1").
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
