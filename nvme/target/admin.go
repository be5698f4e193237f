package target

import (
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Identify data structures (identify.go), log pages (logs.go) and features (features.go) are rows
// of tables: adding one takes a row and a function. The logs that list what is supported are made
// from the same tables.

// scope says which controllers have a row of a table; nil means all of them.
type scope func(c *controller) bool

func (s scope) has(c *controller) bool { return s == nil || s(c) }

func onIO(c *controller) bool        { return !c.sub.discovery }
func onDiscovery(c *controller) bool { return c.sub.discovery }

// pageFunc makes the data that a command asks for. It runs on the reactor of the controller, and
// must not block; see reply.queries.
type pageFunc func(c *controller, sqe *nvme.SQE) reply

// reply is what a command returns: data, or a status.
type reply struct {
	data []byte
	st   nvme.Status
	// queries, if any, have the answers that the reply is made of. When these are there, or
	// answerWait is over, build makes it, on the reactor, or one with further queries; it does not
	// use the SQE.
	queries []asker
	build   func() reply
}

// reply completes a command with the part of a reply from off on. The rest of the host's buffer
// becomes zeroes: the memory has been used before, and the host must not see for what.
func (h *Handler) reply(c *cmd, result uint64, r reply, off uint64) {
	segs := c.req.Segs
	finish := func(r reply) nvme.Status {
		if !r.st.OK() {
			return r.st
		}
		to := mem.NewCursor(segs, 0)
		to.CopyFrom(r.data[min(off, uint64(len(r.data))):])
		to.Clear(to.Rest())
		return nvme.Success
	}
	if len(r.queries) == 0 {
		h.finish(c, result, finish(r))
		return
	}
	h.await(c, r.queries, func() { h.reply(c, result, r.build(), off) })
}

// elsewhere makes something on an ordinary goroutine, because that takes longer the more
// controllers or namespaces there are, and a reply of it on the reactor.
func elsewhere[T any](make func() T, then func(T) reply) reply {
	q := &query[T]{ask: func() (*T, error) {
		made := make()
		return &made, nil
	}}
	return reply{queries: []asker{q}, build: func() reply {
		made, _, _ := q.peek()
		if made == nil { // the machine is too busy
			return reply{st: nvme.InternalError}
		}
		return then(*made)
	}}
}
