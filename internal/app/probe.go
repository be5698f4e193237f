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
	known := stacks{}
	for _, n := range all(c) {
		ps = append(ps, probeNamespace(c, n, known)...)
	}
	ps.Sort()
	return ps
}

// stacks are what namespaces stand on.
type stacks map[*namespace]*storage.Stack

// probeNamespace looks at the storage of a namespace, and whether it is that of another one that is
// known. What is wrong with storage that is not there is a warning: the namespace is pending.
func probeNamespace(c *config.Config, n *namespace, known stacks) (ps config.Problems) {
	s, key := n.backing()
	at := env{readOnly: n.ReadOnly, engine: c.Disks, log: slog.New(slog.DiscardHandler)}
	name, path := key, s.path()
	if path != "" {
		name = strconv.Quote(path)
		key += ".path"
	}
	r := s.probe(at)
	if len(r.Errors) > 0 && absent(n, at) {
		for _, p := range r.Errors {
			ps = append(ps,
				c.Warning(key, name+" "+p.What+"; the namespace is pending until it is there",
					p.Hint))
		}
		return ps
	}
	for _, p := range r.Errors {
		ps = append(ps, c.Problem(key, name+" "+p.What, p.Hint))
	}
	for _, p := range r.Warnings {
		ps = append(ps, c.Warning(key, name+" "+p.What, p.Hint))
	}
	if path == "" {
		return ps
	}
	mine, err := storage.Linux().StackOf(blockPath(n))
	if err != nil {
		return ps // as new files
	}
	for other, theirs := range known {
		if where, ok := mine.Overlaps(theirs); ok && other.key != n.key {
			ps = append(ps, c.Problem(key, fmt.Sprintf(
				"namespace %d of %s is on the same storage as namespace %d of %s: %s", n.NSID,
				n.nqn,
				other.NSID, other.nqn, where), "Give each namespace storage of its own."))
		}
	}
	known[n] = mine
	return ps
}

// probeAlone looks at one namespace after the others have been opened.
func probeAlone(c *config.Config, n *namespace) config.Problems {
	known := stacks{}
	for _, o := range all(c) {
		if st, err := storage.Linux().StackOf(blockPath(o)); err == nil && o.key != n.key {
			known[o] = st
		}
	}
	return probeNamespace(c, n, known)
}
