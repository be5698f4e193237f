package live

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// model is a configuration that changes at random. The names in it never change.
type model struct {
	listeners  map[string]string // by "transport address", its other keys
	label      string            // the name of the permanent listener
	machine    []string          // the addresses of the interface eth0, as the end of "tcp 4"
	subsystems map[string]*subsystem
	limits     map[string]string // of hosts, by NQN
	secrets    map[string]int    // of the same hosts: their keys, indices of hostKeys
	networks   map[string]string // the same
	keyChanges int               // of keysNQN
	level      string
	discovery  string // its keys
	transports string // their keys
}

type subsystem struct {
	anyHost    bool
	hosts      []string // sorted
	through    []string // listeners that serve it, if any of these exists
	keys       string   // further keys
	limits     string
	namespaces map[int]namespace
}

type namespace struct {
	storage string // the keys of its storage, with %DIR% for the directory of files
	keys    string
	limits  string
	hosts   string
}

// volatile reports whether the content ends with the target, so the storage stays until then.
func (n namespace) volatile() bool { return strings.Contains(n.storage, "backend: ram") }

// protected reports whether writes are refused. Storage opened for writing before that may report a
// cache and deallocation; storage opened for reading does not.
func (n namespace) protected() bool { return strings.Contains(n.keys, "read_only") }

func (s *subsystem) anyProtected() bool {
	if s == nil {
		return false
	}
	for _, n := range s.namespaces {
		if n.protected() {
			return true
		}
	}
	return false
}

const (
	nqnPrefix = "nqn.2026-11.io.nvmf-target:live-"
	anchorNQN = nqnPrefix + "anchor"
	allHosts  = 4
	subs      = 4
	nsids     = 4
	files     = 6
)

func hostNQN(i int) string { return fmt.Sprintf("nqn.2026-11.io.nvmf-target:host-%d", i) }

// anchorText is the part that no change touches.
const anchorText = `  - nqn: ` + anchorNQN + `
    allow_any_host: true
    namespaces: [{nsid: 1, backend: file, path: %DIR%/anchor, size: 1MiB, preallocate: full}]
`

func newModel() *model {
	return &model{
		listeners: map[string]string{}, subsystems: map[string]*subsystem{},
		limits: map[string]string{}, secrets: map[string]int{}, networks: map[string]string{},
		level: "info", label: "first",
	}
}

func (m *model) clone() *model {
	c := newModel()
	c.listeners, c.machine, c.level = maps.Clone(m.listeners), m.machine, m.level
	c.keyChanges = m.keyChanges
	c.transports, c.discovery, c.label = m.transports, m.discovery, m.label
	c.limits, c.secrets = maps.Clone(m.limits), maps.Clone(m.secrets)
	c.networks = maps.Clone(m.networks)
	for nqn, s := range m.subsystems {
		t := *s
		t.hosts, t.namespaces = slices.Clone(s.hosts), maps.Clone(s.namespaces)
		c.subsystems[nqn] = &t
	}
	return c
}

// after returns the running configuration when m has been applied to a target that runs old:
// storage with content that would be lost waits for a restart.
func (m *model) after(old *model) *model {
	m = m.clone()
	for nqn, s := range m.subsystems {
		for nsid, n := range s.namespaces {
			if was := old.subsystems[nqn]; was != nil && was.namespaces[nsid].volatile() {
				n.storage = was.namespaces[nsid].storage
				n.keys = strings.ReplaceAll(n.keys, "io_timeout: 5s", "") // RAM never waits
				s.namespaces[nsid] = n
			}
		}
	}
	return m
}

// change makes random changes.
func (m *model) change(rng *rand.Rand) {
	m.keyChanges += rng.IntN(2)
	for range 1 + rng.IntN(4) {
		switch rng.IntN(9) {
		case 0:
			m.changeListener(rng)
		case 1:
			m.changeSubsystems(rng)
		case 2:
			m.level = []string{"info", "debug", "warn"}[rng.IntN(3)]
			m.discovery = pick(rng, "", "discovery: {mdns: true, mdns_interfaces: [absent0]}\n",
				"discovery: {nqn: "+nqnPrefix+"discovery}\n",
				"discovery: {referrals: [{transport: tcp, address: 192.0.2.1}]}\n",
				"discovery: {referrals: [{transport: tcp, address: 192.0.2.1, hosts: ["+
					hostNQN(1)+"]}, {transport: rdma, address: '2001:db8::1', port: 4420}]}\n")
			m.transports = pick(rng, "", "tcp: {queue_depth: 64, header_digest: false}\n",
				"rdma: {queue_depth: 32, max_connections: 2000}\n",
				"tcp: {data_digest: false, max_connections_per_host: 500}\n"+
					"rdma: {queue_depth: 256, queue_memory: 2GiB}\n")
		case 3:
			m.changeLimits(rng)
		case 4, 5:
			if s := m.anySubsystem(rng); s != nil {
				s.changeHosts(rng)
				s.through = [][]string{
					nil, {"tcp 1"}, {"tcp 1", "tcp 2", "tcp eth0"}, {"rdma 2", "tcp 4/30"},
				}[rng.IntN(4)]
				s.keys = pick(rng, "", "serial: S1", "model: other", "cntlid_min: 100",
					"max_io_queues: 4", "max_transfer: 256KiB", "duplicate_hosts: refuse")
			}
		default:
			if s := m.anySubsystem(rng); s != nil {
				m.changeNamespaces(rng, s)
			}
		}
	}
}

