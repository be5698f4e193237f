package target

import (
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// degrade notes that a device may have lost writes that it had accepted (backend.ErrDegraded). Until the namespace is opened again it
// is write protected, and the health log warns; hosts are told both. Any reactor; all calls but the first do nothing.
func (ns *namespace) degrade(h *Handler, err error) {
	if !ns.degraded.CompareAndSwap(false, true) {
		return
	}
	g := *ns.geo.Load()
	g.readOnly = true
	ns.geo.Store(&g)
	h.t.log.Error("a namespace takes no more writes: what it had accepted may be lost", "subsystem", ns.sub.nqn, "nsid", ns.nsid, "err", err)
	ns.sub.namespaceChanged(ns.nsid)
	ns.sub.each(func(c *controller) {
		c.h.post(func() { c.raise(eventReliability) })
	})
}

// criticalWarning is the warning of the health log for these namespaces: a degraded one lowers the reliability, and if there is no
// other, everything is read-only.
func criticalWarning(list []*namespace) (w uint8) {
	degraded := 0
	for _, ns := range list {
		if ns.degraded.Load() {
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

// smart makes log 02h of the subsystem or of one namespace (Base section 5.1.12.1.3). Controllers come and go with their hosts, so the
// totals are the subsystem's since the target started, which is its power cycle. There is no thermometer: temperatures are zero.
func smart(c *controller, nsid uint32) []byte {
	var t ioTotals
	table := c.sub.namespaces.Load()
	list := table.list
	if ns := table.get(nsid); ns != nil {
		list = []*namespace{ns}
	} else {
		c.sub.mu.Lock()
		t = c.sub.retired
		c.sub.mu.Unlock()
	}
	for _, ns := range list {
		t.add(ns.users.total())
	}
	units := func(sectors uint64) nvme.Uint128 { return nvme.MakeUint128((sectors + 999) / 1000) }
	l := &nvme.SMARTLog{
		CriticalWarning: criticalWarning(list),
		AvailableSpare:  100,
		DataUnitsRead:   units(t.readSectors), DataUnitsWritten: units(t.wrotSecs),
		HostReads: nvme.MakeUint128(t.reads), HostWrites: nvme.MakeUint128(t.writes),
		BusyTime:     nvme.MakeUint128(uint64(time.Duration(t.busy) / time.Minute)),
		PowerCycles:  nvme.MakeUint128(1),
		PowerOnHours: nvme.MakeUint128(uint64(time.Since(c.t.started) / time.Hour)),
		MediaErrors:  nvme.MakeUint128(t.mediaErrors), ErrorLogEntries: nvme.MakeUint128(c.errors.total()),
	}
	return l.Append(nil)
}
