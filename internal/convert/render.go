package convert

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nvmf-target/nvmf-target/config/lang"
)

// render writes the configuration.
func (r *reader) render(kind string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Converted from the configuration of %s in %s.\n", kind, short(r.file))
	if len(r.notes) > 0 {
		b.WriteString("#\n# Without counterpart, or to be looked at:\n")
	}
	for _, n := range r.notes {
		fmt.Fprintf(&b, "#   %s\n", n)
	}
	b.WriteString("listeners:\n")
	for _, l := range r.out.listeners {
		l.render(&b, "  - ")
	}
	if r.out.discoveryNQN != "" || len(r.out.referrals) > 0 {
		b.WriteString("discovery:\n")
	}
	key(&b, "  ", "nqn", quote(r.out.discoveryNQN))
	if len(r.out.referrals) > 0 {
		b.WriteString("  referrals:\n")
	}
	for _, l := range r.out.referrals {
		l.render(&b, "    - ")
	}
	if len(r.out.hosts) > 0 {
		b.WriteString("hosts:\n")
	}
	for _, h := range r.out.hosts {
		h.render(&b)
	}
	b.WriteString("subsystems:\n")
	for _, s := range r.out.subsystems {
		s.render(&b, len(r.out.listeners))
		for _, n := range s.namespaces {
			n.render(&b)
		}
	}
	return b.String()
}

func (l *listener) render(b *strings.Builder, indent string) {
	more := ""
	if l.nqn != "" {
		more = ", nqn: " + quote(l.nqn)
	}
	if len(l.ana) > 0 {
		var states []string
		for _, group := range slices.Sorted(maps.Keys(l.ana)) {
			states = append(states, fmt.Sprintf("%d: %s", group, quote(l.ana[group])))
		}
		more += ", ana_states: {" + strings.Join(states, ", ") + "}"
	}
	if l.tls != "" {
		more += ", tls: " + l.tls
	}
	comment := ""
	if l.insteadOf != "" {
		comment = " # instead of " + short(l.insteadOf)
	}
	fmt.Fprintf(b, "%s{transport: %s, address: %s, port: %d%s}%s\n", indent, l.transport,
		quote(l.address), l.port, more, comment)
}

func (h *host) render(b *strings.Builder) {
	fmt.Fprintf(b, "  - nqn: %s\n", quote(h.nqn))
	const indent = "    "
	key(b, indent, h.keyIn, quote(h.key))
	key(b, indent, h.ctrlKeyIn, quote(h.ctrlKey))
	key(b, indent, "tls_key_file", quote(h.tlsKey))
	if h.hash != "" {
		key(b, indent, "dhchap_hash", "["+quote(h.hash)+"]")
	}
	if h.group != "" && h.group != "null" { // the default DH group, which protects less
		key(b, indent, "dhchap_dhgroup", "["+quote(h.group)+"]")
	}
}

// list writes texts, one a line.
func list(b *strings.Builder, indent, name string, texts []string) {
	fmt.Fprintf(b, "%s%s:\n", indent, name)
	for _, t := range texts {
		fmt.Fprintf(b, "%s  - %s\n", indent, quote(t))
	}
}

// render writes everything but the namespaces. listeners is the number of listeners.
func (s *subsystem) render(b *strings.Builder, listeners int) {
	fmt.Fprintf(b, "  - nqn: %s\n", quote(s.nqn))
	const indent = "    "
	key(b, indent, "serial", quote(s.serial))
	key(b, indent, "model", quote(s.model))
	key(b, indent, "cntlid_min", unless(s.cntlidMin, 1))
	key(b, indent, "cntlid_max", unless(s.cntlidMax, 65519))
	key(b, indent, "max_io_queues", unless(s.maxIOQueues, 128))
	if s.allowAnyHost {
		key(b, indent, "allow_any_host", "true")
	} else {
		list(b, indent, "hosts", s.hosts)
	}
	if len(s.listeners) < listeners {
		var names []string
		for _, l := range s.listeners {
			names = append(names, l.name())
		}
		list(b, indent, "listeners", names)
	}
	if len(s.namespaces) == 0 {
		fmt.Fprintf(b, "%snamespaces: []\n", indent)
		return
	}
	fmt.Fprintf(b, "%snamespaces:\n", indent)
}

func (n *namespace) render(b *strings.Builder) {
	fmt.Fprintf(b, "      - nsid: %d\n", n.nsid)
	const indent = "        "
	backend := n.backend
	if backend == "null" {
		backend = `"null"`
	}
	if n.comment != "" {
		backend += " # " + n.comment
	}
	key(b, indent, "backend", backend)
	key(b, indent, "path", quote(n.path))
	key(b, indent, "image", quote(n.image))
	if n.ceph != (ceph{}) {
		fmt.Fprintf(b, "%sceph:\n", indent)
		key(b, indent+"  ", "conf", quote(n.ceph.conf))
		key(b, indent+"  ", "user", quote(n.ceph.user))
		key(b, indent+"  ", "keyring", quote(n.ceph.keyring))
	}
	if n.size > 0 {
		key(b, indent, "size", lang.Size(n.size).String())
	}
	if n.blockSize > 0 {
		text := lang.Size(n.blockSize).String()
		if n.blockComment != "" {
			text += " # " + n.blockComment
		}
		key(b, indent, "block_size", text)
	}
	if n.readOnly {
		key(b, indent, "read_only", "true")
	}
	key(b, indent, "uuid", quote(n.uuid))
	key(b, indent, "nguid", quote(n.nguid))
	key(b, indent, "eui64", quote(n.eui64))
	key(b, indent, "limits", n.limitsText())
	if n.anaGroup > 1 {
		key(b, indent, "ana_group", strconv.FormatUint(n.anaGroup, 10))
	}
	if n.hosts != nil {
		list(b, indent, "hosts", n.hosts)
	}
}

func key(b *strings.Builder, indent, name, text string) {
	if text != "" {
		fmt.Fprintf(b, "%s%s: %s\n", indent, name, text)
	}
}

// plain matches text that YAML reads as text without quotes.
var plain = regexp.MustCompile(`^(/|nqn\.|[0-9]+\.[0-9]+\.)[A-Za-z0-9._:/@+-]*[A-Za-z0-9]$`)

// quote returns text as a YAML value, without environment variables; "" stays empty.
func quote(s string) string {
	if s == "" || plain.MatchString(s) && !strings.Contains(s, "${") {
		return s
	}
	// In valid UTF-8, Go's escapes are also YAML's (YAML 1.2 section 5.7).
	return strconv.QuoteToGraphic(strings.ReplaceAll(s, "${", "$${"))
}

// unless formats n, "" for the default.
func unless(n, usual uint64) string {
	if n == usual {
		return ""
	}
	return strconv.FormatUint(n, 10)
}