func pick(rng *rand.Rand, words ...string) string { return words[rng.IntN(len(words))] }

func (m *model) changeListener(rng *rand.Rand) {
	m.label = pick(rng, "first", "one")
	name := pick(rng, "tcp 2", "tcp 3", "tcp 4/30", "tcp eth0", "rdma 2", "rdma 3")
	if _, ok := m.listeners[name]; ok && rng.IntN(2) == 0 {
		delete(m.listeners, name)
		return
	}
	m.listeners[name] = pick(rng, "", "on_unavailable: fail")
	switch {
	case strings.HasPrefix(name, "rdma"):
		m.listeners[name] = pick(rng, "", "tos: 104")
	case name == "tcp 4/30", name == "tcp eth0": // it may have no address
		m.listeners[name] = ""
	}
	ana := pick(rng, "", "ana_states: {1: non-optimized, 2: inaccessible}",
		"ana_states: {1: inaccessible}", "ana_states: {3: persistent-loss}")
	if m.listeners[name] == "" {
		m.listeners[name] = ana
	}
}

// listens reports whether there is a listener at an address, which is named as in listeners.
func (m *model) listens(name string) bool {
	_, ok := m.listeners[name]
	if slices.Contains(m.machine, name) {
		_, network := m.listeners["tcp 4/30"]
		_, eth0 := m.listeners["tcp eth0"]
		return network || eth0
	}
	return ok || name == "tcp 1"
}

func (m *model) changeSubsystems(rng *rand.Rand) {
	nqn := fmt.Sprint(nqnPrefix, rng.IntN(subs))
	if m.subsystems[nqn] != nil {
		delete(m.subsystems, nqn)
		return
	}
	s := &subsystem{anyHost: true, namespaces: map[int]namespace{}}
	s.changeHosts(rng)
	m.subsystems[nqn] = s
	m.changeNamespaces(rng, s)
}

// limits returns random limits of a host, a subsystem or a namespace.
func limits(rng *rand.Rand) string {
	return pick(rng, "", "limits: {iops: 5000}", "limits: {bandwidth: 50MiB, burst: 20ms}",
		"limits: {iops: 100000, bandwidth: 1GiB}")
}

// hostKeys are the possible keys of hosts; the first one means none.
var hostKeys = []string{
	"", "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:",
	"DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
}

// keyText returns the configuration of a key with which a host must authenticate.
func keyText(i int) string {
	if i == 0 {
		return ""
	}
	return fmt.Sprintf("dhchap_key: %q, dhchap_dhgroup: [\"null\"]", hostKeys[i])
}

func (m *model) changeLimits(rng *rand.Rand) {
	nqn := hostNQN(rng.IntN(allHosts))
	m.limits[nqn], m.secrets[nqn] = limits(rng), rng.IntN(len(hostKeys))
	m.networks[hostNQN(1+rng.IntN(allHosts-1))] = pick(rng, "", "", "networks: [10.9.0.0/16]",
		"networks: [10.9.0.0/16, 127.0.0.0/8, 10.0.0.0/24]")
	if s := m.anySubsystem(rng); s != nil {
		s.limits = limits(rng)
	}
}

func (m *model) anySubsystem(rng *rand.Rand) *subsystem {
	names := slices.Sorted(maps.Keys(m.subsystems))
	if len(names) == 0 {
		return nil
	}
	return m.subsystems[names[rng.IntN(len(names))]]
}

func (s *subsystem) changeHosts(rng *rand.Rand) {
	s.anyHost, s.hosts = rng.IntN(3) == 0, nil
	for i := range allHosts - 1 { // the last is a stranger
		if !s.anyHost && rng.IntN(2) == 0 {
			s.hosts = append(s.hosts, hostNQN(i))
		}
	}
	s.anyHost = len(s.hosts) == 0
}

