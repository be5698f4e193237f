// Command bench measures nvmf-target natively over loopback TCP: the target is pinned to one CPU,
// and nvme/host generates load on another. It compares the target with the floor, the same messages
// over bare sockets (floor.go). Floor and target alternate within one run, so that their ratio does
// not depend on the momentary speed of the machine. A target elsewhere is measured by
// "nvmf-target bench".
//
//	go build -o bin/ ./cmd/nvmf-target && go run ./tests/bench -target bin/nvmf-target
//	go run ./tests/bench -run 'QD 32'                    # some workloads
//	go run ./tests/bench -all -out docs/benchmarks       # all workloads; with report and plot
//	go run ./tests/bench -check-floor                    # the floor and its definition in C
//	go run ./tests/bench -lab FILE -out docs/benchmarks  # report on records of tests/lab/bench.sh
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"time"
)

type options struct {
	target    string
	rounds    int
	duration  time.Duration
	filter    string
	all       bool
	out       string
	serverCPU int
	clientCPU int // of the load
}

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "floor-server":
			exit(floorServerMain(os.Args[2:]))
		case "own-target":
			exit(ownTargetMain(os.Args[2:]))
		}
	}
	var o options
	flag.StringVar(&o.target, "target", "bin/nvmf-target", "the `program` to measure")
	flag.IntVar(&o.rounds, "rounds", int(environment("ROUNDS", 5)),
		"alternating rounds of floor and target per workload (also ROUNDS=5)")
	flag.DurationVar(&o.duration, "duration", 0,
		"length of a measurement (default 1s, with -all 5s; also SECONDS_EACH=5)")
	flag.StringVar(&o.filter, "run", "",
		"measure the workloads whose name matches this `regexp`, also those that need -all")
	flag.BoolVar(&o.all, "all", os.Getenv("ALL") == "1",
		"measure all workloads, also those with several queues (also ALL=1)")
	flag.StringVar(&o.out, "out", "", "write report (JSON) and plot (SVG) into this `directory`")
	flag.IntVar(&o.serverCPU, "server-cpu", 0, "CPU of the target")
	flag.IntVar(&o.clientCPU, "client-cpu", 1, "CPU of the load generator, -1 for any")
	checkFloor := flag.Bool("check-floor", false,
		"compare the floor with its definition in C, which needs a C compiler")
	lab := flag.String("lab", "", "report on the records that tests/lab/bench.sh wrote to `file`")
	flag.Parse()
	if o.duration == 0 {
		seconds := 1.0
		if o.all {
			seconds = 5
		}
		o.duration = time.Duration(environment("SECONDS_EACH", seconds) * float64(time.Second))
	}
	if o.rounds < 1 || o.duration <= 0 {
		exit(errors.New("at least one round of some length"))
	}
	switch {
	case *checkFloor:
		exit(compareFloors(o))
	case *lab != "":
		exit(reportLab(o, *lab))
	default:
		exit(run(o))
	}
}

// environment returns the number in an environment variable, or otherwise if it is not set.
func environment(name string, otherwise float64) float64 {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		exit(fmt.Errorf("%s: %w", name, err))
	}
	return v
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
