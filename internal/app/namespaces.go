package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// The pauses between attempts to open absent storage: the first and the longest.
const (
	pendingFirst = 250 * time.Millisecond
	pendingMost  = 4 * time.Second
)

// namespaces opens and closes the storage of all namespaces. A namespace whose storage is absent is
// pending: it is added to its subsystem when the storage appears.
type namespaces struct {
	s *Server

	mu      sync.Mutex
	devices []backend.Device
	pending []*namespace

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// namespace is a namespace of the configuration.
type namespace struct {
	*config.Namespace
	nqn string
	key string // "subsystems[0].namespaces[1]"
}

// backing returns the storage behind all wrappers, and its key.
func (n *namespace) backing() (s *store, key string) {
	keys, layers := n.Layers(n.key)
	last := len(layers) - 1
	return layers[last].Options.(*store), keys[last]
}

// path is where the storage is, "" if it has no path.
func (n *namespace) path() string {
	if s, _ := n.backing(); s.path != nil {
		return *s.path
	}
	return ""
}

// all lists the namespaces of the configuration.
func all(c *config.Config) (list []*namespace) {
	for i := range c.Subsystems {
		sub := &c.Subsystems[i]
		for j := range sub.Namespaces {
			list = append(list, &namespace{
				&sub.Namespaces[j], sub.NQN, fmt.Sprintf("subsystems[%d].namespaces[%d]", i, j),
			})
		}
	}
	return list
}

// start adds the subsystems with the namespaces that can be opened, and begins to wait for those
// whose storage is absent. It reports every namespace that has another problem.
func (ns *namespaces) start() error {
	c := ns.s.opts.Config
	var problems config.Problems
	open := map[string][]target.NamespaceConfig{} // by NQN
	for _, n := range all(c) {
		nc, err := ns.open(n)
		switch {
		case err == nil:
			open[n.nqn] = append(open[n.nqn], nc)
		case absent(n, ns.s.env(n.Namespace)): // which the probe has reported
			ns.pending = append(ns.pending, n)
		case offline(err):
			ns.s.log.Warn("namespace is pending until its storage answers",
				append(n.attrs(), "err", err)...)
			ns.pending = append(ns.pending, n)
		default:
			problems = append(problems, c.Problem(n.key, err.Error(), ""))
		}
	}
	if len(problems) > 0 {
		return problems
	}
	for i := range c.Subsystems {
		tc := c.Subsystems[i].SubsystemConfig
		tc.MaxQueueSize = max(c.TCP.MaxDepth, c.RDMA.MaxDepth)
		tc.Namespaces = open[tc.NQN]
		if err := ns.s.target.AddSubsystem(tc); err != nil {
			return c.Problem(fmt.Sprintf("subsystems[%d]", i), err.Error(), "")
		}
	}
	var ctx context.Context
	ctx, ns.cancel = context.WithCancel(context.Background())
	for _, n := range ns.waiting() {
		ns.wg.Go(func() { ns.waitFor(ctx, n) })
	}
	return nil
}

// attrs identify the namespace in a log line.
func (n *namespace) attrs() []any {
	return []any{"subsystem", n.nqn, "nsid", n.NSID, "path", n.path()}
}

// open opens the storage of a namespace.
func (ns *namespaces) open(n *namespace) (target.NamespaceConfig, error) {
	nc := n.NamespaceConfig
	dev, err := ns.s.opts.OpenDevice(n.Namespace)
	if err != nil {
		return nc, err
	}
	ns.mu.Lock()
	ns.devices = append(ns.devices, dev)
	ns.mu.Unlock()
	nc.Device, nc.Drive = dev, driveOf(n)
	return nc, nil
}

// waitFor adds a namespace as soon as its storage is there and can be used.
func (ns *namespaces) waitFor(ctx context.Context, n *namespace) {
	first := ns.s.opts.Retry
	if first == 0 {
		first = pendingFirst
	}
	changed := func(err error) {
		ns.s.log.Warn("namespace is still pending", append(n.attrs(), "err", err)...)
	}
	try := func() error { return ns.add(n) }
	if keepTrying(ctx, first, pendingMost, errAbsent, try, changed) {
		ns.s.log.Info("namespace is served now", n.attrs()...)
		ns.s.opts.NamespaceUp(n.nqn, n.NSID)
	}
}

var errAbsent = errors.New("its storage is not there")

// add opens the storage of a pending namespace and adds it; hosts get an event.
func (ns *namespaces) add(n *namespace) error {
	at := ns.s.env(n.Namespace)
	if absent(n, at) {
		return errAbsent
	}
	if !ns.s.external {
		if ps := probeAgain(ns.s.opts.Config, n); ps.Failed() {
			return ps
		}
	}
	nc, err := ns.open(n)
	if err != nil {
		return err
	}
	if err := ns.s.target.AddNamespace(n.nqn, nc); err != nil {
		return errors.Join(err, ns.drop(nc.Device))
	}
	ns.mu.Lock()
	defer ns.mu.Unlock()
	ns.pending = slices.DeleteFunc(ns.pending, func(o *namespace) bool { return o == n })
	return nil
}

// drop closes a device that is not used.
func (ns *namespaces) drop(dev backend.Device) error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	ns.devices = slices.DeleteFunc(ns.devices, func(o backend.Device) bool { return o == dev })
	return dev.Close()
}

// waiting lists the pending namespaces.
func (ns *namespaces) waiting() []*namespace {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	return slices.Clone(ns.pending)
}

// stop ends the attempts to open absent storage.
func (ns *namespaces) stop() {
	if ns.cancel != nil {
		ns.cancel()
	}
	ns.wg.Wait()
}

// close closes the devices. The target must be closed.
func (ns *namespaces) close() error {
	var errs []error
	for _, d := range ns.devices {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// absent says whether the storage of a namespace is missing rather than wrong: nothing is at its
// path and nothing will be created there, or the device at its path cannot be opened because its
// hardware is missing or does not answer.
func absent(n *namespace, at env) bool {
	s, _ := n.backing()
	path := n.path()
	if path == "" {
		return false
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && s.creates != nil && s.creates(at):
		if _, err := os.Lstat(path); err == nil {
			return true // a link to nothing, where no file is created
		}
		_, err = os.Stat(filepath.Dir(path))
		return errors.Is(err, fs.ErrNotExist)
	case err != nil || info.Mode()&fs.ModeDevice == 0:
		return errors.Is(err, fs.ErrNotExist)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return offline(err)
}

// offline says whether err, of opening storage, means that the device is missing or does not
// answer.
func offline(err error) bool {
	return slices.ContainsFunc([]error{unix.ENXIO, unix.ENODEV, unix.ENOMEDIUM, unix.EIO},
		func(e error) bool { return errors.Is(err, e) })
}
