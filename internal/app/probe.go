package app

import (
	"fmt"
	"io"
	"log/slog"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme"
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
type stacks map[*namespace]*stack

// probeNamespace looks at the storage of a namespace, and whether it is that of another one that is
// known. What is wrong with storage that is not there is a warning: the namespace is pending.
func probeNamespace(c *config.Config, n *namespace, known stacks) (ps config.Problems) {
	s, key := n.storage()
	at := env{readOnly: n.ReadOnly, engine: c.Disks, log: slog.New(slog.DiscardHandler)}
	name, path := key, s.path()
	if path != "" {
		name = strconv.Quote(path)
		key += ".path"
	}
	r := s.probe(at)
	if absent(n, at) {
		for _, p := range r.Errors {
			ps = append(ps, c.Warning(key, name+" "+p.What+"; the namespace is pending until it is there",
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
	mine, err := stackOf(blockPath(n))
	if err != nil {
		return ps // as new files
	}
	for other, theirs := range known {
		if where, ok := mine.Overlaps(theirs); ok && other.key != n.key {
			ps = append(ps, c.Problem(key, fmt.Sprintf(
				"namespace %d of %s is on the same storage as namespace %d of %s: %s", n.NSID, n.nqn,
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
		if st, err := stackOf(blockPath(o)); err == nil && o.key != n.key {
			known[o] = st
		}
	}
	return probeNamespace(c, n, known)
}

// usableCPUs are those that this process may use.
func usableCPUs() (set unix.CPUSet, n int) {
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return set, 0
	}
	return set, set.Count()
}

func probeCPUs(c *config.Config) (ps config.Problems) {
	set, n := usableCPUs()
	if n == 0 {
		return nil // not known
	}
	for i, cpu := range c.Reactors.CPUs {
		if !set.IsSet(cpu) {
			ps = append(ps, c.Problem(fmt.Sprintf("reactors.cpus[%d]", i),
				fmt.Sprintf("CPU %d does not exist or this process may not use it", cpu),
				"Choose among those that \"taskset -cp $$\" prints."))
		}
	}
	if c.Reactors.Count > n {
		ps = append(ps, c.Warning("reactors.count", fmt.Sprintf("%s share %s and take them from "+
			"each other", count(c.Reactors.Count, "reactor"), count(n, "CPU")),
			"At most one for each CPU; without the key it is half of them."))
	}
	return ps
}

// probeLimits warns of memory and descriptors that may not be enough.
func probeLimits(c *config.Config) (ps config.Problems) {
	reactors := config.Size(len(reactorCPUs(c.Reactors)) * c.Reactors.Memory)
	ram := config.Size(0)
	for _, n := range all(c) {
		s, _ := n.storage()
		ram += config.Size(s.memory())
	}
	if n, err := sys.AvailableMemory(); err == nil && reactors+ram > config.Size(n) {
		ps = append(ps, c.Warning("reactors.memory", fmt.Sprintf("the reactors take %v and the "+
			"namespaces in memory may take %v, and %v are available", reactors, ram, config.Size(n)),
			"Make them smaller; the kernel ends processes when memory is used up."))
	}
	if !uses(c.Listeners, nvme.TransportTCP) {
		return ps
	}
	var limit unix.Rlimit // Go has raised it as far as it may be
	files := uint64(c.TCP.MaxConnections + otherFiles*(1+len(all(c))))
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && limit.Cur < files {
		ps = append(ps, c.Warning("tcp.max_connections", fmt.Sprintf("%d connections and the rest "+
			"need %d open files, and the limit is %d", c.TCP.MaxConnections, files, limit.Cur),
			"Set LimitNOFILE= in the systemd unit (ulimit -n), or lower max_connections."))
	}
	return ps
}

// otherFiles is how many files the program has open besides connections, and each namespace, at most
// on most machines.
const otherFiles = 32
