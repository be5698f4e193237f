package convert

import (
	"fmt"
	"slices"
	"strings"
)

// nvmetTuning has the defaults of nvmet: -1 until a port is enabled, then of tcp or rdma.
var nvmetTuning = map[string][]string{
	"inline_data_size": {"-1", "4096", "16384"},
	"max_queue_size":   {"-1", "128", "1024"},
	"mdts":             {"0"},
}

// noPath is shown by the kernel for a device that has not been set.
const noPath = "(null)"

// nvmet reads a file of nvmetcli: the tree of nvmet in configfs. Every writable attribute
// GROUP_NAME is the member NAME of an object GROUP (nvmet/nvme.py). Numbers are often text.
func (r *reader) nvmet(root *value) {
	if root.member("ports") == nil && root.member("subsystems") == nil {
		r.problem(root, "", "has neither ports nor subsystems",
			"Name a file that nvmetcli has saved.")
		return
	}
	discovery := r.object(root, "discovery", "")
	if nqn := r.str(discovery, "nqn", "discovery."); nqn != discoveryNQN {
		r.out.discoveryNQN = nqn
	}
	r.rest(discovery, "discovery.")
	for _, s := range r.objects(root, "subsystems", "") {
		if s.member("subsystem") != nil {
			r.problem(s, "subsystems", "is a part of SPDK", "Use: nvmf-target convert spdk FILE")
			return
		}
		r.nvmetSubsystem(s)
	}
	for _, p := range r.objects(root, "ports", "") {
		r.try("port "+p.text("portid"), func() { r.nvmetPort(p) })
	}
	r.nvmetHosts(root) // may remove hosts from subsystems
	if slices.ContainsFunc(r.out.hosts, func(h *host) bool { return h.key != "" }) {
		r.note(r.out.hosts[0].at,
			"there are keys in the result: nobody else may read it (chmod 600)")
	}
	r.rest(root, "")
}

// nvmetHosts reads the hosts. A host with a key must authenticate.
func (r *reader) nvmetHosts(root *value) {
	for _, h := range r.objects(root, "hosts", "") {
		out := &host{at: h, keyIn: "dhchap_key", ctrlKeyIn: "dhchap_ctrl_key"}
		if !r.try("host "+h.text("nqn"), func() {
			out.nqn = r.required(h, "nqn", "hosts.")
			keys := r.object(h, "dhchap", "hosts.")
			out.key = r.str(keys, "key", "hosts.dhchap.")
			out.ctrlKey = r.str(keys, "ctrl_key", "hosts.dhchap.")
			out.hash = strings.TrimSuffix(strings.TrimPrefix(
				r.str(keys, "hash", "hosts.dhchap."), "hmac("), ")")
			out.group = r.str(keys, "dhgroup", "hosts.dhchap.")
			r.rest(keys, "hosts.dhchap.")
			r.rest(h, "hosts.")
		}) {
			r.dropHost(out, "its keys cannot be read")
		} else if out.key != "" {
			r.out.hosts = append(r.out.hosts, out)
		}
	}
}

func (r *reader) nvmetSubsystem(v *value) {
	const path = "subsystems."
	attr := r.object(v, "attr", path)
	s := &subsystem{at: v}
	if !r.try("subsystem "+v.text("nqn"), func() {
		s.nqn = r.required(v, "nqn", path)
		s.serial = r.str(attr, "serial", path+"attr.")
		s.model = r.str(attr, "model", path+"attr.")
		s.allowAnyHost = r.flag(attr, "allow_any_host", path+"attr.", false)
		s.cntlidMin = r.number(attr, "cntlid_min", path+"attr.", 1)
		s.cntlidMax = r.number(attr, "cntlid_max", path+"attr.", 65519)
		s.maxIOQueues = r.number(attr, "qid_max", path+"attr.", 128)
		s.hosts = r.strs(v, "allowed_hosts", path)
	}) {
		return
	}
	r.try("something of subsystem "+short(s.nqn), func() {
		if r.flag(attr, "pi_enable", path+"attr.", false) {
			r.note(attr, "protection information (pi_enable) has no counterpart")
		}
		for _, n := range r.objects(v, "namespaces", path) {
			r.try("a namespace of "+short(s.nqn), func() { r.nvmetNamespace(s, n) })
		}
		passthru := []*value{v.member("passthru")}
		if passthru[0] == nil || passthru[0].kind == '[' {
			passthru = r.objects(v, "passthru", path)
		}
		for _, p := range passthru {
			name := r.str(r.object(p, "device", path), "path", path+"passthru.device.")
			if name != "" && name != noPath {
				r.note(p, "left out: the drive %s, which %s passes through: add its namespaces, "+
					"with backend nvme", short(name), short(s.nqn))
			}
		}
		for _, id := range []string{"vendor_id", "subsys_vendor_id"} {
			if n := r.str(attr, id, path+"attr."); n != "" && n != "0x0" {
				r.note(attr, "%s: %s has no counterpart", id, short(n))
			}
		}
		r.rest(attr, path+"attr.", "version", "firmware", "ieee_oui")
		r.rest(v, path)
	})
	r.out.subsystems = append(r.out.subsystems, s)
}

