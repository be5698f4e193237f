// Command bench measures nvmf-target natively over loopback TCP: the target pinned to one CPU, nvme/host as load generator on
// another, beside the floor, which is what the sockets alone allow (floor.go). Floor and target alternate within one run, so
// that what counts, their ratio, does not depend on the mood of the machine.
//
//	go build -o bin/ ./cmd/nvmf-target && go run ./tests/bench -target bin/nvmf-target
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"time"
)

type options struct {
	target   string
	rounds   int
	duration time.Duration
	filter   string
	servers  int // CPU of the server side
	clients  int // CPU of the load
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "floor-server" {
		exit(floorServerMain(os.Args[2:]))
	}
	var o options
	flag.StringVar(&o.target, "target", "bin/nvmf-target", "the `program` to measure")
	flag.IntVar(&o.rounds, "rounds", 5, "alternating rounds of floor and target per workload")
	flag.DurationVar(&o.duration, "duration", 5*time.Second, "length of a measurement")
	flag.StringVar(&o.filter, "run", "", "measure only workloads whose name matches this `regexp`")
	flag.IntVar(&o.servers, "server-cpu", 0, "CPU of the target")
	flag.IntVar(&o.clients, "client-cpu", 1, "CPU of the load generator")
	flag.Parse()
	exit(run(o))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// floorServerMain is the child process that serves the floor: port, CPU, bytes of a request, bytes of a response.
func floorServerMain(args []string) error {
	var n [4]int
	if len(args) != len(n) {
		return fmt.Errorf("floor-server takes %d numbers", len(n))
	}
	for i := range n {
		v, err := strconv.Atoi(args[i])
		if err != nil {
			return err
		}
		n[i] = v
	}
	return serveFloor(n[0], n[1], floorShape{n[2], n[3]})
}
