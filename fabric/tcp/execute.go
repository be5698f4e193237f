package tcp

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// markReady puts a request with complete data on the list for Execute.
func (g *Group) markReady(r *request) {
	if r.damaged && r.Status.OK() {
		r.Status = nvme.TransientTransportError
	}
	if len(g.ready) == cap(g.ready) {
		g.execute()
	}
	r.state = requestExecuting
	q := r.queue()
	if q.executing++; q.admin {
		g.inTurn += int(r.Length)
	}
	g.ready = append(g.ready, &r.Request)
}

// execute passes all ready requests to the handler.
func (g *Group) execute() int {
	n := len(g.ready)
	if n == 0 {
		return 0
	}
	g.cfg.Handler.Execute(g.ready)
	if g.borrowed > 0 {
		g.replaceBuffer()
	}
	clear(g.ready)
	g.ready = g.ready[:0]
	return n
}

// replaceBuffer leaves the receive buffer to the executing requests with data in it, and allocates
// another one. That is rare: Prepare promises completion in Execute only for an idle device.
func (g *Group) replaceBuffer() {
	for _, fr := range g.ready {
		fr.Owner.(*request).data = nil
	}
	g.borrowed = 0
	g.rx = make([]byte, rxSize)
}

// Complete takes requests back from the handler.
func (q *queue) Complete(reqs []*fabric.Request) {
	for _, fr := range reqs {
		r := fr.Owner.(*request)
		if r.state != requestExecuting {
			panic(fmt.Sprintf(
				"tcp: request %d was completed without having been executed, or twice", r.tag))
		}
		q.executing--
		r.state = requestSending
		if r.data != nil {
			r.data = nil
			q.g.borrowed--
		}
		if q.state >= queueTerminating {
			r.state = requestDropped
			q.dropped.Push(r, &r.node)
			continue
		}
		q.respond(r)
	}
	q.schedule()
}
