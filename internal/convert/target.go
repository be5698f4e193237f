package convert

import (
	"fmt"
	"slices"
	"strings"
)

// target is what a file describes, in our terms.
type target struct {
	listeners  []*listener
	subsystems []*subsystem
}

type listener struct {
	at                 *value
	transport, address string
	port               uint64
}

type subsystem struct {
	at                   *value
	nqn, serial, model   string
	allowAnyHost         bool
	hosts                []string
	cntlidMin, cntlidMax uint64
	maxIOQueues          uint64
	namespaces           []*namespace
	listeners            []*listener
}

type namespace struct {
	at *value
	// nsid is 0 for the lowest free one.
	nsid               uint64
	uuid, nguid, eui64 string
	storage
}

// storage is where the blocks are. Keys are set that the backend has.
type storage struct {
	backend, path   string
	size, blockSize uint64 // bytes; 0: none
	readOnly        bool
	iops, bandwidth uint64 // 0: no limit
	// comment is for the line of backend.
	comment string
}

func (r *reader) subsystem(nqn string) *subsystem {
	i := slices.IndexFunc(r.out.subsystems, func(s *subsystem) bool { return s.nqn == nqn })
	if i < 0 {
		return nil
	}
	return r.out.subsystems[i]
}

// address reads the members of the address of a listener, which both formats have. It returns nil,
// after saying why, if we cannot listen there.
func (r *reader) address(v *value, path string) *listener {
	l := &listener{at: v, transport: strings.ToLower(r.required(v, "trtype", path))}
	family := strings.ToLower(r.str(v, "adrfam", path))
	switch {
	case l.transport != "tcp" && l.transport != "rdma":
		r.note(v, "left out: a listener of transport %q at %q; there are tcp and rdma",
			short(l.transport), short(r.str(v, "traddr", path)))
		v.ignore()
		return nil
	case family != "" && family != "ipv4" && family != "ipv6":
		r.note(v, "left out: a listener with addresses of %q; there are IPv4 and IPv6",
			short(family))
		v.ignore()
		return nil
	}
	l.address = r.required(v, "traddr", path)
	l.port = r.number(v, "trsvcid", path, 4420)
	for _, other := range r.out.listeners {
		if other.transport == l.transport && other.address == l.address && other.port == l.port {
			return other
		}
	}
	r.out.listeners = append(r.out.listeners, l)
	return l
}

// finish leaves out what could not be served or what nobody could reach, and says where hosts reach
// more than before.
func (r *reader) finish() {
	r.out.subsystems = slices.DeleteFunc(r.out.subsystems, func(s *subsystem) bool {
		var why string
		switch {
		case len(s.listeners) == 0:
			why = "no listener had it"
		case len(s.namespaces) == 0:
			why = "it has no namespace here"
		case !s.allowAnyHost && len(s.hosts) == 0:
			why = "no host may connect; name some in hosts"
		default:
			return false
		}
		r.note(s.at, "left out: subsystem %s, because %s", short(s.nqn), why)
		return true
	})
	used := func(l *listener) bool {
		return slices.ContainsFunc(r.out.subsystems, func(s *subsystem) bool {
			return slices.Contains(s.listeners, l)
		})
	}
	r.out.listeners = slices.DeleteFunc(r.out.listeners, func(l *listener) bool {
		if used(l) {
			return false
		}
		r.note(l.at, "left out: the listener %s %s:%d, which has no subsystem", l.transport,
			short(l.address), l.port)
		return true
	})
	for _, s := range r.out.subsystems {
		if s.allowAnyHost && len(s.hosts) > 0 {
			r.note(s.at, "hosts of %s are left out, because every host may connect", short(s.nqn))
			s.hosts = nil
		}
		s.numberNamespaces()
		for _, l := range r.out.listeners {
			if !slices.Contains(s.listeners, l) {
				r.note(s.at, "subsystem %s was not at %s %s:%d, and is there now: subsystems are "+
					"at all listeners. Mind who reaches it", short(s.nqn), l.transport,
					short(l.address), l.port)
			}
		}
	}
	if len(r.out.subsystems) == 0 && len(r.problems) == 0 {
		r.problem(&value{}, "", "there is no subsystem that could be served here",
			"The notes say why; is it the right kind of file?")
	}
}

// numberNamespaces gives those without an NSID the lowest free one.
func (s *subsystem) numberNamespaces() {
	taken := map[uint64]bool{}
	for _, n := range s.namespaces {
		taken[n.nsid] = true
	}
	next := uint64(1)
	for _, n := range s.namespaces {
		if n.nsid == 0 {
			for taken[next] {
				next++
			}
			n.nsid = next
			taken[next] = true
		}
	}
}

// ofPath fills in the backend of a file or a device.
func ofPath(path string, blockSize uint64) storage {
	if !strings.HasPrefix(path, "/dev/") {
		return storage{backend: "file", path: path, blockSize: blockSize}
	}
	return storage{backend: "block", path: path, comment: unstable(path)}
}

// unstable is a comment on the names of devices that may change.
func unstable(path string) string {
	for _, dir := range []string{"/dev/disk/", "/dev/mapper/"} {
		if strings.HasPrefix(path, dir) {
			return ""
		}
	}
	if strings.Count(path, "/") > 2 { // /dev/VG/LV
		return ""
	}
	return "better its name below /dev/disk/by-id, which stays the same"
}

// limitsText is the flow mapping of limits, "" without.
func (s *storage) limitsText() string {
	var list []string
	if s.iops > 0 {
		list = append(list, fmt.Sprintf("iops: %d", s.iops))
	}
	if s.bandwidth > 0 {
		list = append(list, "bandwidth: "+size(s.bandwidth))
	}
	if list == nil {
		return ""
	}
	return "{" + strings.Join(list, ", ") + "}"
}
