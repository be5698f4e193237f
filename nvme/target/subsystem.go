package target

import (
	"sync"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// subsystem is an NVM subsystem, or the discovery subsystem.
type subsystem struct {
	controllers.Subsystem
	t *Target
	// warned are the warnings of the drives at the last CheckHealth, which alone uses it.
	warned  uint8
	notices notices
}

func newSubsystem(t *Target, cfg subsystems.Config) *subsystem {
	s := &subsystem{t: t}
	s.Init(cfg, cfg.NQN == nvme.DiscoveryNQN)
	return s
}

// lookup returns the controller with this identifier, or nil.
func (s *subsystem) lookup(cntlid uint16) *controller {
	if c := s.Lookup(cntlid); c != nil {
		return c.Owner.(*controller)
	}
	return nil
}

// each calls fn with every controller, see controllers.Subsystem.Each.
func (s *subsystem) each(fn func(*controller)) {
	s.Each(func(c *controllers.Controller) { fn(c.Owner.(*controller)) })
}

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

// fewControllers is how many controllers a reactor looks at in one step.
const fewControllers = 64

// tell passes a notice to the controllers. If there are many, a goroutine does it, one for each
// subsystem; notices that come twice before it passes them on are one. Any goroutine, and reactors.
func (s *subsystem) tell(n notice) {
	if s.Count() <= fewControllers {
		n.tell()
		return
	}
	w := &s.notices
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == nil {
		w.waiting = map[notice]bool{}
	}
	w.waiting[n] = true
	if !w.telling {
		w.telling = true
		go w.tellAll()
	}
}

// tellAll passes notices on until there are no more.
func (w *notices) tellAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.waiting) > 0 {
		for n := range w.waiting {
			delete(w.waiting, n)
			w.mu.Unlock()
			n.tell()
			w.mu.Lock()
		}
	}
	w.telling = false
}

func (n notice) tell() {
	s := n.ns.Owner.(*subsystem)
	s.notify(n.ns, n.Notice, func(hostNQN string) bool {
		return n.ns.Attributes().Visible(hostNQN)
	})
}

// teardown ends every association with the subsystem and admits no more.
func (s *subsystem) teardown(why error) {
	s.Close()
	s.each(func(c *controller) { c.fail(why) })
}