func (r *reader) nvmetNamespace(s *subsystem, v *value) {
	const path = "namespaces."
	device := r.object(v, "device", path)
	n := &namespace{
		at: v, nsid: r.number(v, "nsid", path, 0),
		uuid:  identifier(r.str(device, "uuid", path+"device.")),
		nguid: plainHex(r.str(device, "nguid", path+"device.")),
		eui64: plainHex(r.str(device, "eui64", path+"device.")),
	}
	name := r.str(device, "path", path+"device.")
	enabled := r.flag(v, "enable", path, true)
	n.anaGroup = r.number(v, "ana_grpid", path, 1)
	r.object(v, "ana", path).member("grpid") // the same value
	r.rest(device, path+"device.")
	// Reservations are always supported; the others are tuning.
	r.rest(v, path, "ana", "resv", "buffered_io", "p2pmem", "revalidate_size")
	if n.nsid == 0 {
		r.problem(v, path+"nsid", "is missing or 0", "")
	}
	switch {
	case len(r.problems) > 0: // try reports them
		return
	case !enabled:
		r.note(v, "left out: namespace %d of %s, which is not enabled", n.nsid, short(s.nqn))
		return
	case name == "" || name == noPath:
		r.note(v, "left out: namespace %d of %s, which has no path", n.nsid, short(s.nqn))
		return
	}
	var why string
	if n.storage, why = r.nvmetStorage(device, name); why != "" {
		r.note(v, "left out: namespace %d of %s on %s: %s", n.nsid, short(s.nqn), short(name), why)
		return
	}
	s.namespaces = append(s.namespaces, n)
}

// plainHex returns the digits of an identifier, "" if s is not an identifier.
func plainHex(s string) string {
	return strings.ToLower(strings.ReplaceAll(identifier(s), "-", ""))
}

// identifier returns s, or "" if it is all zeroes.
func identifier(s string) string {
	if strings.Trim(s, "0-") == "" {
		return ""
	}
	return s
}

func (r *reader) nvmetPort(v *value) {
	const path = "ports."
	id := r.number(v, "portid", path, 0)
	addr := r.object(v, "addr", path)
	security := strings.ToLower(r.str(addr, "tsas", path+"addr."))
	treq := strings.ToLower(r.str(addr, "treq", path+"addr."))
	subsystems := r.strs(v, "subsystems", path)
	for _, o := range r.objects(v, "referrals", path) {
		r.try("a referral", func() {
			if r.flag(o, "enable", path, true) {
				r.referral(r.object(o, "addr", path), path+"referrals.addr.", "")
			}
		})
	}
	ana := r.nvmetStates(v, id)
	secure := treq == "required" || strings.HasPrefix(security, "tls")
	if secure && r.plainOnly(addr, path+"addr.") {
		return
	}
	before := len(r.problems)
	l, lost := r.address(addr, path+"addr.")
	for _, l := range []*listener{l, lost} {
		if l == nil || !secure {
			continue
		}
		l.tls = "required"
		if treq == "not required" { // nvmet_port_secure_channel_required
			l.tls = "allowed"
		}
		r.note(addr, "port %d has TLS, with keys in the keyring of the kernel: give "+
			"each host its key as tls_key_file", id)
	}
	r.rest(addr, path+"addr.")
	r.nvmetParam(v, id)
	r.rest(v, path)
	if len(r.problems) > before {
		if l != nil {
			r.out.listeners = remove(r.out.listeners, l)
		}
		return
	}
	r.nvmetServes(v, id, subsystems, ana, l, lost)
}

// nvmetServes lets subsystems use a port's listener, or lost, with a host name, and its states.
func (r *reader) nvmetServes(v *value, id uint64, subsystems []string, ana map[uint64]string,
	l, lost *listener,
) {
	for _, nqn := range subsystems {
		s := r.subsystem(nqn)
		switch {
		case s == nil:
			r.note(v, "port %d has %s, which is not among the subsystems here", id, short(nqn))
			continue
		case l != nil:
			s.listeners = append(s.listeners, l)
		case lost != nil:
			s.lost = append(s.lost, lost)
		}
		for _, n := range s.namespaces {
			if _, listed := ana[n.anaGroup]; !listed && n.anaGroup > 1 {
				ana[n.anaGroup] = "inaccessible" // nvmet_ports_make
			}
		}
	}
	for _, l := range []*listener{l, lost} {
		if l != nil {
			l.ana = ana
		}
	}
	for group, state := range ana {
		if state == "optimized" {
			delete(ana, group)
		}
	}
}

// nvmetStates returns the states of the ANA groups that a port lists.
func (r *reader) nvmetStates(v *value, id uint64) map[uint64]string {
	const path = "ports.ana_groups."
	ana := map[uint64]string{}
	for _, g := range r.objects(v, "ana_groups", "ports.") {
		r.try(fmt.Sprintf("an ANA group of port %d", id), func() {
			group := r.number(g, "grpid", path, 0)
			state := r.str(r.object(g, "ana", path), "state", path+"ana.")
			switch state {
			case "":
				state = "optimized"
			case "change":
				r.note(g, "port %d: ANA group %d changes, and is inaccessible here until its "+
					"state is set", id, group)
				state = "inaccessible"
			}
			ana[group] = state
		})
	}
	return ana
}

// nvmetParam notes the tuning of a port.
func (r *reader) nvmetParam(v *value, id uint64) {
	param := r.object(v, "param", "ports.")
	param.member("pi_enable")
	for _, t := range []struct{ name, see string }{
		{"inline_data_size", "in_capsule_size of tcp and rdma"},
		{"max_queue_size", "queue_depth of tcp and rdma"},
		{"mdts", "max_transfer"},
	} {
		n := r.str(param, t.name, "ports.param.")
		if n != "" && !slices.Contains(nvmetTuning[t.name], n) {
			r.note(param, "port %d: %s %s is tuning, which is not converted: see %s", id, t.name,
				short(n), t.see)
		}
	}
	r.rest(param, "ports.param.")
}
