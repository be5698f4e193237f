package app

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/group"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// This file passes notifications of reservations to hosts of other gateways. The gateway that
// serves a group publishes them with its facts, and the others look for new ones there.

// notifications has the notifications of this gateway, and the last numbers of other gateways.
type notifications struct {
	process string // random

	mu     sync.Mutex
	number uint64                         // of the last one
	list   map[uint32][]timedNotification // by group

	told map[uint32]map[string]uint64 // the last number of each process, by group; of receive
}

type timedNotification struct {
	group.Notification
	at time.Time
}

const (
	// maxNotifications bounds the notifications of a group: as many as a controller keeps.
	maxNotifications = 64
	// notifyFor is the time for which they are published.
	notifyFor = 30 * time.Second
)

func newNotifications() *notifications {
	return &notifications{
		process: rand.Text(), list: map[uint32][]timedNotification{},
		told: map[uint32]map[string]uint64{},
	}
}

// hostHash returns a short hash of a host. Two hosts with the same one get notifications of each
// other.
func hostHash(h reservation.Host) string {
	return fmt.Sprintf("%.6x", sha256.Sum256(append(h.HostID[:], h.NQN...)))
}

// add adds notifications of a change, one for each type.
func (n *notifications) add(id uint32, object string,
	to map[reservation.Host]nvme.ReservationNotification,
) {
	hosts := map[nvme.ReservationNotification][]string{}
	for h, typ := range to {
		hosts[typ] = append(hosts[typ], hostHash(h))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for typ, list := range hosts {
		n.number++
		all := append(n.list[id], timedNotification{
			group.Notification{Number: n.number, Object: object, Type: uint8(typ), Hosts: list},
			time.Now(),
		})
		n.list[id] = all[max(len(all)-maxNotifications, 0):]
	}
}

// recent returns the notifications to publish.
func (n *notifications) recent(id uint32) (out []group.Notification) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list[id] = slices.DeleteFunc(n.list[id], func(t timedNotification) bool {
		return time.Since(t.at) >= notifyFor
	})
	for _, t := range n.list[id] {
		out = append(out, t.Notification)
	}
	return out
}

// receive calls pass with a group and the new notifications of other gateways. The ones that are
// there at the first call are not new: hosts have connected since. One goroutine calls it.
func (n *notifications) receive(id uint32, gateway string, s *group.Status,
	pass func(uint32, *group.Notification),
) {
	told, now := n.told[id], maps.Clone(n.told[id])
	if len(now) > 2*group.MaxNumbers || now == nil {
		now = map[string]uint64{} // without processes that have gone
	}
	s.Notifications(gateway, func(process string, list []group.Notification) {
		last := told[process]
		for i := range list {
			if list[i].Number > last {
				last = list[i].Number
				if told != nil {
					pass(id, &list[i])
				}
			}
		}
		now[process] = max(now[process], last)
	})
	n.told[id] = now
}

// pass passes a notification to the hosts that it is for. It ignores types that it does not know.
func (p *promises) pass(id uint32, n *group.Notification) {
	typ := nvme.ReservationNotification(n.Type)
	p.mu.Lock()
	list := slices.Collect(maps.Values(p.list))
	p.mu.Unlock() // reactors may wait for it
	i := slices.IndexFunc(list, func(k *kept) bool {
		return k.group == id && k.name.Object() == n.Object
	})
	if i < 0 || typ > nvme.ReservationPreempted {
		return
	}
	list[i].ns.Notify(func(h reservation.Host) nvme.ReservationNotification {
		if slices.Contains(n.Hosts, hostHash(h)) {
			return typ
		}
		return 0
	})
}
