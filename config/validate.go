package config

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"

	"github.com/go-playground/validator/v10"
	"github.com/google/uuid"
)

// validate reports everything that is wrong with the values: first the rules in the struct tags,
// then what concerns several values at once.
func (c *Config) validate(rules Rules) {
	c.tagRules()
	if n := len(c.Reactors.CPUs); n > 0 && c.Reactors.Count != 0 && c.Reactors.Count != n {
		c.src.add("reactors.count",
			fmt.Sprintf("%d reactors, but reactors.cpus names %d CPUs", c.Reactors.Count, n),
			"Delete reactors.count, or name one CPU for each reactor.")
	}
	if c.Disks.Engine == "threads" && (c.Disks.SQPoll || c.Disks.IOPoll) {
		c.src.add("disks.engine", "threads have neither sqpoll nor iopoll",
			"Delete those, or use engine: io_uring.")
	}
	seen := once{c.src, map[string]string{}}
	for i, cpu := range c.Reactors.CPUs {
		seen.check("cpu", fmt.Sprint(cpu), fmt.Sprintf("reactors.cpus[%d]", i),
			"Each reactor needs a CPU of its own.")
	}
	for i := range c.Listeners {
		c.listener(&c.Listeners[i], fmt.Sprintf("listeners[%d]", i), seen)
	}
	c.metrics(seen)
	for i := range c.Subsystems {
		c.subsystem(&c.Subsystems[i], fmt.Sprintf("subsystems[%d]", i), rules, seen)
	}
}

// once finds values that may appear only once.
type once struct {
	src   *source
	paths map[string]string
}

func (o once) check(kind, value, path, mend string) {
	if value == "" {
		return
	}
	if first, dup := o.paths[kind+" "+value]; dup {
		o.src.add(path,
			fmt.Sprintf("%s is used already by %s (line %d)", printable(value), first,
				o.src.find(first).line), mend)
		return
	}
	o.paths[kind+" "+value] = path
}

func (c *Config) listener(l *Listener, path string, seen once) {
	switch {
	case l.TOS%4 != 0: // RFC 3168, section 5: the lowest two bits are ECN
		c.src.add(path+".tos", fmt.Sprintf("%d is not a multiple of 4", l.TOS),
			"Write four times the DSCP, for instance 104 for DSCP 26.")
	case l.TOS != 0 && l.Transport == "tcp":
		c.src.add(path+".tos", "listeners with transport: tcp have none", "Delete it.")
	}
	if c.src.bad[path+".address"] || l.Address == "" {
		return
	}
	addr, err := netip.ParseAddr(l.Address)
	if err != nil {
		c.src.add(path+".address", fmt.Sprintf("%q is not an IP address", printable(l.Address)),
			"Write an IPv4 or IPv6 address, 0.0.0.0 or \"::\"; host names are not resolved.")
		return
	}
	c.local(addr, path+".address")
	if l.Port != 0 {
		seen.check("listener", fmt.Sprintf("%s %s", l.Transport, netip.AddrPortFrom(addr, l.Port)),
			path, "Delete one of the two listeners.")
	}
}

// local checks that an address can be listened on at all.
func (c *Config) local(addr netip.Addr, path string) {
	switch {
	case addr.Is6() && addr.IsLinkLocalUnicast() && addr.Zone() == "":
		c.src.add(path, "a link-local IPv6 address needs its interface",
			fmt.Sprintf("Write \"%s%%eth0\" with the interface's name.", addr))
	case addr.IsMulticast():
		c.src.add(path, "a multicast address cannot be listened on",
			"Write an address of this machine.")
	}
}

func (c *Config) metrics(seen once) {
	const path = "metrics.listen"
	if c.Metrics.Listen == "" {
		return
	}
	addr, err := netip.ParseAddrPort(c.Metrics.Listen)
	if err != nil {
		c.src.add(path,
			fmt.Sprintf("%q is not an IP address and a port", printable(c.Metrics.Listen)),
			"Write for instance 127.0.0.1:9500 or \"[::1]:9500\"; host names are not resolved.")
		return
	}
	c.local(addr.Addr(), path)
	if addr.Port() != 0 {
		seen.check("listener", "tcp "+addr.String(), path,
			"Choose another port for one of the two.")
	}
}

func (c *Config) subsystem(s *Subsystem, path string, rules Rules, seen once) {
	add := c.src.add
	nqn := func(v, path string, rule func(string) error) {
		if rule == nil || v == "" {
			return
		}
		if err := rule(v); err != nil {
			add(path, err.Error(),
				"An NQN is nqn.YYYY-MM.REVERSED.DOMAIN:NAME or nqn.2014-08.org.nvmexpress:uuid:UUID, 223 bytes at most.")
		}
	}
	nqn(s.NQN, path+".nqn", rules.SubsystemNQN)
	seen.check("nqn", s.NQN, path+".nqn", "Give each subsystem its own NQN.")
	switch {
	case s.AllowAnyHost && len(s.Hosts) > 0:
		add(path+".hosts", "allow_any_host is true, so this list would have no effect",
			"Delete one of the two.")
	case !s.AllowAnyHost && len(s.Hosts) == 0 && !c.src.bad[path+".hosts"] &&
		!c.src.bad[path+".allow_any_host"]:
		add(path, "no host may connect",
			"List the host NQNs (cat /etc/nvme/hostnqn on the host) in hosts, or set allow_any_host: true.")
	}
	for i, h := range s.Hosts {
		at := fmt.Sprintf("%s.hosts[%d]", path, i)
		nqn(h, at, rules.HostNQN)
		seen.check("host of "+path, h, at, "Delete one of the two.")
	}
	c.text(s.Serial, 20, path+".serial")
	c.text(s.Model, 40, path+".model")
	if s.CNTLIDMin > s.CNTLIDMax {
		add(path+".cntlid_min", fmt.Sprintf("%d is above cntlid_max, %d", s.CNTLIDMin, s.CNTLIDMax),
			"Exchange the two.")
	}
	switch {
	case s.MaxTransfer&(s.MaxTransfer-1) != 0:
		add(path+".max_transfer", fmt.Sprintf("%v is not a power of two", s.MaxTransfer),
			"Write 64KiB, 128KiB, 256KiB, 512KiB, 1MiB, 2MiB or 4MiB.")
	case c.Reactors.Memory < 4*s.MaxTransfer:
		add(path+".max_transfer",
			fmt.Sprintf("%v is more than a quarter of reactors.memory, %v", s.MaxTransfer,
				c.Reactors.Memory),
			"Reduce it, or give the reactors more memory: commands share it.")
	}
	for i := range s.Namespaces {
		c.namespace(&s.Namespaces[i], path, fmt.Sprintf("%s.namespaces[%d]", path, i), seen)
	}
}

