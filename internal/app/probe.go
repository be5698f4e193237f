package app

import (
	"fmt"
	"io"
	"log/slog"
	"strconv"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/storage"
)

// Check reads a configuration file and reports everything that is wrong with it, on this machine
// too: files, disks and CPUs. It changes nothing. A nil error means that "serve" can use the file;
// what it would warn of is written to out.
func Check(file string, environ []string, out io.Writer) error {
	c, err := config.Load(file, environ, backends)
	if err != nil {
		return err
	}
	ps := probe(c)
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
	ps := append(probeCPUs(c), probeLimits(c)...)
	var known []stack
	for _, n := range all(c) {
		ps = append(ps, probeStorage(c, n)...)
		if s, ok := stackOf(n); ok {
			ps = append(ps, s.overlaps(c, known)...)
			known = append(known, s)
		}
	}
	ps.Sort()
	return ps
}

// probeAgain looks at one namespace while the others are served.
func probeAgain(c *config.Config, n *namespace) config.Problems {
	ps := probeStorage(c, n)
	var known []stack
	for _, o := range all(c) {
		if s, ok := stackOf(o); ok && o.key != n.key {
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
func probeStorage(c *config.Config, n *namespace) (ps config.Problems) {
	s, key := n.backing()
	at := env{readOnly: n.ReadOnly, engine: c.Disks, log: slog.New(slog.DiscardHandler)}
	name, path := key, n.path()
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
			ps = append(ps, c.Problem(key, name+" "+p.What, p.Hint))
		}
	}
	for _, p := range r.Warnings {
		ps = append(ps, c.Warning(key, name+" "+p.What, p.Hint))
	}
	return ps
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
