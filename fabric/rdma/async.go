package rdma

import (
	"errors"
	"fmt"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

var (
	errDeviceFatal = errors.New("the RDMA device failed")
	errCQ          = errors.New("the device reports CQ_ERR")
)

// async takes an event of a device to whom it concerns. Goroutine of the binding; it does not
// block.
func (t *Transport) async(d *device, ev verbs.AsyncEvent) {
	switch ev.Type {
	case verbs.AsyncCQErr, verbs.AsyncSRQErr, verbs.AsyncQPFatal, verbs.AsyncQPReqErr,
		verbs.AsyncQPAccessErr, verbs.AsyncQPLastWQEReached:
	case verbs.AsyncDeviceFatal:
		t.cfg.Log.Error("RDMA device failed, its queues end", "device", d.attr.Name)
		defer t.lost(d.dev) // what comes later makes a new entry, or fails
	case verbs.AsyncPortErr, verbs.AsyncWQFatal, verbs.AsyncPathMigErr:
		t.log.Warn("RDMA device event", "device", d.attr.Name, "event", ev.Type)
		return
	case verbs.AsyncPortActive:
		t.cfg.Log.Info("RDMA port is active", "device", d.attr.Name)
		return
	// addresses and subnet management, or what a receive or the end of a queue pair tells as well
	default:
		t.cfg.Log.Debug("RDMA device event", "device", d.attr.Name, "event", ev.Type)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for g := range t.groups {
		g.cfg.Loop.Post(func() { g.async(d, ev) })
	}
}

// async ends the queues that an event of a device concerns.
func (g *group) async(d *device, ev verbs.AsyncEvent) {
	if ev.Type == verbs.AsyncCQErr {
		for _, p := range g.ports {
			for _, c := range p.cqs {
				if c.CQ == ev.CQ {
					c.fail(errCQ)
				}
			}
		}
		return
	}
	if ev.Type == verbs.AsyncSRQErr {
		for _, s := range g.shareds {
			if s != nil && s.srq == ev.SRQ {
				s.fail(errSRQ)
			}
		}
		return
	}
	for _, q := range g.slots {
		switch {
		case q == nil || q.p.dev != d:
		case ev.Type == verbs.AsyncQPLastWQEReached:
			if q.qp.Num() == ev.QPNum {
				q.lastReceived()
			}
		case ev.Type == verbs.AsyncDeviceFatal:
			q.fail(errDeviceFatal)
		case q.qp.Num() == ev.QPNum:
			q.fail(fmt.Errorf("the device reports %v", ev.Type))
		}
	}
}
