package convert

import (
	"cmp"
	"slices"
	"strings"
)

// spdk reads the output of rpc.py save_config: for each subsystem of SPDK the RPCs that restore its
// state, in order (spdk_subsystem_config_json and the write_config functions of its modules).
func (r *reader) spdk(root *value) {
	parts := r.objects(root, "subsystems", "")
	if len(parts) == 0 || !slices.ContainsFunc(parts, func(p *value) bool {
		return p.member("subsystem") != nil
	}) {
		r.problem(root, "", "has no RPCs of SPDK", "Name a file that rpc.py save_config has "+
			"written; that of nvmetcli: nvmf-target convert nvmet FILE")
		return
	}
	s := spdk{
		reader: r, bdevs: map[string]*bdev{}, clusters: map[string]ceph{},
		keys: map[string]string{}, memory: map[string]bool{},
		states: map[*subsystem]map[*listener]anaStates{},
	}
	var rpcs []*value
	for _, p := range parts {
		r.str(p, "subsystem", "")
		if m := p.member("config"); m != nil {
			rpcs = s.flatten(rpcs, m)
		}
		r.rest(p, "subsystems.")
	}
	// The bdevs come first, because references to them may precede them.
	for _, methods := range rounds {
		for _, rpc := range rpcs {
			s.call(rpc, methods)
		}
	}
	s.applyStates()
	s.others(rpcs)
	r.rest(root, "")
}

const discoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"

type spdk struct {
	*reader
	bdevs map[string]*bdev
	// clusters has the clusters of Ceph by the names that bdevs give them.
	clusters map[string]ceph
	keys     map[string]string // files by the name of the key
	// memory has the memory bdevs of namespaces.
	memory map[string]bool
	// states are the ANA states other than optimized, by subsystem and listener.
	states map[*subsystem]map[*listener]anaStates
}

// flatten appends RPCs. Newer versions group RPCs of one kind in a list.
func (s *spdk) flatten(rpcs []*value, v *value) []*value {
	if v.kind == '[' {
		for _, item := range v.items {
			rpcs = s.flatten(rpcs, item)
		}
		return rpcs
	}
	if v.kind != '{' || v.text("method") == "" {
		s.note(v, "left out: config has %s, which is not an RPC", v.what())
		return rpcs
	}
	return append(rpcs, v)
}

// method reads the parameters of an RPC; path is its name with a dot.
type method func(s *spdk, params *value, path string)

func (s *spdk) call(rpc *value, methods map[string]method) {
	name := s.str(rpc, "method", "")
	if do, ok := methods[name]; ok {
		s.try(name, func() {
			params := s.object(rpc, "params", name+".")
			do(s, params, name+".")
			// The method has marked the members that need no counterpart.
			s.rest(params, name+".")
		})
	}
}

// others notes the methods without a counterpart, tuning in one line.
func (s *spdk) others(rpcs []*value) {
	var tuning []string
	var first *value
	for _, rpc := range rpcs {
		name := s.str(rpc, "method", "")
		switch {
		case slices.ContainsFunc(rounds, func(m map[string]method) bool { return m[name] != nil }):
		case isTuning(name):
			first = cmp.Or(first, rpc)
			if !slices.Contains(tuning, name) && len(tuning) < 32 {
				tuning = append(tuning, short(name))
			}
		case s.isBdev(name, rpc): // its users report it
		default:
			s.note(rpc, "%s has no counterpart", short(name))
		}
	}
	if first != nil {
		s.note(first, "tuning is not converted: %s", strings.Join(tuning, ", "))
	}
}

// isTuning reports whether an RPC configures SPDK itself.
func isTuning(method string) bool {
	return strings.HasSuffix(method, "_set_options") ||
		strings.HasSuffix(method, "_set_default_impl") ||
		slices.Contains([]string{
			"nvmf_set_config", "nvmf_set_max_subsystems", "nvmf_set_crdt", "nvmf_create_transport",
			"bdev_wait_for_examine", "bdev_nvme_set_hotplug", "bdev_enable_histogram",
			"framework_set_scheduler",
		}, method)
}

// rounds has the methods in the order in which they are called.
var rounds = []map[string]method{bdevMethods, nvmfMethods, memberMethods, stateMethods}

