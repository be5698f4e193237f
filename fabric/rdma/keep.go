package rdma

import "github.com/nvmf-target/nvmf-target/fabric"

// Keep implements fabric.Queue. Slots of in-capsule data receive the next capsule as soon as the response is out.
func (q *queue) Keep(fr *fabric.Request) (free func()) {
	r := &q.reqs[fr.Tag]
	switch {
	case r.Lent || r.pool == nil && len(r.Segs) > 0:
		return nil
	case r.pool == nil:
		return func() {}
	}
	arena, segs := r.pool.arena, r.Segs
	r.pool, r.Segs = nil, nil
	return func() { arena.Free(segs) }
}
