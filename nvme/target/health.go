package target

import (
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// criticalWarning is the warning of the health log for these namespaces: a degraded one lowers the
// reliability, and if all are degraded, everything is read-only.
func criticalWarning(list []*namespace) (w uint8) {
	degraded := 0
	for _, ns := range list {
		if ns.isDegraded() {
			degraded++
		}
	}
	if degraded > 0 {
		w = nvme.SMARTReliability
		if degraded == len(list) {
			w |= nvme.SMARTReadOnly
		}
	}
	return w
}

// healthPage makes log 02h of one namespace, or of all that the host may use.
func healthPage(c *controller, sqe *nvme.SQE) reply {
	page := func(l *nvme.SMARTLog) []byte {
		if c.beyond(l.Temperature) {
			l.CriticalWarning |= nvme.SMARTTemperature
		}
		return nvme.Append(nil, l)
	}
	if ns := c.namespace(sqe.NSID()); ns != nil {
		return c.health([]*namespace{ns}, counters{}, page)
	}
	list, removed := c.sub.counted(c.hostNQN)
	return c.health(list, removed, page)
}

// health makes a page of the health of namespaces; retired has the counters of others that were
// removed.
func (c *controller) health(list []*namespace, retired counters,
	page func(*nvme.SMARTLog) []byte,
) reply {
	build := func() reply {
		failures := c.errors.total()
		return elsewhere(func() *nvme.SMARTLog {
			return smartLog(list, driveAnswers(list), retired, failures, c.t.started)
		}, func(l *nvme.SMARTLog) reply { return reply{data: page(l)} })
	}
	if queries := driveQueries(list); len(queries) > 0 {
		return reply{queries: queries, build: build}
	}
	return build()
}

// smartLog makes log 02h of namespaces (Base section 5.1.12.1.3): the health of their drives, as
// answers has it, combined with what is known of namespaces without one. Controllers come and go
// with their hosts, so the totals of these are the subsystem's since the target started, which is
// their power cycle: t has those of removed namespaces, failures is the number of entries of log
// 01h. They have no thermometer: a temperature of zero.
func smartLog(list []*namespace, answers map[*namespace]driveAnswer, t counters, failures uint64,
	started time.Time,
) *nvme.SMARTLog {
	l := &nvme.SMARTLog{CriticalWarning: criticalWarning(list)}
	drives := map[string]bool{}
	virtual, counted := len(list) == 0, len(list) == 0
	for _, ns := range list {
		d := answers[ns]
		if d.log == nil || !d.Counts() {
			counted = true
			own := ns.users.total()
			t.add(&own)
		}
		switch {
		case d.log == nil:
			virtual = true
		case !drives[d.ID()]:
			merge(l, d.log, len(drives) == 0)
			drives[d.ID()] = true
		}
	}
	if virtual {
		merge(l, &nvme.SMARTLog{
			AvailableSpare: 100, PowerCycles: nvme.MakeUint128(1),
			PowerOnHours: nvme.MakeUint128(uint64(time.Since(started) / time.Hour)),
		}, len(drives) == 0)
	}
	units := func(sectors uint64) nvme.Uint128 { return nvme.MakeUint128((sectors + 999) / 1000) }
	own := &nvme.SMARTLog{
		AvailableSpare: l.AvailableSpare, SpareThreshold: l.SpareThreshold,
		DataUnitsRead: units(t[statSectors]), DataUnitsWritten: units(t[statSectors+1]),
		HostReads:   nvme.MakeUint128(t[backend.OpRead]),
		HostWrites:  nvme.MakeUint128(t[backend.OpWrite]),
		BusyTime:    nvme.MakeUint128(uint64(time.Duration(t[statBusy]) / time.Minute)),
		MediaErrors: nvme.MakeUint128(t[statErrors+errorIO]),
	}
	if counted {
		own.ErrorLogEntries = nvme.MakeUint128(failures)
	}
	merge(l, own, false)
	return l
}
