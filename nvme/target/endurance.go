package target

import "github.com/nvmf-target/nvmf-target/nvme"

// A namespace on rotational media must be in an endurance group that has them, and controllers then
// have the logs of both (Base sections 3.2.3 and 8.1.23). So each such namespace is an endurance
// group of its own, with its NSID for identifier. Controllers of subsystems without rotational
// media report no endurance groups at all.

func onRotational(c *controller) bool { return c.rotational }

// enduranceGroup is ENDGID of a namespace, 0 if it is in no group.
func (c *controller) enduranceGroup(ns *namespace) uint16 {
	if !c.rotational || !ns.geo.Load().info.Rotational {
		return 0
	}
	return uint16(ns.nsid)
}

// group is the namespace that is an endurance group, nil if there is none with this identifier.
func (c *controller) group(id uint16) *namespace {
	ns := c.namespace(uint32(id))
	if ns == nil || c.enduranceGroup(ns) == 0 {
		return nil
	}
	return ns
}

// identifyEnduranceGroups makes CNS 19h: the identifiers from the given one on (Base section
// 5.1.13.2.18).
func identifyEnduranceGroups(c *controller, sqe *nvme.SQE) reply {
	var ids []uint16
	for _, ns := range c.namespaces() {
		if id := c.enduranceGroup(ns); id != 0 && id >= sqe.Identify().CNSSpecific() {
			ids = append(ids, id)
		}
	}
	return reply{data: nvme.AppendIdentifierList(nil, ids)}
}

// enduranceGroupPage makes log 09h from the health of the namespace (Base section 5.1.12.1.10).
func enduranceGroupPage(c *controller, sqe *nvme.SQE) reply {
	ns := c.group(sqe.GetLog().LSI())
	if ns == nil {
		return reply{st: invalidField}
	}
	size := ns.geo.Load().blocks << ns.geo.Load().shift
	return c.health([]*namespace{ns}, counters{}, func(s *nvme.SMARTLog) []byte {
		return nvme.Append(nil, &nvme.EnduranceGroupLog{
			CriticalWarning: s.CriticalWarning &
				(nvme.SMARTSpareLow | nvme.SMARTReliability | nvme.SMARTReadOnly),
			EGFEAT:         nvme.EGFEATRotational,
			AvailableSpare: s.AvailableSpare, SpareThreshold: s.SpareThreshold,
			PercentageUsed:   s.PercentageUsed,
			DataUnitsRead:    billions(s.DataUnitsRead),
			DataUnitsWritten: billions(s.DataUnitsWritten),
			HostReads:        s.HostReads, HostWrites: s.HostWrites,
			MediaErrors: s.MediaErrors, ErrorLogEntries: s.ErrorLogEntries,
			Capacity: nvme.MakeUint128(size),
		})
	})
}

// billions converts thousands of 512 bytes into 10^9 bytes, rounded up.
func billions(units nvme.Uint128) nvme.Uint128 {
	n, ok := units.Uint64()
	if !ok || n > 1<<57 { // more than any drive can do
		return nvme.Uint128{}
	}
	return nvme.MakeUint128((n*64 + 124999) / 125000)
}

// rotationalMediaPage makes log 16h: one actuator, at a speed that is not reported (Base section
// 5.1.12.1.22).
func rotationalMediaPage(c *controller, sqe *nvme.SQE) reply {
	id := sqe.GetLog().LSI()
	if c.group(id) == nil {
		return reply{st: invalidField}
	}
	return reply{data: nvme.Append(nil, &nvme.RotationalMediaLog{ENDGID: id, NUMA: 1})}
}
