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

// The pauses between looks for storage that is not there: the first and the longest.
const (
	pendingFirst = 250 * time.Millisecond
	pendingMost  = 4 * time.Second
)

// namespaces opens the storage of all namespaces and closes it. A namespace whose storage is not
// there is pending: it is added to its subsystem when the storage appears.
type namespaces struct {
	s *Server

	mu      sync.Mutex
	devices []backend.Device
	pending []*namespace

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// namespace is one of the configuration.
type namespace struct {
	*config.Namespace
	nqn string
	key string // "subsystems[0].namespaces[1]"
}

// storage is where the blocks are in the end, behind wrappers, and its key.
func (n *namespace) storage() (s storage, key string) {
	keys, layers := n.Layers(n.key)
	last := len(layers) - 1
	return layers[last].Options.(storage), keys[last]
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

// start adds the subsystems with the namespaces that can be opened, and looks for the others. Every
// one that is wrong rather than absent is reported.
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
		tc := subsystemConfig(c, &c.Subsystems[i])
		tc.Namespaces = open[tc.NQN]
		if err := ns.s.target.AddSubsystem(tc); err != nil {
			return c.Problem(fmt.Sprintf("subsystems[%d]", i), err.Error(), "")
		}
	}
	var ctx context.Context
	ctx, ns.cancel = context.WithCancel(context.Background())
	for _, n := range ns.pending {
		ns.wg.Go(func() { ns.waitFor(ctx, n) })
	}
	return nil
}

// attrs say in a log line which namespace is meant.
func (n *namespace) attrs() []any {
	s, _ := n.storage()
	return []any{"subsystem", n.nqn, "nsid", n.NSID, "path", s.path()}
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

// waitFor adds a namespace as soon as its storage is there and nothing is wrong with it.
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

// add opens the storage of a pending namespace and tells the hosts.
func (ns *namespaces) add(n *namespace) error {
	at := ns.s.env(n.Namespace)
	if absent(n, at) {
		return errAbsent
	}
	if !ns.s.foreign {
		if ps := probeAlone(ns.s.opts.Config, n); ps.Failed() {
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

// drop closes a device that is not served.
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

// stop ends the waiting for storage.
func (ns *namespaces) stop() {
	if ns.cancel != nil {
		ns.cancel()
	}
	ns.wg.Wait()
}

// close closes the devices, which nothing may use any more.
func (ns *namespaces) close() error {
	var errs []error
	for _, d := range ns.devices {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// absent says that nothing is at the path of a namespace's storage, and that nothing is to be made
// there.
func absent(n *namespace, at env) bool {
	s, _ := n.storage()
	path := s.path()
	if path == "" {
		return false
	}
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) && s.creates(at) {
		_, err = os.Stat(filepath.Dir(path))
	}
	return errors.Is(err, fs.ErrNotExist)
}

// offline says that opening storage failed because the device was removed or does not answer.
func offline(err error) bool {
	return slices.ContainsFunc([]error{unix.ENXIO, unix.ENODEV, unix.ENOMEDIUM, unix.EIO},
		func(e error) bool { return errors.Is(err, e) })
}
