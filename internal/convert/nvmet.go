package convert

import (
	"fmt"
	"slices"
	"strings"
)

// nvmetBlockSize is that of files: the block size of their file system, at most 4096
// (drivers/nvme/target/io-cmd-file.c), which is what nearly all have.
const nvmetBlockSize = 4096

// nvmetTuning has what nvmet uses by itself: -1 until a port is enabled, then that of tcp or rdma.
var nvmetTuning = map[string][]string{
	"inline_data_size": {"-1", "4096", "16384"},
	"max_queue_size":   {"-1", "128", "1024"},
	"mdts":             {"0"},
}

// noPath is what the kernel shows of a device that has not been set.
const noPath = "(null)"

// nvmet reads what nvmetcli saves: the tree of nvmet in configfs, of which every writable attribute
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
	r.nvmetHosts(root)
	for _, s := range r.objects(root, "subsystems", "") {
		if s.member("subsystem") != nil {
			r.problem(s, "subsystems", "is a part of SPDK", "Use: nvmf-target convert spdk FILE")
			return
		}
		r.nvmetSubsystem(s)
	}
	for _, p := range r.objects(root, "ports", "") {
		r.nvmetPort(p)
	}
	r.rest(root, "")
}

// nvmetHosts reads the hosts, of which those with a key have to authenticate.
func (r *reader) nvmetHosts(root *value) {
	for _, h := range r.objects(root, "hosts", "") {
		nqn := r.required(h, "nqn", "hosts.")
		keys := r.object(h, "dhchap", "hosts.")
		out := &host{
			at: h, nqn: nqn, keyIn: "dhchap_key", key: r.str(keys, "key", "hosts.dhchap."),
			ctrlKeyIn: "dhchap_ctrl_key", ctrlKey: r.str(keys, "ctrl_key", "hosts.dhchap."),
			hash: strings.TrimSuffix(strings.TrimPrefix(
				r.str(keys, "hash", "hosts.dhchap."), "hmac("), ")"),
			group: r.str(keys, "dhgroup", "hosts.dhchap."),
		}
		if out.key != "" {
			r.out.hosts = append(r.out.hosts, out)
		}
		r.rest(keys, "hosts.dhchap.")
		r.rest(h, "hosts.")
	}
}

func (r *reader) nvmetSubsystem(v *value) {
	const path = "subsystems."
	attr := r.object(v, "attr", path)
	s := &subsystem{
		at: v, nqn: r.required(v, "nqn", path),
		serial:       r.str(attr, "serial", path+"attr."),
		model:        r.str(attr, "model", path+"attr."),
		allowAnyHost: r.flag(attr, "allow_any_host", path+"attr.", false),
		cntlidMin:    r.number(attr, "cntlid_min", path+"attr.", 1),
		cntlidMax:    r.number(attr, "cntlid_max", path+"attr.", 65519),
		maxIOQueues:  r.number(attr, "qid_max", path+"attr.", 128),
	}
	s.hosts = r.strs(v, "allowed_hosts", path)
	if r.flag(attr, "pi_enable", path+"attr.", false) {
		r.note(attr, "protection information (pi_enable) has no counterpart")
	}
	for _, n := range r.objects(v, "namespaces", path) {
		r.nvmetNamespace(s, n)
	}
	for _, p := range r.objects(v, "passthru", path) {
		name := r.str(r.object(p, "device", path), "path", path+"passthru.device.")
		if name != "" && name != noPath {
			r.note(p, "left out: the drive %s, which %s passes through: add its namespaces, with "+
				"backend nvme", short(name), short(s.nqn))
		}
	}
	for _, id := range []string{"vendor_id", "subsys_vendor_id"} {
		if n := r.str(attr, id, path+"attr."); n != "" && n != "0x0" {
			r.note(attr, "%s: %s has no counterpart", id, short(n))
		}
	}
	r.rest(attr, path+"attr.", "version", "firmware", "ieee_oui")
	r.rest(v, path)
	r.out.subsystems = append(r.out.subsystems, s)
}

func (r *reader) nvmetNamespace(s *subsystem, v *value) {
	const path = "namespaces."
	device := r.object(v, "device", path)
	n := &namespace{
		at: v, nsid: r.number(v, "nsid", path, 0),
		uuid:  identifier(r.str(device, "uuid", path+"device.")),
		nguid: strings.ReplaceAll(identifier(r.str(device, "nguid", path+"device.")), "-", ""),
	}
	name := r.str(device, "path", path+"device.")
	enabled := r.flag(v, "enable", path, true)
	n.anaGroup = r.number(v, "ana_grpid", path, 1)
	r.object(v, "ana", path).member("grpid") // the same
	r.rest(device, path+"device.")
	r.rest(v, path, "ana", "resv") // reservations are always there
	switch {
	case !enabled:
		r.note(v, "left out: namespace %d of %s, which is not enabled", n.nsid, short(s.nqn))
		return
	case name == "" || name == noPath:
		r.note(v, "left out: namespace %d of %s, which has no path", n.nsid, short(s.nqn))
		return
	}
	n.storage = ofPath(name, nvmetBlockSize)
	s.namespaces = append(s.namespaces, n)
}

// identifier is "" if s is all zeroes, which is none.
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
		if r.flag(o, "enable", path, true) {
			r.referral(r.object(o, "addr", path), path+"referrals.addr.", "")
		}
	}
	var ana []string
	for _, g := range r.objects(v, "ana_groups", path) {
		group := r.number(g, "grpid", path+"ana_groups.", 0)
		switch state := r.str(r.object(g, "ana", path), "state", path+"ana_groups.ana."); state {
		case "", "optimized":
		case "change":
			r.note(g, "port %d: ANA group %d changes, and is optimized here", id, group)
		default:
			ana = append(ana, fmt.Sprintf("%d: %s", group, quote(state)))
		}
	}
	secure := treq == "required" || strings.HasPrefix(security, "tls")
	if secure && r.plainOnly(addr, path+"addr.") {
		return
	}
	l := r.address(addr, path+"addr.")
	if l != nil && secure {
		l.tls = "required"
		if treq == "not required" { // nvmet_port_secure_channel_required
			l.tls = "allowed"
		}
		r.note(addr, "port %d has TLS, whose keys nvmet has in the keyring of the kernel: give "+
			"each host its key as tls_key_file", id)
	}
	r.rest(addr, path+"addr.")
	param := r.object(v, "param", path)
	param.member("pi_enable")
	for _, t := range []struct{ name, see string }{
		{"inline_data_size", "in_capsule_size of tcp and rdma"},
		{"max_queue_size", "queue_depth of tcp and rdma"},
		{"mdts", "max_transfer"},
	} {
		n := r.str(param, t.name, path+"param.")
		if n != "" && !slices.Contains(nvmetTuning[t.name], n) {
			r.note(param, "port %d: %s %s is tuning, which starts anew here: see %s", id, t.name,
				short(n), t.see)
		}
	}
	r.rest(param, path+"param.")
	r.rest(v, path)
	if l == nil {
		return
	}
	l.ana = ana
	for _, nqn := range subsystems {
		if s := r.subsystem(nqn); s != nil {
			s.listeners = append(s.listeners, l)
		} else {
			r.problem(v, path+"subsystems", "names "+short(nqn)+", which is not in subsystems",
				"Save the configuration again.")
		}
	}
}
