package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/state"
)

// The pauses between attempts to open absent storage: the first and the longest.
const (
	pendingFirst = 250 * time.Millisecond
	pendingMost  = 4 * time.Second
)

// namespaces has the storage of all namespaces. A namespace whose storage is absent is pending: it
// is added to its subsystem when the storage appears.
type namespaces struct {
	s *Server

	mu   sync.Mutex
	list map[config.Object]*served
	// retired is storage that is no longer a namespace's, until it is closed.
	retired map[*removed]struct{}
	wg      sync.WaitGroup // the goroutines that close it
	stopped chan struct{}
}

// served is a namespace with its storage.
type served struct {
	*namespace
	why    error              // why it is pending; guarded by namespaces.mu
	dev    backend.Device     // nil while it is pending
	cancel context.CancelFunc // ends the attempts to open absent storage; nil if there are none
	ended  chan struct{}      // closed when the attempts have ended
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

// all lists the namespaces of the configuration in which no error was found.
func all(c *config.Config) (list []*namespace) {
	for i := range c.Subsystems {
		for j := range c.Subsystems[i].Namespaces {
			if n := namespaceAt(c, i, j); !c.Faulty(n.key) {
				list = append(list, n)
			}
		}
	}
	return list
}

// namespaceAt is namespace j of subsystem i.
func namespaceAt(c *config.Config, i, j int) *namespace {
	sub := &c.Subsystems[i]
	return &namespace{
		&sub.Namespaces[j], sub.NQN, fmt.Sprintf("subsystems[%d].namespaces[%d]", i, j),
	}
}

// find returns a namespace of the configuration, nil if it has none of this name.
func find(c *config.Config, name config.Object) *namespace {
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

// name is what the namespace is called in changes of the configuration.
func (n *namespace) name() config.Object {
	return config.Object{Kind: config.KindNamespace, NQN: n.nqn, NSID: n.NSID}
}

// volatile says that the content of the storage ends with the target.
func (n *namespace) volatile() bool {
	s, _ := n.backing()
	return s.memory != nil
}

// attrs identify the namespace in a log line.
func (n *namespace) attrs() []any {
	return []any{"subsystem", n.nqn, "nsid", n.NSID, "path", n.path()}
}

// checkPromises returns an error if the target does not know what it has promised hosts of a
// namespace.
func (ns *namespaces) checkPromises(n *namespace) error {
	return ns.s.state.Check(state.Name{NQN: n.nqn, NSID: n.NSID})
}

// open opens the storage of a namespace. It is nil, without an error, if the namespace has to wait:
// for its storage, or until its state can be read.
func (ns *namespaces) open(n *namespace) (backend.Device, error) {
	if err := ns.checkPromises(n); err != nil {
		ns.s.log.Error("namespace is not served: what hosts were promised is unknown",
			append(n.attrs(), "err", err)...)
		return nil, nil
	}
	var dev backend.Device
	err := ns.s.patiently(func() (err error) {
		dev, err = ns.s.opts.OpenDevice(n.Namespace)
		return err
	})
	switch {
	case err == nil:
		return dev, nil
	case absent(n, ns.s.env(n.Namespace)): // which the probe has reported
		return nil, nil
	case offline(err):
		ns.s.log.Warn("namespace is pending until its storage answers",
			append(n.attrs(), "err", err)...)
		return nil, nil
	}
	return nil, err
}

// add adds a namespace to its subsystem, with its storage or, if dev is nil, as soon as that can be
// used. After an error dev is closed.
func (ns *namespaces) add(n *namespace, dev backend.Device) error {
	v := &served{namespace: n}
	if dev != nil {
		return ns.serve(v, dev)
	}
	v.why = cmp.Or(ns.checkPromises(n), errAbsent)
	ns.mu.Lock()
	defer ns.mu.Unlock()
	ns.list[n.name()] = v
	ctx, cancel := context.WithCancel(context.Background())
	v.cancel, v.ended = cancel, make(chan struct{})
	go ns.waitFor(ctx, v)
	return nil
}

func (ns *namespaces) serve(v *served, dev backend.Device) error {
	nc := v.NamespaceConfig
	nc.Device, nc.Drive = dev, driveOf(v.namespace)
	if err := ns.s.target.AddNamespace(v.nqn, nc); err != nil {
		return errors.Join(err, dev.Close())
	}
	ns.mu.Lock()
	defer ns.mu.Unlock()
	v.dev, v.why = dev, nil
	ns.list[v.name()] = v
	return nil
}

// waitFor serves a namespace as soon as its storage is there and can be used. It tries that after
// pauses that double, until ctx is done.
func (ns *namespaces) waitFor(ctx context.Context, v *served) {
	last := v.why.Error()
	for pause := cmp.Or(ns.s.opts.Retry, pendingFirst); ; pause = min(2*pause, pendingMost) {
		select {
		case <-ctx.Done():
			close(v.ended)
			return
		case <-time.After(pause):
		}
		err := ns.try(v)
		if err == nil {
			break
		}
		if text := err.Error(); text != last {
			last = text
			ns.mu.Lock()
			v.why = err
			ns.mu.Unlock()
			ns.s.log.Warn("namespace is still pending", append(v.attrs(), "err", err)...)
		}
	}
	ns.s.log.Info("namespace is served now", v.attrs()...)
	close(v.ended)
	// afterwards: it may wait for a goroutine that changes or removes v
	ns.s.opts.NamespaceUp(v.nqn, v.NSID)
}

var errAbsent = errors.New("its storage is not there")

// try serves a pending namespace; hosts get an event.
func (ns *namespaces) try(v *served) error {
	if err := ns.checkPromises(v.namespace); err != nil {
		return err
	}
	if absent(v.namespace, ns.s.env(v.Namespace)) {
		return errAbsent
	}
	if !ns.s.external {
		c, n := ns.s.current(), v.namespace
		if now := find(c, v.name()); now != nil {
			n = now // its key may have changed
		}
		if ps := probeAgain(c, n); ps.Failed() {
			return ps
		}
	}
	dev, err := ns.s.opts.OpenDevice(v.Namespace)
	if err != nil {
		return err
	}
	return ns.serve(v, dev)
}

// endAttempts ends the attempts to open absent storage. The namespace may be served after the last
// of them.
func (v *served) endAttempts() {
	if v.cancel != nil {
		v.cancel()
		<-v.ended
		v.cancel = nil
	}
}

// remove takes a namespace from its hosts and returns its storage, nil if it was pending, and when
// that may be closed.
func (ns *namespaces) remove(v *served) (dev backend.Device, gone <-chan struct{}, err error) {
	v.endAttempts()
	ns.mu.Lock()
	delete(ns.list, v.name())
	ns.mu.Unlock()
	if v.dev == nil {
		return nil, nil, nil
	}
	gone, err = ns.s.target.RemoveNamespace(v.nqn, v.NSID)
	return v.dev, gone, err
}

// retire closes storage when nothing uses it any more.
func (ns *namespaces) retire(r *removed) {
	r.ended = make(chan struct{})
	ns.mu.Lock()
	ns.retired[r] = struct{}{}
	ns.mu.Unlock()
	ns.wg.Go(func() {
		defer close(r.ended)
		select {
		case <-r.gone:
		case <-ns.stopped:
			return // close closes it
		}
		if err := r.dev.Close(); err != nil {
			ns.s.log.Warn("storage of a removed namespace cannot be closed",
				append(r.attrs(), "err", err)...)
		}
		ns.mu.Lock()
		defer ns.mu.Unlock()
		delete(ns.retired, r)
	})
}

// awaitRetired waits for storage that a namespace is to have to be closed by those that had it.
func (ns *namespaces) awaitRetired(n *namespace) error {
	ns.mu.Lock()
	list := slices.Collect(maps.Keys(ns.retired))
	ns.mu.Unlock()
	for _, r := range list {
		if !n.overlaps(r.namespace) {
			continue
		}
		if err := ns.s.await(r.ended); err != nil {
			return fmt.Errorf("its storage is still that of namespace %d of %s, which was "+
				"removed: %w", r.NSID, r.nqn, err)
		}
	}
	return nil
}

// get returns the namespace with this name, nil if there is none.
func (ns *namespaces) get(name config.Object) *served {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	return ns.list[name]
}

// reason is why a namespace is pending, "" if it is not.
func (ns *namespaces) reason(name config.Object) string {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if v := ns.list[name]; v != nil && v.why != nil {
		return v.why.Error()
	}
	return ""
}

// pending describes the first of the pending namespaces.
func (ns *namespaces) pending() (list []control.PendingNamespace) {
	waiting := ns.waiting()
	for _, n := range waiting[:min(len(waiting), mostLogged)] {
		list = append(list, control.PendingNamespace{
			Subsystem: n.nqn, NSID: n.NSID, Reason: ns.reason(n.name()),
		})
	}
	return list
}

// waiting lists the pending namespaces in the order of their names.
func (ns *namespaces) waiting() (list []*namespace) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	for _, v := range ns.list {
		if v.dev == nil {
			list = append(list, v.namespace)
		}
	}
	slices.SortFunc(list, func(a, b *namespace) int {
		return cmp.Or(strings.Compare(a.nqn, b.nqn), cmp.Compare(a.NSID, b.NSID))
	})
	return list
}

// stop ends the attempts to open absent storage.
func (ns *namespaces) stop() {
	ns.mu.Lock()
	list := slices.Collect(maps.Values(ns.list))
	ns.mu.Unlock()
	for _, v := range list {
		v.endAttempts()
	}
	close(ns.stopped)
	ns.wg.Wait()
}

// close closes all storage. The target must be closed.
func (ns *namespaces) close() error {
	var errs []error
	for _, v := range ns.list {
		if v.dev != nil {
			errs = append(errs, v.dev.Close())
		}
	}
	for r := range ns.retired {
		errs = append(errs, r.dev.Close())
	}
	return errors.Join(errs...)
}

// absent reports whether the storage of a namespace is missing rather than wrong: nothing is at its
// path and nothing will be created there, or the device at its path is empty or cannot be opened
// because its hardware is missing or does not answer.
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
	case s.device == nil || !s.device(path):
		return false
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return offline(err)
	}
	defer func() { _ = unix.Close(fd) }()
	size, err := unix.Seek(fd, 0, unix.SEEK_END) // 0: a loop device that has no file, for instance
	return err == nil && size == 0 && info.Mode()&fs.ModeCharDevice == 0
}

// offline reports whether err, of opening storage, means that the device is missing or does not
// answer.
func offline(err error) bool {
	return slices.ContainsFunc([]error{unix.ENXIO, unix.ENODEV, unix.ENOMEDIUM, unix.EIO},
		func(e error) bool { return errors.Is(err, e) })
}