// text checks the ASCII strings of Identify Controller: SN has 20 bytes, MN 40 (Base section
// 5.1.13.2.1), printable (1.4.2).
func (c *Config) text(s string, limit int, path string) {
	if len(s) > limit {
		c.src.add(path, fmt.Sprintf("%d characters, but NVMe has room for %d", len(s), limit),
			"Shorten it.")
	}
	if i := strings.IndexFunc(s, func(r rune) bool { return r < 0x20 || r > 0x7E }); i >= 0 {
		c.src.add(path, "contains a character that is not printable ASCII: "+
			printable(s[i:min(len(s), i+4)]), "Use letters, digits, blanks and punctuation.")
	}
}

func (c *Config) namespace(n *Namespace, subsystem, path string, seen once) {
	add := c.src.add
	if n.NSID != 0 {
		seen.check("nsid of "+subsystem, fmt.Sprint(n.NSID), path+".nsid",
			"Give each namespace of a subsystem its own nsid.")
	}
	c.storage(&n.Storage, path, seen)
	if n.inMemory() {
		if c.Given(path+".io_timeout") && n.IOTimeout != 0 {
			add(path+".io_timeout", "backend "+n.Backend+
				" always answers, so it would have no effect", "Delete it.")
		}
		n.IOTimeout = 0
	}
	if n.UUID != "" {
		id, err := uuid.Parse(n.UUID)
		if err != nil || len(n.UUID) != 36 || id == uuid.Nil {
			add(path+".uuid", fmt.Sprintf("%q is not a UUID", printable(n.UUID)),
				"Write the output of uuidgen, or delete the key: a stable one is derived.")
		}
		seen.check("uuid", id.String(), path+".uuid",
			"Identifiers must be unique, or hosts ignore the namespace.")
	}
	c.identifier(n.NGUID, 16, path+".nguid", seen)
	c.identifier(n.EUI64, 8, path+".eui64", seen)
}

// identifier checks an NGUID or EUI-64: hexadecimal, not zero, unique.
func (c *Config) identifier(s string, size int, path string, seen once) {
	if s == "" {
		return
	}
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != size || strings.Trim(s, "0") == "" {
		c.src.add(path,
			fmt.Sprintf("%q is not %d hexadecimal digits other than all zeroes", printable(s),
				2*size), "Correct it, or delete the key: a stable one is derived.")
		return
	}
	seen.check("id", strings.ToLower(s), path,
		"Identifiers must be unique, or hosts ignore the namespace.")
}

// tagRules applies the validate tags.
func (c *Config) tagRules() {
	v := validator.New()
	v.RegisterTagNameFunc(keyOf)
	for tag, fits := range map[string]func(v, limit Size) bool{
		"sizemin":  func(v, limit Size) bool { return v >= limit },
		"sizemax":  func(v, limit Size) bool { return v <= limit },
		"multiple": func(v, of Size) bool { return v%of == 0 },
	} {
		rule := func(f validator.FieldLevel) bool {
			limit, err := ParseSize(f.Param())
			return err == nil && fits(Size(f.Field().Int()), limit)
		}
		if err := v.RegisterValidation(tag, rule); err != nil {
			panic("config: " + err.Error())
		}
	}
	err := v.Struct(c)
	var failed validator.ValidationErrors
	errors.As(err, &failed)
	for _, f := range failed {
		_, path, _ := strings.Cut(f.Namespace(), ".")
		path = strings.ReplaceAll(path, "."+storageType.Name()+".", ".") // embedded
		what, mend := ruleText(f)
		c.src.add(path, what, mend)
	}
}

func ruleText(f validator.FieldError) (what, mend string) {
	value := printable(fmt.Sprint(f.Value()))
	list := f.Kind() == reflect.Slice
	switch f.Tag() {
	case "required":
		if list {
			return "is missing or empty", "Add at least one entry."
		}
		if f.Kind() != reflect.String {
			return "is missing or zero", "Add it."
		}
		return "is missing", "Add it."
	case "oneof":
		return fmt.Sprintf("%q is not possible here", value), "Use one of: " +
			strings.ReplaceAll(f.Param(), " ", ", ") + "."
	case "max", "sizemax":
		if list {
			return fmt.Sprintf("%d entries are too many", reflect.ValueOf(f.Value()).Len()),
				"At most " + f.Param() + "."
		}
		return value + " is too large", "At most " + f.Param() + "."
	case "min", "sizemin":
		return value + " is too small", "At least " + f.Param() + "."
	}
	if f.Tag() == "multiple" {
		return value + " is not a multiple of " + f.Param(), "Round it."
	}
	return "breaks the rule " + f.Tag(), ""
}
