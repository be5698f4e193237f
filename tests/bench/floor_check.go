package main

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// floorDefinition is the program that defines the floor: "server CPU PORT REQUEST RESPONSE" serves
// one connection, "client CPU PORT REQUEST RESPONSE DEPTH SECONDS" prints the number of requests
// answered per second.
//
//go:embed testdata/tcpfloor.c
var floorDefinition []byte

// compareFloors compiles the definition of the floor and measures it and the floor of this program
// in alternating order. It fails if the medians differ by more than 10 %.
func compareFloors(o options) error {
	dir, err := os.MkdirTemp("", "nvmf-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	source, program := filepath.Join(dir, "tcpfloor.c"), filepath.Join(dir, "tcpfloor")
	if err := os.WriteFile(source, floorDefinition, 0o600); err != nil {
		return err
	}
	out, err := exec.Command("cc", "-O2", "-w", "-o", program, source).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cc: %w\n%s", err, out)
	}
	if err := pin(o.clientCPU); err != nil {
		return err
	}
	re, err := regexp.Compile(o.filter)
	if err != nil {
		return err
	}
	var failed error
	for _, w := range []workload{
		random4K("4K read QD 1", 1), random4K("4K read QD 32", 32),
		random4K("4K read QD 128", 128), writes(random4K("4K write QD 32", 32)),
		sequential("128K read QD 16", 128<<10, 100), sequential("128K write QD 16", 128<<10, 0),
	} {
		if !re.MatchString(w.Name) {
			continue
		}
		ours, defined, err := measureBoth(o, program, w)
		if err != nil {
			return err
		}
		ratio := spreadOf(over(ours, defined))
		fmt.Printf("%-18s floor %7.1f kIOPS, its definition %7.1f, ratio %.2f (%.2f..%.2f)\n",
			w.Name, spreadOf(ours).Median/1e3, spreadOf(defined).Median/1e3,
			ratio.Median, ratio.Min, ratio.Max)
		if ratio.Median < 0.9 || ratio.Median > 1.1 {
			failed = errors.Join(failed,
				fmt.Errorf("%s: the floor is %.2f of its definition", w.Name, ratio.Median))
		}
	}
	return failed
}

// measureBoth measures the floor and its definition, in alternating order.
func measureBoth(o options, program string, w workload) (ours, defined []float64, err error) {
	for round := range o.rounds {
		for i := range 2 {
			if (i+round)%2 == 1 {
				v, err := measureDefinition(o, program, w)
				if err != nil {
					return nil, nil, err
				}
				defined = append(defined, v)
				continue
			}
			f, err := measureFloor(o, w)
			if err != nil {
				return nil, nil, err
			}
			ours = append(ours, f["iops"])
		}
	}
	return ours, defined, nil
}

var definitionResult = regexp.MustCompile(`qd \d+: (\d+) IOPS`)

// measureDefinition measures the C program, server and client on different CPUs.
func measureDefinition(o options, program string, w workload) (float64, error) {
	port, err := freePort()
	if err != nil {
		return 0, err
	}
	shape := w.pattern()[0]
	args := func(side string, cpu int, more ...int) []string {
		list := []string{side}
		for _, n := range append([]int{cpu, port, shape.Request, shape.Response}, more...) {
			list = append(list, strconv.Itoa(n))
		}
		return list
	}
	server := exec.Command(program, args("server", o.serverCPU)...)
	if err := server.Start(); err != nil {
		return 0, err
	}
	seconds := strconv.FormatFloat(o.duration.Seconds(), 'f', -1, 64)
	out, err := exec.Command(program,
		append(args("client", o.clientCPU, w.Depth), seconds)...).CombinedOutput()
	if err != nil {
		_ = server.Process.Kill()
	}
	_ = server.Wait()
	m := definitionResult.FindSubmatch(out)
	if err != nil || m == nil {
		return 0, fmt.Errorf("tcpfloor client: %w\n%s", err, out)
	}
	return strconv.ParseFloat(string(m[1]), 64)
}