func (m *model) changeNamespaces(rng *rand.Rand, s *subsystem) {
	nsid := 1 + rng.IntN(nsids)
	n, exists := s.namespaces[nsid]
	switch {
	case exists && len(s.namespaces) > 1 && rng.IntN(3) == 0:
		delete(s.namespaces, nsid)
		return
	case !exists || rng.IntN(2) == 0:
		n.storage = m.storage(rng)
	}
	n.keys = pick(rng, "", "read_only: true", "ana_group: 2", "ana_group: 3",
		"uuid: 11111111-2222-4333-8444-00000000000"+fmt.Sprint(nsid))
	if strings.Contains(n.storage, "file") && rng.IntN(2) == 0 {
		n.keys = "io_timeout: 5s"
	}
	if strings.Contains(n.keys, "uuid") { // unique in the file
		for nqn := range m.subsystems {
			if m.subsystems[nqn] == s {
				n.keys = strings.Replace(n.keys, "11111111", "1111111"+nqn[len(nqn)-1:], 1)
			}
		}
	}
	n.limits = limits(rng)
	n.hosts = pick(rng, "", "", list("hosts", []string{hostNQN(0), hostNQN(1)}),
		list("hosts", []string{hostNQN(1)}))
	s.namespaces[nsid] = n
}

// storage returns storage that no namespace uses. A file may come from a namespace that loses it.
func (m *model) storage(rng *rand.Rand) string {
	switch rng.IntN(4) {
	case 0:
		return "backend: ram, size: " + pick(rng, "64KiB", "128KiB")
	case 1:
		return `backend: "null", size: ` + pick(rng, "1MiB", "2MiB")
	}
	used := m.text("%DIR%", "", "", 0)
	for {
		file := fmt.Sprintf("path: %%DIR%%/f%d,", rng.IntN(files))
		if strings.Contains(used, file) {
			if strings.Count(used, "path: %DIR%/f") == files {
				return "backend: ram, size: 64KiB"
			}
			continue
		}
		storage := "backend: file, " + file + " size: 256KiB"
		if rng.IntN(3) == 0 {
			storage = "backend: delay, latency: 10us, of: {" + storage + "}"
		}
		return storage
	}
}

// text returns the configuration file. Addresses begin with tcp or rdma.
func (m *model) text(dir, tcp, rdma string, port int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "log: {level: %s}\nreactors: {count: 1, memory: 8MiB, spin: 0s}\n%s%s", m.level,
		m.discovery, m.transports)
	fmt.Fprintf(&b, "listeners:\n  - {name: %s, transport: tcp, address: %s1, port: %d}\n",
		m.label, tcp, port)
	at := func(name string) (transport, address string) {
		transport, last, _ := strings.Cut(name, " ")
		if last == "eth0" {
			return transport, last
		}
		return transport, map[string]string{"tcp": tcp, "rdma": rdma}[transport] + last
	}
	for _, name := range slices.Sorted(maps.Keys(m.listeners)) {
		transport, address := at(name)
		fmt.Fprintf(&b, "  - {transport: %s, address: %s, port: %d%s}\n", transport, address, port,
			more(m.listeners[name]))
	}
	all := maps.Clone(m.limits)
	maps.Copy(all, m.networks)
	b.WriteString("hosts:\n" + keysText(m.keyChanges))
	for _, nqn := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "  - {nqn: %s%s%s%s}\n", nqn, more(m.limits[nqn]), more(m.networks[nqn]),
			more(keyText(m.secrets[nqn])))
	}
	b.WriteString("subsystems:\n" + anchorText)
	for _, nqn := range slices.Sorted(maps.Keys(m.subsystems)) {
		s := m.subsystems[nqn]
		fmt.Fprintf(&b, "  - nqn: %s\n", nqn)
		if s.anyHost {
			b.WriteString("    allow_any_host: true\n")
		} else {
			fmt.Fprintf(&b, "    hosts: [%s]\n", strings.Join(s.hosts, ", "))
		}
		var through []string
		for _, name := range s.through {
			if _, ok := m.listeners[name]; ok {
				transport, address := at(name)
				through = append(through, fmt.Sprintf("%q", fmt.Sprintf("%s %s:%d", transport,
					address, port)))
			} else if name == "tcp 1" {
				through = append(through, m.label)
			}
		}
		for _, keys := range []string{s.keys, s.limits, list("listeners", through)} {
			if keys != "" {
				fmt.Fprintf(&b, "    %s\n", keys)
			}
		}
		b.WriteString("    namespaces:\n")
		for _, nsid := range slices.Sorted(maps.Keys(s.namespaces)) {
			n := s.namespaces[nsid]
			fmt.Fprintf(&b, "      - {nsid: %d, %s%s%s%s}\n", nsid, n.storage, more(n.keys),
				more(n.limits), more(n.hosts))
		}
	}
	return strings.ReplaceAll(b.String(), "%DIR%", dir)
}

// list formats a key with a list, "" for an empty one.
func list(key string, entries []string) string {
	if len(entries) == 0 {
		return ""
	}
	return key + ": [" + strings.Join(entries, ", ") + "]"
}

func more(keys string) string {
	if keys == "" {
		return ""
	}
	return ", " + keys
}
