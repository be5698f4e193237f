package check

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// probeCPUs checks that the reactors have CPUs that this process may use.
func probeCPUs(c *config.Config) (ps config.Problems) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil
	}
	for i, cpu := range c.Reactors.CPUs {
		if !set.IsSet(cpu) {
			ps = append(ps, c.Problem(fmt.Sprintf("reactors.cpus[%d]", i),
				fmt.Sprintf("CPU %d does not exist or this process may not use it", cpu),
				"Choose one that \"taskset -cp $$\" prints."))
		}
	}
	if n := set.Count(); c.Reactors.Count > n {
		ps = append(ps, c.Warning("reactors.count", fmt.Sprintf("%s share %s and take them from "+
			"each other", Count(c.Reactors.Count, "reactor"), Count(n, "CPU")),
			"At most one for each CPU; without the key it is half of them."))
	}
	return ps
}

// probeLimits warns of memory and descriptors that may not be enough.
func probeLimits(c *config.Config) (ps config.Problems) {
	var ram, largest int64
	for _, n := range volumes.All(c) {
		ram, largest = ram+n.Memory(), max(largest, n.Memory())
	}
	reactors := int64(len(ReactorCPUs(c.Reactors)) * c.Reactors.Memory)
	// A single namespace that is too large is reported by its own probe.
	if n, err := sys.AvailableMemory(); err == nil && reactors+ram > n && largest <= n {
		ps = append(ps, c.Warning("reactors.memory", fmt.Sprintf("the reactors take %v and the "+
			"namespaces in memory may take %v, and %v are available", lang.Size(reactors),
			lang.Size(ram), lang.Size(n)),
			"Make them smaller; the kernel kills processes when memory is used up."))
	}
	if !uses(c.Listeners, nvme.TransportTCP) {
		return ps
	}
	var limit unix.Rlimit // Go has raised the soft limit to the hard one
	files := uint64(c.TCP.Connections + tcp.MaxEvicted + otherFiles*(1+len(volumes.All(c))))
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && limit.Cur < files {
		ps = append(ps, c.Warning("tcp.max_connections", fmt.Sprintf("%d connections and the rest "+
			"need %d open files, and the limit is %d", c.TCP.Connections, files, limit.Cur),
			"Set LimitNOFILE= in the systemd unit (ulimit -n), or lower max_connections."))
	}
	return ps
}

// otherFiles is a generous number of open files for the program itself and for each namespace.
const otherFiles = 32

// Memlock fails if RDMA cannot register the arenas of the reactors.
func Memlock(reactors, arena int) error {
	limit, limited := sys.MemlockLimit()
	if need := uint64(reactors) * uint64(arena); limited && limit < need {
		return fmt.Errorf("the limit of locked memory is too low: %v, for %s of %v (set "+
			"LimitMEMLOCK=infinity in the systemd unit, or \"ulimit -l unlimited\" as root before "+
			"the start)", lang.Size(limit), Count(reactors, "arena"), lang.Size(arena))
	}
	return nil
}

// ReactorCPUs returns the CPU of each reactor, -1 for a reactor that is not pinned.
func ReactorCPUs(c config.Reactors) []int {
	if len(c.CPUs) > 0 {
		return c.CPUs
	}
	return slices.Repeat([]int{-1}, cmp.Or(c.Count, max(1, runtime.NumCPU()/2)))
}

// uses reports whether any listener uses the transport.
func uses(listeners []config.Listener, t nvme.TransportType) bool {
	return slices.ContainsFunc(listeners, func(l config.Listener) bool { return l.Transport == t })
}
