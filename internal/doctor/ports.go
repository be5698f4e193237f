package doctor

import (
	"context"
	"os"
	"path/filepath"
	"strconv"

	"github.com/nvmf-target/nvmf-target/internal/flight"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// Ports returns a function that returns the counters of the ports of RDMA devices, none if its
// context ends first. Some drivers ask the firmware, which may not answer, so one goroutine at a
// time waits for it. Any goroutine may call the function. dir has the devices: PortsDir.
func Ports(dir string) func(context.Context) []observed.PortCounter {
	look := flight.Question[[]observed.PortCounter]{
		Ask: func() ([]observed.PortCounter, error) { return readPortCounters(dir), nil },
	}
	return func(ctx context.Context) []observed.PortCounter {
		list, _ := look.Answer(ctx)
		return list
	}
}

// PortsDir is the directory of the kernel with the RDMA devices of this machine.
const PortsDir = "/" + infiniband

// readPortCounters reads the counters that drivers have in addition to the specification: CNP, ECN
// and packets out of sequence are in hw_counters.
func readPortCounters(dir string) (list []observed.PortCounter) {
	names, _ := filepath.Glob(filepath.Join(dir, "*/ports/*/*counters/*"))
	for _, name := range names {
		counter := filepath.Base(name)
		n, err := strconv.ParseUint(sys.Attribute(name), 10, 64)
		if err != nil || counter == "lifespan" { // the time for which values are kept
			continue
		}
		of := filepath.Dir(name)
		port := filepath.Dir(of)
		kind := filepath.Base(of)
		if kind != "counters" && kind != "hw_counters" {
			continue
		}
		device := filepath.Base(filepath.Dir(filepath.Dir(port)))
		if kind == "hw_counters" {
			if _, err := os.Stat(filepath.Join(port, "counters", counter)); err == nil {
				continue
			}
		}
		list = append(list, observed.PortCounter{
			Device: device, Port: filepath.Base(port), Counter: counter, Value: n,
		})
	}
	return list
}
