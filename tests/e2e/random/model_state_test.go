package random

import (
	"cmp"

	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// model is a subsystem with its namespaces, written from the specifications, without a line of the
// code under test. Hosts see it through controllers, which have numbers.
type model struct {
	namespaces []*modelNamespace
	hosts      []int                      // the host of each controller
	logs       []targettest.Notifications // by controller
	// states are the ANA states by port and group; 0 means optimized. ana are the logs by
	// controller.
	states [len(modelPorts)][modelGroups + 1]nvme.ANAState
	ana    []modelANALog
}

// modelNamespace is a namespace.
type modelNamespace struct {
	targettest.Reservations
	targettest.Uncorrectable
	volatile   bool // uncorrectable marks end with the target
	nsid       uint32
	blockSize  int
	blocks     uint64
	atomic     uint32 // maximum number of blocks of a fused pair
	content    []byte // includes blocks beyond the end, which a larger size shows again
	readOnly   bool   // by the configuration
	protection nvme.WriteProtection
	group      uint32
	hidden     map[int]bool // hosts that may not use it
}

const dnr = nvme.DNR

// refusal returns the status of a command that does not reach a namespace because of its controller
// or its path.
func (m *model) refusal(c int, ns *modelNamespace, write bool) nvme.Status {
	return cmp.Or(m.path(c, ns), ns.Conflict(m.hosts[c], write))
}

// io returns the status of a command that reads or writes some blocks.
func (m *model) io(c int, ns *modelNamespace, slba uint64, n uint32, write bool) nvme.Status {
	st := m.refusal(c, ns, write)
	if write {
		st = cmp.Or(st, ns.writable())
	}
	return cmp.Or(st, ns.within(slba, n))
}

// reads returns the status of a command that reads some blocks.
func (m *model) reads(c int, ns *modelNamespace, slba uint64, n uint32) nvme.Status {
	st := m.io(c, ns, slba, n, false)
	if st.OK() && ns.Marked(slba, n) {
		st = nvme.UnrecoveredReadError | dnr
	}
	return st
}

// within reports whether the blocks exist (NVM section 3.3: LBA Out of Range).
func (ns *modelNamespace) within(slba uint64, n uint32) nvme.Status {
	if slba >= ns.blocks || uint64(n) > ns.blocks-slba {
		return nvme.LBAOutOfRange | dnr
	}
	return nvme.Success
}

func (ns *modelNamespace) writable() nvme.Status {
	if ns.readOnly || ns.protection != nvme.NoWriteProtect {
		return nvme.NamespaceWriteProtected | dnr
	}
	return nvme.Success
}

// at returns the bytes of some existing blocks.
func (ns *modelNamespace) at(slba uint64, n uint32) []byte {
	return ns.content[int(slba)*ns.blockSize:][:int(n)*ns.blockSize]
}

// reopened records that the storage was opened, perhaps with another size.
func (ns *modelNamespace) reopened() {
	if ns.volatile {
		ns.Lose()
	}
	ns.Resize(ns.blocks)
}

// overwrite returns the bytes of some blocks, to be written.
func (ns *modelNamespace) overwrite(slba uint64, n uint32) []byte {
	ns.Written(slba, n)
	return ns.at(slba, n)
}

// protect is Set Features of Namespace Write Protection (Base section 5.1.25.1.31).
func (ns *modelNamespace) protect(to nvme.WriteProtection) nvme.Status {
	switch {
	case to >= nvme.PermanentWriteProtect: // not offered, or reserved
		return nvme.InvalidField | dnr
	case ns.readOnly, ns.protection == nvme.WriteProtectUntilPowerCycle && to != ns.protection:
		return nvme.FeatureNotChangeable | dnr
	}
	ns.protection = to
	return nvme.Success
}

// protected returns the result of Get Features.
func (ns *modelNamespace) protected() nvme.WriteProtection {
	if ns.protection == nvme.NoWriteProtect && ns.readOnly {
		return nvme.WriteProtect
	}
	return ns.protection
}

// modelCopyRange is a source range of a Copy command; ns is nil if there is no such namespace.
type modelCopyRange struct {
	ns   *modelNamespace
	slba uint64
	n    uint32
}

// copyStatus returns the status of a Copy command (NVM section 3.3.2). between means that the
// format of its ranges names namespaces, and allowed that the host has enabled that.
func (m *model) copyStatus(c int, to *modelNamespace, sdlba uint64, from []modelCopyRange,
	between, allowed bool,
) nvme.Status {
	if st := cmp.Or(m.refusal(c, to, true), to.writable()); !st.OK() {
		return st
	}
	if between && !allowed {
		return nvme.InvalidField | dnr
	}
	total := uint32(0)
	for _, r := range from {
		if r.ns == nil {
			return nvme.InvalidField | dnr
		}
		if st := m.refusal(c, r.ns, false); !st.OK() {
			return st
		}
		if r.ns.blockSize != to.blockSize {
			return nvme.IncompatibleNamespace | dnr
		}
		if st := r.ns.within(r.slba, r.n); !st.OK() {
			return st
		}
		total += r.n
	}
	if st := to.within(sdlba, total); !st.OK() {
		return st
	}
	for _, r := range from {
		if r.ns == to && r.slba < sdlba+uint64(total) && sdlba < r.slba+uint64(r.n) {
			return nvme.OverlappingIORange | dnr
		}
	}
	return nvme.Success
}

// pairStatus returns the statuses of a fused Compare and Write (Base section 3.4.2). equal means
// that the data of the Compare equals the content of its blocks.
func (m *model) pairStatus(c int, cmp, write modelCopyRange, equal bool) [2]nvme.Status {
	one := m.half(c, cmp, false)
	two := m.half(c, write, true)
	const failed = nvme.AbortedFailedFused
	switch {
	case !one.OK() && two.OK():
		return [2]nvme.Status{one, failed}
	case one.OK() && !two.OK():
		return [2]nvme.Status{failed, two}
	case !one.OK():
		return [2]nvme.Status{one, two}
	case cmp != write:
		return [2]nvme.Status{nvme.InvalidField | dnr, nvme.InvalidField | dnr}
	case cmp.ns.Marked(cmp.slba, cmp.n):
		return [2]nvme.Status{nvme.UnrecoveredReadError | dnr, failed}
	case !equal:
		return [2]nvme.Status{nvme.CompareFailure | dnr, failed}
	}
	return [2]nvme.Status{}
}

// half returns the status of one command of a pair by itself.
func (m *model) half(c int, r modelCopyRange, write bool) nvme.Status {
	st := m.io(c, r.ns, r.slba, r.n, write)
	if st.OK() && r.n > r.ns.atomic {
		st = nvme.AtomicWriteUnitExceeded | dnr
	}
	return st
}

// tell adds a notification for all controllers of a host.
func (m *model) tell(ns *modelNamespace, h int, typ nvme.ReservationNotification) {
	for c, of := range m.hosts {
		if of == h && !ns.hidden[h] {
			m.logs[c].Add(typ, ns.nsid)
		}
	}
}

// restart is a power cycle. The configuration is the initial one, except for sizes.
func (m *model) restart() {
	for c := range m.logs {
		m.logs[c] = targettest.Notifications{}
	}
	clear(m.states[:])
	for _, ns := range m.namespaces {
		ns.readOnly, ns.group, ns.hidden = false, 1, nil
		if ns.protection == nvme.WriteProtectUntilPowerCycle {
			ns.protection = nvme.NoWriteProtect
		}
		ns.Restart()
		ns.reopened()
	}
}
