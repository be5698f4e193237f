package controllers

import (
	"log/slog"
	"slices"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// healthPage makes log 02h of one namespace, or of all that the host may use.
func healthPage(c *Controller, sqe *nvme.SQE) admin.Reply {
	page := func(l *nvme.SMARTLog) []byte {
		if c.thresholds.Beyond(l.Temperature) {
			l.CriticalWarning |= nvme.SMARTTemperature
		}
		return nvme.Append(nil, l)
	}
	if ns := c.Namespace(sqe.NSID()); ns != nil {
		return c.health(countedOf(ns), page)
	}
	return admin.Elsewhere(func() *counted {
		list, removed := c.Subsystem.Namespaces.Counted(c.HostNQN)
		n := countedOf(list...)
		n.removed = removed
		return n
	}, func(n *counted) admin.Reply { return c.health(n, page) })
}

// counted is a source of a health log.
type counted struct {
	list    []*namespaces.Namespace
	removed dispatch.Counters // of other namespaces, which were removed
	queries []admin.Asker     // for the health of the drives
}

func countedOf(list ...*namespaces.Namespace) *counted {
	return &counted{list: list, queries: driveQueries(list)}
}

// health makes a page of the health of namespaces. It asks their drives, which are at most those of
// the machine.
func (c *Controller) health(n *counted, page func(*nvme.SMARTLog) []byte) admin.Reply {
	build := func() admin.Reply {
		failures := c.Errors.Total()
		return admin.Elsewhere(func() *nvme.SMARTLog {
			health := make([]admin.Health, len(n.list))
			for i, ns := range n.list {
				health[i] = ns.Health()
			}
			return admin.SMART(health, namespaces.Totals(&n.removed), failures, c.Target.Started)
		}, func(l *nvme.SMARTLog) admin.Reply { return admin.Reply{Data: page(l)} })
	}
	if len(n.queries) > 0 {
		return admin.Reply{Queries: n.queries, Build: build}
	}
	return build()
}

// driveQueries are the queries for the health of the namespaces' drives.
func driveQueries(list []*namespaces.Namespace) (queries []admin.Asker) {
	for _, ns := range list {
		if d := ns.Attributes().Drive; d != nil {
			queries = append(queries, d)
		}
	}
	return queries
}

// warnings are the critical warnings of the drives of namespaces, as they have last answered, and
// the highest temperature in kelvin, 0 if none is known.
func warnings(list []*namespaces.Namespace) (w uint8, temperature uint16) {
	for _, ns := range list {
		if d := ns.Attributes().Drive; d != nil {
			if l, _, _ := d.Peek(); l != nil {
				w |= l.CriticalWarning
				temperature = max(temperature, l.Temperature)
			}
		}
	}
	return w, temperature
}

// driveWatch watches the drives that the host of a controller uses.
type driveWatch struct {
	thresholds  admin.Thresholds
	beyondLimit bool   // a threshold is reached
	warned      uint8  // warnings of the drives at the last CheckHealth
	temperature uint16 // the highest of the drives then, in kelvin; 0: unknown
}

// CheckHealth reads the health of the drives of subsystems. It sends an asynchronous event for each
// critical warning that was not set at the last call, and for each temperature threshold that was
// reached since, to hosts that have enabled it and use the drive (Base section 5.1.2). It also asks
// for the space of thin namespaces. It may block for admin.AnswerWait.
func CheckHealth(all []*Subsystem, log *slog.Logger) {
	var queries []admin.Asker
	for _, s := range all {
		list := s.Namespaces.Load().List
		queries = append(queries, driveQueries(list)...)
		for _, ns := range list {
			if q := ns.Thin(); q != nil {
				queries = append(queries, q)
			}
		}
	}
	admin.AwaitAll(queries)
	for _, s := range all {
		drives := slices.DeleteFunc(slices.Clone(s.Namespaces.Load().List),
			func(ns *namespaces.Namespace) bool { return ns.Attributes().Drive == nil })
		w, _ := warnings(drives)
		if added := w &^ s.warned; added != 0 {
			log.Warn("a drive reports a warning", "subsystem", s.NQN, "warning", added)
		}
		s.warned = w
		s.Each(func(c *Controller) {
			w, temperature := warnings(namespaces.Visible(drives, c.HostNQN))
			c.Reactor.Post(func() { c.checkHealth(w, temperature) })
		})
	}
}

// checkHealth raises the events of the warnings of the host's drives that were not set at the last
// call, and of their highest temperature.
func (c *Controller) checkHealth(w uint8, temperature uint16) {
	added := w &^ c.warned
	c.warned = w
	for _, k := range admin.Warns(added) {
		c.Raise(k)
	}
	c.temperature = temperature
	c.checkTemperature()
}

// checkTemperature raises the event when the temperature of the drives that the host uses, as it
// was at the last CheckHealth, has reached a threshold.
func (c *Controller) checkTemperature() {
	was := c.beyondLimit
	c.beyondLimit = c.thresholds.Beyond(c.temperature)
	if c.beyondLimit && !was {
		c.Raise(admin.EventTemperature)
	}
}

// A namespace on rotational media must be in an endurance group that has them, and controllers then
// have the logs of both (Base sections 3.2.3 and 8.1.23). So each such namespace is an endurance
// group of its own, with its NSID for identifier. Controllers of subsystems without rotational
// media report no endurance groups at all.

func onRotational(c *Controller) bool { return c.rotational }

// enduranceGroup is ENDGID of a namespace, 0 if it is in no group.
func (c *Controller) enduranceGroup(ns *namespaces.Namespace) uint16 {
	if !c.rotational || !ns.Geometry().Info.Rotational {
		return 0
	}
	return uint16(ns.ID.NSID)
}

// group is the namespace that is an endurance group, nil if there is none with this identifier.
func (c *Controller) group(id uint16) *namespaces.Namespace {
	ns := c.Namespace(uint32(id))
	if ns == nil || c.enduranceGroup(ns) == 0 {
		return nil
	}
	return ns
}

// enduranceGroupPage makes log 09h.
func enduranceGroupPage(c *Controller, sqe *nvme.SQE) admin.Reply {
	ns := c.group(sqe.GetLog().LSI())
	if ns == nil {
		return admin.Refused
	}
	return c.health(countedOf(ns), func(s *nvme.SMARTLog) []byte {
		return admin.EnduranceGroup(s, uint64(ns.Geometry().Size()))
	})
}

// rotationalMediaPage makes log 16h: one actuator of unknown speed (Base section 5.1.12.1.22).
func rotationalMediaPage(c *Controller, sqe *nvme.SQE) admin.Reply {
	id := sqe.GetLog().LSI()
	if c.group(id) == nil {
		return admin.Refused
	}
	return admin.Reply{Data: nvme.Append(nil, &nvme.RotationalMediaLog{ENDGID: id, NUMA: 1})}
}