var nvmfMethods = map[string]method{
	"nvmf_create_subsystem": (*spdk).createSubsystem,
	"keyring_file_add_key": func(s *spdk, p *value, path string) {
		s.keys[s.required(p, "name", path)] = s.required(p, "path", path)
	},
	"nvmf_discovery_add_referral": (*spdk).addReferral,
}

// stateMethods run after all namespaces and listeners are known.
var stateMethods = map[string]method{
	"nvmf_subsystem_listener_set_ana_state": (*spdk).setListenerState,
	"nvmf_subsystem_set_ns_ana_group":       (*spdk).setGroup,
}

// memberMethods run after all subsystems are known.
var memberMethods = map[string]method{
	"nvmf_subsystem_add_host":       (*spdk).addHost,
	"nvmf_subsystem_allow_any_host": (*spdk).allowAnyHost,
	"nvmf_subsystem_add_ns":         (*spdk).addNamespace,
	"nvmf_subsystem_add_listener":   (*spdk).addListener,
	"nvmf_ns_add_host":              (*spdk).showNamespace,
}

func (s *spdk) addReferral(p *value, path string) {
	nqn := s.str(p, "subnqn", path)
	address := s.object(p, "address", path)
	if s.flag(p, "secure_channel", path, false) {
		s.note(p, "left out: the referral to %s, which has TLS",
			short(s.str(address, "traddr", path)))
		return
	}
	if nqn == discoveryNQN {
		nqn = ""
	}
	s.referral(address, path+"address.", nqn)
}

// showNamespace lets a host see a namespace, unless that namespace is left out.
func (s *spdk) showNamespace(p *value, path string) {
	n, nsid, host := s.of(p, path), s.number(p, "nsid", path, 0), s.required(p, "host", path)
	if n == nil {
		return
	}
	for _, ns := range n.namespaces {
		if ns.nsid == nsid {
			ns.hosts = append(ns.hosts, host)
		}
	}
}

func (s *spdk) createSubsystem(p *value, path string) {
	before := len(s.problems)
	n := &subsystem{
		at: p, nqn: s.required(p, "nqn", path),
		serial:       s.str(p, "serial_number", path),
		model:        s.str(p, "model_number", path),
		allowAnyHost: s.flag(p, "allow_any_host", path, false),
		cntlidMin:    s.number(p, "min_cntlid", path, 1),
		cntlidMax:    s.number(p, "max_cntlid", path, 65519),
		maxIOQueues:  128,
	}
	if s.flag(p, "passthrough", path, false) {
		s.note(p, "passthrough of %s has no counterpart", short(n.nqn))
	}
	// Its own limits and features.
	for _, name := range []string{
		"ana_reporting", "max_namespaces", "dmrsl", "wzsl", "enable_nssr", "max_discard_size_kib",
		"max_write_zeroes_size_kib",
	} {
		p.member(name)
	}
	if len(s.problems) == before {
		s.out.subsystems = append(s.out.subsystems, n)
	}
}

// of returns the subsystem that an RPC is about, or reports that there is none.
func (s *spdk) of(p *value, path string) *subsystem {
	nqn := s.required(p, "nqn", path)
	n := s.subsystem(nqn)
	if n == nil && nqn != "" {
		s.problem(p, path+"nqn", "names "+short(nqn)+", which is not among the subsystems here", "")
	}
	if n == nil {
		p.ignore()
	}
	return n
}

func (s *spdk) addHost(p *value, path string) {
	n := s.of(p, path)
	if n == nil {
		return
	}
	nqn := s.required(p, "host", path)
	if nqn == "" {
		return
	}
	key, psk := s.str(p, "dhchap_key", path), s.str(p, "psk", path)
	if key+psk != "" && !s.addKeys(p, path, nqn, key, psk) {
		s.note(p, "left out: host %s of %s: here a host has the same keys at all subsystems, in "+
			"files", short(nqn), short(n.nqn))
		if n.allowAnyHost { // it must not connect without keys
			s.note(p, "left out: subsystem %s, where every host may connect", short(n.nqn))
			s.out.subsystems = remove(s.out.subsystems, n)
		}
		return
	}
	if psk != "" {
		n.pskHosts = append(n.pskHosts, nqn)
	}
	n.hosts = append(n.hosts, nqn)
}

