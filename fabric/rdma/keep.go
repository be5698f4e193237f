package rdma

import "github.com/nvmf-target/nvmf-target/fabric"

// HandOverBuffers implements fabric.Queue. Slots of in-capsule data receive the next capsule as
// soon as the response is out.
func (q *queue) HandOverBuffers(fr *fabric.Request) (free func()) {
	r := fr.Owner.(*request)
	switch {
	case r.ZeroCopy || r.pool == nil && len(r.Segs) > 0:
		return nil
	case r.pool == nil:
		return func() {}
	}
	memory, segs := r.pool.memory, r.Segs
	r.pool, r.Segs = nil, nil
	return func() { memory.Free(segs) }
}
