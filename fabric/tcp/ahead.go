package tcp

import "github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"

// A write with much data in its capsule is prepared as soon as its SQE is here, ahead of its data,
// as one that gets an R2T. The handler may then attach memory of its device, and the data goes
// straight there or to memory of the arena. While such commands come one after another, what is
// received behind the data of one is the header of the next and no more, so that the data of that
// one is not caught in the group's buffer.

// aheadMin is the least in-capsule data that is worth a receive of its own.
const aheadMin = 32 << 10

// untilData is how much comes before the data of the next command, from the header of this PDU on
// or from the end of its data.
func (q *queue) untilData() int {
	n := q.params.PDO(pdu.CapsuleCmdSize, q.params.CPDA)
	if q.rx != receiveHeader {
		n += q.params.DataDigestSize()
	}
	return n
}

// placeAhead makes the data of a prepared command go to its place: that which Prepare attached, or
// else memory that was promised. The data of a command that is refused comes all the same.
func (q *queue) placeAhead(r *request) {
	n := q.left
	if r.ZeroCopy {
		return
	}
	q.own(r, n)
	q.g.ahead++
	if r.InCapsule = !r.Status.OK(); !r.InCapsule {
		r.Segs = append(r.Segs, r.own...)
	}
}

// leaveAhead is called before memory of the arena is given back.
func (g *Group) leaveAhead(r *request) {
	if r.ahead {
		g.ahead--
	}
}
