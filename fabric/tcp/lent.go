package tcp

import (
	"syscall"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// What is lent is sent from where it lies. Two things end that before the host has taken it: the
// host may be slow, while somebody waits to write there; and memory of a file may not be there,
// which the kernel says when it is to send it. Then memory of ours stands in. So that a command can
// still fail at that time, data of files does not carry the success flag.

// CanSendFrom implements fabric.Queue: the kernel takes data from wherever it lies. Digests are
// made by us, who leave files to the kernel.
func (q *queue) CanSendFrom(segs []mem.Segment) bool {
	return !q.params.DataDigest || len(segs) == 0 || !segs[0].File
}

// ofFile says that what r sends is memory of a file.
func (r *request) ofFile() bool { return r.ZeroCopy && len(r.Segs) > 0 && r.Segs[0].File }

// transmit gives the kernel what is in Group.iov. Some of it may be of files: on a broken medium
// the kernel may not only fail but also send us SIGBUS, and then how much has left is not known.
func (q *queue) transmit(ofFile bool) (n int, e syscall.Errno) {
	iov := q.g.iov
	if !ofFile {
		return sys.Sendmsg(q.fd, iov, 0)
	}
	if !mem.Guard(func() { n, e = sys.Sendmsg(q.fd, iov, 0) }) {
		return 0, syscall.EIO
	}
	return n, e
}

// standIn takes memory of ours in the place of what is lent, for responses that the socket has not
// taken since the last tick: somebody may wait to write there, and this host may be one that reads
// no more. What finds no memory stays as it is.
func (q *queue) standIn() {
	for r := q.sendq.head; r != nil; r = r.next {
		switch {
		case !r.ZeroCopy || r.Dir == fabric.HostToController:
		case !r.old:
			r.old = true
		default:
			q.replace(r)
		}
	}
}

// rescue takes memory of ours in the place of all that files have lent and that is to be sent: some
// of it is not there. False: nothing can be done.
func (q *queue) rescue() (some bool) {
	for r := q.sendq.head; r != nil; r = r.next {
		some = r.ofFile() && q.replace(r) || some
	}
	return some
}

// replace takes memory of ours in the place of what is lent to r, a read. What a file does not have
// becomes zeroes, and the command fails, unless its data has left. False: there is no memory.
func (q *queue) replace(r *request) bool {
	g := q.g
	if g.cfg.Memory.Available() < int(r.Length) || !q.own(r, int(r.Length)) {
		return false
	}
	switch left := r == q.sendq.head &&
		q.sent >= r.wire-pdu.CapsuleRespSize-q.params.HeaderDigestSize(); {
	case !r.ofFile():
		mem.CopySegments(r.own, r.Segs)
	case !left && !mem.CopyFile(r.own, r.Segs):
		for i := range r.own {
			clear(r.own[i].B)
		}
		// Base section 4.2.3.3, 81h
		r.CQE.Fill(0, r.CQE.SQHD(), r.CQE.CID(), nvme.UnrecoveredReadError)
		g.t.log.Warn("the file of a namespace cannot be read where it is mapped", "remote",
			q.conn.info.Remote, "command", r.SQE.CID())
	}
	g.cfg.Handler.EndZeroCopy(&r.Request)
	clear(r.Segs)
	r.ZeroCopy, r.Segs = false, append(r.Segs[:0], r.own...)
	return true
}
