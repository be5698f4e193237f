package convert

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nvmf-target/nvmf-target/config"
)

// This file removes unusable items from a configuration, with a note for each.

// item matches "subsystems[0].namespaces[1].nsid". A group for a list comes before its index.
var item = regexp.MustCompile(`^(listeners|discovery\.referrals|hosts|subsystems)\[(\d+)\]` +
	`(?:\.(namespaces)\[(\d+)\])?\.?([a-z0-9_]*)(?:\[(\d+)\])?`)

// leaveOut removes the items with problems, and reports whether there were any.
func (r *reader) leaveOut(problems config.Problems) (changed bool) {
	listeners, referrals := slices.Clone(r.out.listeners), slices.Clone(r.out.referrals)
	hosts, subsystems := slices.Clone(r.out.hosts), slices.Clone(r.out.subsystems)
	namespaces := map[*subsystem][]*namespace{}
	names := map[*[]string][]string{} // lists of hosts
	for _, s := range subsystems {
		namespaces[s], names[&s.hosts] = slices.Clone(s.namespaces), slices.Clone(s.hosts)
		for _, n := range s.namespaces {
			names[&n.hosts] = slices.Clone(n.hosts)
		}
	}
	deny := func(list *[]string, at *value, of string, index int, why string) {
		nqn := names[list][index]
		r.note(at, "left out: host %s of %s: %s", short(nqn), of, why)
		*list = slices.DeleteFunc(*list, func(h string) bool { return h == nqn })
	}
	for _, p := range problems {
		m := item.FindStringSubmatch(p.Path)
		if p.Warning || m == nil {
			continue
		}
		changed = true
		why := p.What
		if p.Hint != "" {
			why += ". " + p.Hint
		}
		i, _ := strconv.Atoi(m[2])
		j, _ := strconv.Atoi(m[4])
		k, listed := strconv.Atoi(m[6])
		key := m[5]
		switch m[1] {
		case "listeners":
			r.dropListener(listeners[i], why)
		case "discovery.referrals":
			r.note(referrals[i].at, "left out: the referral to %s: %s", referrals[i].name(), why)
			r.out.referrals = remove(r.out.referrals, referrals[i])
		case "hosts":
			r.dropHost(hosts[i], why)
		case "subsystems":
			s := subsystems[i]
			switch {
			case m[3] != "" && key == "hosts" && listed == nil:
				n := namespaces[s][j]
				n.hidden = true // not visible to all if this was the last host
				deny(&n.hosts, n.at, fmt.Sprintf("namespace %d of %s", n.nsid, short(s.nqn)), k,
					why)
			case m[3] != "":
				n := namespaces[s][j]
				r.note(n.at, "left out: namespace %d of %s: %s: %s", n.nsid, short(s.nqn), key,
					why)
				s.namespaces = remove(s.namespaces, n)
			case key == "hosts" && listed == nil:
				deny(&s.hosts, s.at, short(s.nqn), k, why)
			case !s.dropKey(key):
				r.note(s.at, "left out: subsystem %s: %s", short(s.nqn),
					strings.TrimPrefix(key+": "+why, ": "))
				r.out.subsystems = remove(r.out.subsystems, s)
			default:
				r.note(s.at, "left out: %s of %s: %s", key, short(s.nqn), why)
			}
		}
	}
	return changed
}

// dropKey resets a key of a subsystem, and reports whether it has a default.
func (s *subsystem) dropKey(key string) bool {
	switch key {
	case "serial":
		s.serial = ""
	case "model":
		s.model = ""
	case "cntlid_min", "cntlid_max":
		s.cntlidMin, s.cntlidMax = 1, 65519
	case "max_io_queues":
		s.maxIOQueues = 128
	default:
		return false
	}
	return true
}

func (r *reader) dropListener(l *listener, why string) {
	r.note(l.at, "left out: the listener %s: %s", short(l.name()), why)
	r.out.listeners = remove(r.out.listeners, l)
	for _, s := range r.out.subsystems {
		s.listeners = remove(s.listeners, l)
	}
}

// dropHost removes a host with unusable keys everywhere: it must not connect without them.
func (r *reader) dropHost(h *host, why string) {
	r.note(h.at, "left out: host %s: %s", short(h.nqn), why)
	r.out.hosts = remove(r.out.hosts, h)
	for _, s := range slices.Clone(r.out.subsystems) {
		s.hosts = remove(s.hosts, h.nqn)
		if s.allowAnyHost {
			r.note(s.at, "left out: subsystem %s, where every host may connect, and so also %s "+
				"without its key", short(s.nqn), short(h.nqn))
			r.out.subsystems = remove(r.out.subsystems, s)
		}
	}
}

// remove returns a list without an item.
func remove[T comparable](list []T, item T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(i T) bool { return i == item })
}
