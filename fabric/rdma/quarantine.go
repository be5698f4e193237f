package rdma

import "github.com/nvmf-target/nvmf-target/internal/mem"

// A queue pair that cannot be destroyed may still read and write all memory it was given. Its queue
// is quarantined: its memory is neither used again nor freed until the process ends. That is
//
//   - the data memory of requests in requestFlushing, of the pool or of a namespace (destroyed);
//   - the slab, its entries of the completion queue, its share of the SRQ with the slots that it
//     lost, and thereby the poller (queue.free, poller.free).
//
// Everything stays charged, so that the limits hold for the remaining memory. The queue leaves the
// group, and a late completion matches nothing, so the target can stop. Memory that is unmapped
// then stays mapped (mem.Region.Keep).

// destroyQP destroys the queue pair or quarantines the queue. It does not try twice: libraries may
// have freed their part before the kernel refused (verbs.QP). Not on a reactor.
func (q *queue) destroyQP() {
	q.cm.Lock()
	err := q.qp.Destroy()
	q.cm.Unlock()
	if err != nil {
		q.quarantine(err)
		return
	}
	q.p.dev.qps.Add(-1)
}

// quarantine is called before the reactor learns that the queue pair was destroyed.
func (q *queue) quarantine(reason error) {
	q.quarantined = true
	q.g.t.quarantined.Add(1)
	q.g.t.cfg.Log.Error("RDMA queue pair cannot be destroyed: the memory that it may still use "+
		"is kept, and a namespace it belongs to cannot be removed, until the target is restarted; "+
		"the kernel log may show a fault of the device",
		"device", q.p.dev.attr.Name, "remote", q.conn.info.Remote,
		"qid", q.conn.info.QID, "err", reason)
}

// keepBuffers keeps data memory that the device may touch. It is done with the receive slot.
func (q *queue) keepBuffers(r *request) {
	for i := range r.Segs {
		if region := mem.Find(r.Segs[i].Region); region != nil {
			region.Keep(true)
		}
	}
	q.freeSlot(r)
}

// endQuarantines ends zero copies of quarantined queues when the group has no other queue and shuts
// down, so that namespaces can be closed: no host can read or write them any longer. Reactor only.
func (g *group) endQuarantines() {
	for _, q := range g.quarantined {
		for i := range q.reqs {
			if r := &q.reqs[i]; r.state == requestFlushing && r.ZeroCopy {
				g.cfg.Handler.EndZeroCopy(&r.Request)
			}
		}
	}
	g.quarantined = nil
}

// keep keeps the parts of a poller that quarantined queue pairs use: all but its place in the
// group.
func (p *poller) keep() error {
	for _, m := range []poolMR{p.data, p.staging} {
		if m.pool != nil {
			m.pool.Region().Keep(true)
		}
	}
	t := p.g.t
	t.mu.Lock()
	p.dev.quarantined = true
	t.mu.Unlock()
	return t.releaseDevice(p.dev)
}
