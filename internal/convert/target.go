package convert

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nvmf-target/nvmf-target/config/lang"
)

// target is the content of a file in terms of this target.
type target struct {
	listeners    []*listener
	discoveryNQN string // "": the well-known one only
	referrals    []*listener
	hosts        []*host
	subsystems   []*subsystem
}

// host is a host that must authenticate. Its keys are text, or paths of files.
type host struct {
	at                *value
	nqn, key, ctrlKey string
	keyIn, ctrlKeyIn  string // the names of the configuration keys
	hash, group       string
	tlsKey            string // a path
}

type listener struct {
	at                 *value
	transport, address string
	port               uint64
	nqn                string            // of a referral, "" for the well-known one
	ana                map[uint64]string // states other than optimized
	tls                string            // "": off
	// insteadOf is the host name that this loopback address stands for.
	insteadOf string
}

// name is the name of the listener in subsystems.
func (l *listener) name() string {
	address := l.address
	if ip, err := netip.ParseAddr(address); err == nil {
		address = ip.Unmap().String()
	}
	return l.transport + " " + net.JoinHostPort(address, strconv.FormatUint(l.port, 10))
}

type subsystem struct {
	at                   *value
	nqn, serial, model   string
	allowAnyHost         bool
	hosts                []string
	pskHosts             []string // hosts that connect there with TLS
	cntlidMin, cntlidMax uint64
	maxIOQueues          uint64
	namespaces           []*namespace
	listeners            []*listener
	// taken has the NSIDs of all namespaces, including the ones left out.
	taken map[uint64]bool
	// lost are listeners that were left out because their addresses are host names.
	lost []*listener
}

type namespace struct {
	at                 *value
	nsid               uint64
	uuid, nguid, eui64 string
	anaGroup           uint64 // 0: the default
	// hidden: only hosts in the list see it.
	hidden bool
	hosts  []string
	storage
}

// storage has the keys of the storage, as far as the backend has them.
type storage struct {
	backend, path   string
	image           string // of Ceph
	ceph            ceph
	uuid            string // of a bdev, different from the UUID of the namespace
	size, blockSize uint64 // bytes; 0: none
	readOnly        bool
	iops, bandwidth uint64 // 0: no limit
	// comment is for the line of backend, blockComment for the line of block_size.
	comment, blockComment string
}

// ceph is the access to a cluster of Ceph; "" is the default.
type ceph struct{ conf, user, keyring string }

func (r *reader) subsystem(nqn string) *subsystem {
	i := slices.IndexFunc(r.out.subsystems, func(s *subsystem) bool { return s.nqn == nqn })
	if i < 0 {
		return nil
	}
	return r.out.subsystems[i]
}

// address reads the address of a listener. It returns nil and reports why if this target cannot
// listen there. If the address is a host name, lost is the listener.
func (r *reader) address(v *value, path string) (l, lost *listener) {
	l = r.endpoint(v, path, "listener")
	switch {
	case l == nil:
		return nil, nil
	case l.isName():
		r.note(v, "left out: a listener at %q, which is the name of a host; names are not "+
			"resolved here: add it with the IP address", short(l.address))
		return nil, l
	}
	return r.addListener(l), nil
}

// isName reports whether the address is not an IP address.
func (l *listener) isName() bool {
	_, err := netip.ParseAddr(l.address)
	return err != nil && l.address != ""
}

// addListener returns the listener, or an equal one that already exists.
func (r *reader) addListener(l *listener) *listener {
	for _, other := range r.out.listeners {
		if other.name() == l.name() {
			return other
		}
	}
	r.out.listeners = append(r.out.listeners, l)
	return l
}

// plainOnly notes that a listener with TLS is left out if it uses RDMA, which has no TLS.
func (r *reader) plainOnly(v *value, path string) bool {
	if strings.ToLower(r.str(v, "trtype", path)) != "rdma" {
		return false
	}
	r.note(v, "left out: a listener of rdma at %q, which has TLS; that is for tcp only",
		short(r.str(v, "traddr", path)))
	v.ignore()
	return true
}

// referral reads the address of another discovery service.
func (r *reader) referral(v *value, path, nqn string) {
	l := r.endpoint(v, path, "referral")
	if l == nil || slices.ContainsFunc(r.out.referrals, func(o *listener) bool {
		return o.name() == l.name() && o.nqn == nqn
	}) {
		return
	}
	if l.isName() {
		r.note(v, "left out: a referral to %q, which is the name of a host; names are not "+
			"resolved here: add it with the IP address", short(l.address))
		return
	}
	l.nqn = nqn
	r.out.referrals = append(r.out.referrals, l)
}