// addKeys gives a host its keys. It fails if the host has others, or they are not in files.
func (s *spdk) addKeys(p *value, path, nqn, key, psk string) bool {
	h := &host{
		at: p, nqn: nqn, keyIn: "dhchap_key_file", key: s.keys[key],
		ctrlKeyIn: "dhchap_ctrl_key_file", tlsKey: s.keys[psk],
	}
	if ctrlr := s.str(p, "dhchap_ctrlr_key", path); ctrlr != "" {
		if h.ctrlKey = s.keys[ctrlr]; h.ctrlKey == "" {
			return false
		}
	}
	for _, o := range s.out.hosts {
		if o.nqn == nqn {
			return o.key == h.key && o.ctrlKey == h.ctrlKey && o.tlsKey == h.tlsKey
		}
	}
	if key != "" && h.key == "" || psk != "" && h.tlsKey == "" {
		return false
	}
	s.out.hosts = append(s.out.hosts, h)
	return true
}

func (s *spdk) allowAnyHost(p *value, path string) {
	if n := s.of(p, path); n != nil {
		n.allowAnyHost = !s.flag(p, "disable", path, false)
	}
}

func (s *spdk) addListener(p *value, path string) {
	n := s.of(p, path)
	if n == nil {
		return
	}
	address := s.object(p, "listen_address", path)
	secure := s.flag(p, "secure_channel", path, false)
	p.member("sock_impl")
	if secure && s.plainOnly(address, path+"listen_address.") {
		p.ignore()
		return
	}
	state := s.anaState(p, path)
	before := len(s.problems)
	l, lost := s.address(address, path+"listen_address.")
	s.rest(address, path+"listen_address.")
	for _, l := range []*listener{l, lost} {
		if l != nil && secure {
			l.tls = "required"
		}
	}
	switch {
	case len(s.problems) > before:
		if l != nil {
			s.out.listeners = remove(s.out.listeners, l)
		}
	case l != nil:
		n.listeners = append(n.listeners, l)
		s.setState(n, l, 0, state)
	case lost != nil:
		n.lost = append(n.lost, lost)
	}
}

func (s *spdk) addNamespace(p *value, path string) {
	sub := s.of(p, path)
	if sub == nil {
		return
	}
	v := s.object(p, "namespace", path)
	n := &namespace{
		at: p, nsid: s.number(v, "nsid", path, 0),
		uuid:     identifier(s.str(v, "uuid", path)),
		nguid:    plainHex(s.str(v, "nguid", path)),
		eui64:    plainHex(s.str(v, "eui64", path)),
		anaGroup: s.number(v, "anagrpid", path, 0),
	}
	name := s.required(v, "bdev_name", path)
	v.member("ptpl_file") // reservations survive a power loss if hosts ask for it
	n.hidden = s.flag(v, "no_auto_visible", path, false)
	s.rest(v, path)
	if len(s.problems) > 0 {
		return // call reports it
	}
	sub.number(n)
	st, why := s.storage(v, name)
	if st.backend == "ram" && why == "" {
		if s.memory[name] {
			why = "another namespace has it, and here each would have memory of its own"
		}
		s.memory[name] = true
	}
	// Hosts know a bdev by these (spdk_nvmf_subsystem_add_ns_ext in lib/nvmf/subsystem.c).
	n.uuid = cmp.Or(n.uuid, st.uuid)
	n.nguid = cmp.Or(n.nguid, plainHex(st.uuid))
	if why == "" && st.backend == "nvme" && n.uuid == "" {
		s.note(v, "namespace %d of %s has the UUID and NGUID of the drive (nvme id-ns, nvme "+
			"ns-descs), which are not here: add them as uuid and nguid, or hosts find another one",
			n.nsid, short(sub.nqn))
	}
	if why != "" {
		s.note(v, "left out: namespace %d of %s on bdev %s: %s", n.nsid, short(sub.nqn),
			short(name), why)
		return
	}
	n.storage = st
	sub.namespaces = append(sub.namespaces, n)
}
