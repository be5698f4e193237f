package controllers

import (
	"sync"

	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// notice is a change of a namespace, for the controllers of its hosts.
type notice struct {
	ns *namespaces.Namespace
	namespaces.Notice
}

// notices are the notices that the controllers of a subsystem do not have yet. mu guards them.
type notices struct {
	mu      sync.Mutex
	waiting map[notice]bool
	telling bool // a goroutine passes them on
}

// FewControllers is how many controllers a reactor looks at in one step.
const FewControllers = 64

// Tell passes a notice to the controllers of hosts that it concerns, see namespaces.Namespace.Init.
func (s *Subsystem) Tell(ns *namespaces.Namespace, n namespaces.Notice,
	concerns func(hostNQN string) bool,
) {
	switch {
	case concerns != nil: // also if it was removed meanwhile, which other hosts are told of
		s.notify(notice{ns, n}, concerns)
	case n == namespaces.Changed && s.Namespaces.Load().Get(ns.ID.NSID) != ns:
		// not before it is added, and not after it was removed
	case s.Count() <= FewControllers:
		s.notifyHosts(notice{ns, n})
	default:
		s.notifyLater(notice{ns, n})
	}
}

// notify looks at all controllers.
func (s *Subsystem) notify(n notice, concerns func(hostNQN string) bool) {
	s.Each(func(c *Controller) {
		if concerns(c.HostNQN) {
			c.Reactor.Post(func() { c.Notice(n.Notice, n.ns.ID.NSID) })
		}
	})
}

// notifyHosts notifies the hosts that may use the namespace.
func (s *Subsystem) notifyHosts(n notice) {
	s.notify(n, func(hostNQN string) bool { return n.ns.Attributes().Visible(hostNQN) })
}

// notifyLater has a goroutine pass a notice on, one for each subsystem. Notices that come twice
// before that are one.
func (s *Subsystem) notifyLater(n notice) {
	w := &s.notices
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == nil {
		w.waiting = map[notice]bool{}
	}
	w.waiting[n] = true
	if !w.telling {
		w.telling = true
		go s.notifyAll()
	}
}

// notifyAll passes notices on until there are no more.
func (s *Subsystem) notifyAll() {
	w := &s.notices
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.waiting) > 0 {
		for n := range w.waiting {
			delete(w.waiting, n)
			w.mu.Unlock()
			s.notifyHosts(n)
			w.mu.Lock()
		}
	}
	w.telling = false
}
