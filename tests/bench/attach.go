package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/ibv"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// attach measures a running target, without its CPU time and without a floor.
func attach(o options, where, nqn string) (err error) {
	if nqn == "" {
		return errors.New("-attach needs the subsystem: -nqn NQN, as the target prints it")
	}
	kind, address, _ := strings.Cut(where, ":")
	addr, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%s: want TRANSPORT:ADDRESS:PORT: %w", where, err)
	}
	var transport func(digests bool) host.Transport
	switch kind {
	case "tcp":
		transport = func(digests bool) host.Transport {
			return host.TCP{Addr: addr, HeaderDigest: digests, DataDigest: digests}
		}
	case "rdma":
		provider := ibv.New()
		transport = func(bool) host.Transport { return host.RDMA{Provider: provider, Addr: addr} }
	default:
		return fmt.Errorf("%s: the transport must be tcp or rdma", where)
	}
	list, err := workloads(o.filter, o.all)
	if err != nil {
		return err
	}
	if err := pin(o.clientCPU); err != nil {
		return err
	}
	var records []record
	var loads []float64
	for range o.rounds {
		loads = append(loads, loadAverage())
		for _, w := range list {
			if w.on != (variant{}) || w.digests && kind != "tcp" {
				continue
			}
			f, err := measureTarget(transport(w.digests), nqn, w, o.duration, nil)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			records = append(records,
				record{Group: kind, Workload: w.name, Size: w.size, Who: whoTarget, Figures: f})
		}
	}
	if len(records) == 0 {
		return noMatch(o.filter, nil)
	}
	p, err := newReport("nvme/host over "+kind, "nothing", records, loads)
	if err != nil {
		return err
	}
	p.Rounds, p.Seconds = o.rounds, o.duration.Seconds()
	return p.writeTable(os.Stdout)
}
