package target

import (
	"net/netip"

	"github.com/nvmf-target/nvmf-target/backend/marks"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// promises are the state of a namespace that hosts rely on. They outlive it until ForgetNamespace.
type promises struct {
	reservations *reservation.Namespace
	marks        *marks.Marks
}

// promisesOf returns the promises of a namespace. The caller holds t.mu.
func (t *Target) promisesOf(n observe.Namespace) *promises {
	p := t.promises[n]
	if p == nil {
		p = &promises{
			reservation.New(t.shared.Reservations, n.SubNQN, n.NSID),
			marks.New(t.shared.Uncorrectable, n.SubNQN, n.NSID),
		}
		t.promises[n] = p
	}
	return p
}

// ForgetNamespace forgets the reservations of a namespace that was removed and does not come back,
// and its marks of uncorrectable blocks, also in the stores.
func (t *Target) ForgetNamespace(nqn string, nsid uint32) {
	n := observe.Namespace{SubNQN: nqn, NSID: nsid}
	t.mu.Lock()
	p := t.promisesOf(n)
	delete(t.promises, n)
	t.mu.Unlock()
	if p.reservations.Forget(t.hostLog.Peer(netip.AddrPort{})) {
		t.log.Warn("a reservation has ended with its namespace", "subsystem", nqn, "nsid", nsid)
	}
	if err := p.marks.Forget(); err != nil {
		t.log.Warn("marks of uncorrectable blocks stay stored after the end of their namespace",
			"subsystem", nqn, "nsid", nsid, "err", err)
	}
}