// endpoint reads the members of an address, which are the same in both formats.
func (r *reader) endpoint(v *value, path, what string) *listener {
	l := &listener{at: v, transport: strings.ToLower(r.required(v, "trtype", path))}
	family := strings.ToLower(r.str(v, "adrfam", path))
	switch {
	case l.transport != "tcp" && l.transport != "rdma":
		r.note(v, "left out: a %s of transport %q at %q; there are tcp and rdma", what,
			short(l.transport), short(r.str(v, "traddr", path)))
		v.ignore()
		return nil
	case family != "" && family != "ipv4" && family != "ipv6":
		r.note(v, "left out: a %s with addresses of %q; there are IPv4 and IPv6",
			what, short(family))
		v.ignore()
		return nil
	}
	l.address = r.required(v, "traddr", path)
	l.port = r.number(v, "trsvcid", path, 4420)
	return l
}

// requireTLS removes hosts with a TLS key from subsystems where they could connect without TLS.
func (r *reader) requireTLS(s *subsystem) {
	i := slices.IndexFunc(s.listeners, func(l *listener) bool { return l.tls == "" })
	if i < 0 {
		return
	}
	for _, h := range r.out.hosts {
		if slices.Contains(s.pskHosts, h.nqn) {
			r.note(h.at, "left out: host %s of %s, which has a psk, because the listener %s has "+
				"no TLS. Add it to hosts if it may connect without", short(h.nqn), short(s.nqn),
				short(s.listeners[i].name()))
			s.hosts = slices.DeleteFunc(s.hosts, func(nqn string) bool { return nqn == h.nqn })
		}
	}
}

// finish removes items that cannot be served or reached.
func (r *reader) finish() {
	for _, s := range r.out.subsystems {
		r.requireTLS(s)
		s.namespaces = slices.DeleteFunc(s.namespaces, func(n *namespace) bool {
			if n.hidden && len(n.hosts) == 0 {
				r.note(n.at, "left out: namespace %d of %s, which no host sees", n.nsid,
					short(s.nqn))
			}
			return n.hidden && len(n.hosts) == 0
		})
		if len(s.listeners) == 0 && len(s.lost) > 0 {
			r.standIn(s)
		}
	}
	r.out.subsystems = slices.DeleteFunc(r.out.subsystems, func(s *subsystem) bool {
		var why string
		switch {
		case len(s.listeners) == 0:
			why = "no listener had it"
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
	}
	if len(r.out.subsystems) == 0 && len(r.problems) == 0 {
		r.problem(&value{}, "", "there is no subsystem that could be served here",
			"The notes say why; is it the right kind of file?")
	}
}

// standIn is for a subsystem that has only listeners with host names. It gives the subsystem
// listeners that only this machine reaches. So the subsystem is not left out, and is not served by
// listeners of other subsystems either.
func (r *reader) standIn(s *subsystem) {
	for _, l := range s.lost {
		local := *l
		local.address, local.insteadOf = "127.0.0.1", l.address
		s.listeners = append(s.listeners, r.addListener(&local))
		r.note(l.at, "%s has a listener at 127.0.0.1 instead of %q: write the IP address there",
			short(s.nqn), short(l.address))
	}
	s.lost = nil
}

// number gives a namespace without an NSID the lowest one that no namespace of the file has.
func (s *subsystem) number(n *namespace) {
	for next := uint64(1); n.nsid == 0; next++ {
		if !s.taken[next] {
			n.nsid = next
		}
	}
	if s.taken == nil {
		s.taken = map[uint64]bool{}
	}
	s.taken[n.nsid] = true
}

// unstable returns a comment for the name of a device that may change.
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

// limitsText formats the limits as a flow mapping, "" without limits.
func (s *storage) limitsText() string {
	var list []string
	if s.iops > 0 {
		list = append(list, fmt.Sprintf("iops: %d", s.iops))
	}
	if s.bandwidth > 0 {
		list = append(list, "bandwidth: "+lang.Size(s.bandwidth).String())
	}
	if list == nil {
		return ""
	}
	return "{" + strings.Join(list, ", ") + "}"
}
