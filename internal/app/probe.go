package app

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/ibv"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/internal/netif"
	"github.com/nvmf-target/nvmf-target/internal/storage"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Check reads a configuration file and reports everything that is wrong with it, on this machine
// too: files, disks, CPUs and addresses. If there are errors in the text, it says only what else is
// an error. It changes nothing. A nil error means that "serve" can use
// the file; what it would warn of is written to out.
func Check(file string, environ []string, out io.Writer) error {
	c, err := config.LoadAll(file, environ, backends)
	ps, ok := errors.AsType[config.Problems](err)
	if c == nil || err != nil && !ok {
		return err
	}
	machine := append(probe(c), probeListeners(c, ibv.New())...)
	if err != nil { // what the machine lacks comes second
		machine = slices.DeleteFunc(machine, func(p config.Problem) bool {
			list, _, _ := strings.Cut(p.Path, "[") // whose other entries may be why
			if strings.HasSuffix(p.Path, "]") && strings.Count(p.Path, "[") == 1 {
				return p.Warning || c.Faulty(list)
			}
			return p.Warning || c.Faulty(p.Path)
		})
	}
	ps = append(ps, machine...)
	ps.Sort()
	if ps.Failed() {
		return ps
	}
	text := ""
	for _, p := range ps {
		text += p.Error() + "\n"
	}
	text += fmt.Sprintf("%s: valid: %s, %s, %s", file, count(len(c.Listeners), "listener"),
		count(len(c.Subsystems), "subsystem"), count(len(all(c)), "namespace"))
	if len(ps) > 0 {
		text += ", with " + count(len(ps), "warning")
	}
	_, err = io.WriteString(out, text+"\n")
	return err
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// probe looks at what the configuration names on this machine: storage, CPUs, memory and limits.
func probe(c *config.Config) config.Problems {
	ps := append(append(c.Warnings(), probeCPUs(c)...), probeLimits(c)...)
	ps = append(append(append(ps, probeCertificates(c)...), probeKeys(c)...), probeHosts(c)...)
	_, unknown := roles(c)
	ps = append(ps, unknown...)
	var known []stack
	taken := map[uint64]*growth{}
	for _, n := range all(c) {
		found, space := probeStorage(c, n)
		ps = append(append(ps, found...), probeSpace(c, n, space, taken)...)
		if s, ok := stackOf(n); ok {
			ps = append(ps, s.overlaps(c, known)...)
			known = append(known, s)
		}
	}
	ps.Sort()
	return ps
}

// probeListeners reports the listeners that could not be opened now. "serve" does not need it: it
// logs those that it cannot open and waits for them.
func probeListeners(c *config.Config, rdma verbs.Provider) (ps config.Problems) {
	m, _ := netif.Linux().Read(devices(c.Listeners)...) // without it addresses are only tried
	for i := range c.Listeners {
		if !c.Faulty(fmt.Sprintf("listeners[%d]", i)) {
			ps = append(ps, probeListener(c, i, &m, addressProbe(c, rdma))...)
		}
	}
	return ps
}

// probeListener reports a listener with no address on a machine, or with some where probe fails.
func probeListener(c *config.Config, i int, m *netif.State,
	probe func(fabric.Addr) error,
) config.Problems {
	l := listener{name: c.Listeners[i].Name, Listener: c.Listeners[i]}
	ips, err := l.addresses(m)
	usable := 0
	for _, ip := range ips {
		at := l.at(ip)
		if e := probe(at); e == nil {
			usable++
		} else if err == nil {
			err = fmt.Errorf("%v: %w", at, e)
		}
	}
	if err == nil {
		return nil
	}
	key := fmt.Sprintf("listeners[%d]", i)
	// A port may be in use by an instance that ends before.
	if l.Required && usable == 0 && !errors.Is(err, unix.EADDRINUSE) {
		return config.Problems{c.Problem(key, err.Error(),
			"With on_unavailable: wait the target starts without it.")}
	}
	return config.Problems{c.Warning(key, err.Error(), "")}
}

// addressProbe returns a function that says why nothing could listen at an address.
func addressProbe(c *config.Config, rdma verbs.Provider) func(fabric.Addr) error {
	return func(at fabric.Addr) error {
		switch {
		case at.Transport != nvme.TransportRDMA:
			return tcp.Probe(at.AddrPort, &c.TCP)
		case rdma == nil:
			return verbs.ErrNotBuilt
		}
		if _, err := rdma.Devices(); err != nil {
			return err
		}
		// Its ports are not those of TCP, but its addresses are those of the machine.
		return tcp.Probe(netip.AddrPortFrom(at.Addr(), 0), &c.TCP)
	}
}

// probeAgain looks at one namespace while the others are served.
func probeAgain(c *config.Config, n *namespace) config.Problems {
	ps, _ := probeStorage(c, n)
	var known []stack
	for _, o := range all(c) {
		if s, ok := stackOf(o); ok && o.name() != n.name() {
			known = append(known, s)
		}
	}
	if s, ok := stackOf(n); ok {
		ps = append(ps, s.overlaps(c, known)...)
	}
	return ps
}

// probeStorage looks at the storage of a namespace. If it is absent that is a warning, because the
// namespace is pending then.
func probeStorage(c *config.Config, n *namespace) (ps config.Problems, space backend.Space) {
	s, key := n.backing()
	at := env{readOnly: n.ReadOnly, engine: c.Disks, log: slog.New(slog.DiscardHandler)}
	name, path := "it", n.path()
	if path != "" {
		name, key = strconv.Quote(path), key+".path"
	}
	r := s.probe(at)
	pending := len(r.Errors) > 0 && absent(n, at)
	for _, p := range r.Errors {
		if pending {
			ps = append(ps, c.Warning(key,
				name+" "+p.What+"; the namespace is pending until it is there", p.Hint))
		} else {
			problem := c.Problem(key, name+" "+p.What, p.Hint)
			problem.InUse = p.InUse
			ps = append(ps, problem)
		}
	}
	for _, p := range r.Warnings {
		ps = append(ps, c.Warning(key, name+" "+p.What, p.Hint))
	}
	return ps, r.Space
}

// growth is what namespaces may take of a file system, in bytes: at once, and sooner or later.
type growth struct{ atOnce, all int64 }

// probeSpace adds a namespace to what others take of the same file system, and reports the one with
// which it no longer fits. What does not fit alone has been reported.
func probeSpace(c *config.Config, n *namespace, s backend.Space,
	taken map[uint64]*growth,
) config.Problems {
	if s.Growth == 0 || s.Growth > s.Free {
		return nil
	}
	g := taken[s.FileSystem]
	if g == nil {
		g = &growth{}
		taken[s.FileSystem] = g
	}
	before := *g
	g.all += s.Growth
	if s.AtOnce {
		g.atOnce += s.Growth
	}
	_, key := n.backing()
	key += ".path"
	what := func(verb string, bytes int64) string {
		return fmt.Sprintf("%q and the files before it on its file system %s %d more bytes, and "+
			"that has %d free", n.path(), verb, bytes, s.Free)
	}
	switch {
	case before.atOnce <= s.Free && g.atOnce > s.Free:
		return config.Problems{c.Problem(key, what("need", g.atOnce),
			"Make room, or make them smaller, or use preallocate: sparse.")}
	case before.all <= s.Free && g.all > s.Free:
		return config.Problems{c.Warning(key, what("may take", g.all),
			"Make room, or make them smaller: writes fail when the file system is full.")}
	}
	return nil
}

// stack is the storage that backs a namespace.
type stack struct {
	*storage.Stack
	n *namespace
}

// stackOf finds out what backs a namespace; false if it has no path, or nothing is there.
func stackOf(n *namespace) (stack, bool) {
	s, err := storage.Linux().StackOf(blockPath(n))
	return stack{s, n}, err == nil
}

// overlaps reports the namespaces among others that are on the same storage.
func (s stack) overlaps(c *config.Config, others []stack) (ps config.Problems) {
	_, key := s.n.backing()
	for _, o := range others {
		if where, ok := s.Overlaps(o.Stack); ok {
			ps = append(ps, c.Problem(key+".path", fmt.Sprintf(
				"namespace %d of %s is on the same storage as namespace %d of %s: %s", s.n.NSID,
				s.n.nqn, o.n.NSID, o.n.nqn, where), "Give each namespace storage of its own."))
		}
	}
	return ps
}
