package target

import (
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
)

// Identify data structures (identify.go), log pages (logs.go) and features (features.go) are rows
// of tables: adding one takes a row and a function. The logs of supported log pages and features
// are made from the same tables.

// scope says which controllers have a row of a table; nil means all of them.
type scope func(c *controller) bool

func (s scope) has(c *controller) bool { return s == nil || s(c) }

func onIO(c *controller) bool        { return !c.sub.discovery }
func onDiscovery(c *controller) bool { return c.sub.discovery }

// pageFunc makes the data that a command asks for. It runs on the reactor of the controller, and
// must not block; see admin.Reply.
type pageFunc func(c *controller, sqe *nvme.SQE) admin.Reply

// reply completes a command with the part of a reply from off on. It zeroes the rest of the host's
// buffer: the host must not see earlier contents of the memory.
func (h *Handler) reply(c *cmd, result uint64, r admin.Reply, off uint64) {
	segs := c.req.Segs
	finish := func(r admin.Reply) nvme.Status {
		if !r.Status.OK() {
			return r.Status
		}
		to := mem.NewCursor(segs, 0)
		to.CopyFrom(r.Data[min(off, uint64(len(r.Data))):])
		to.Clear(to.Rest())
		return nvme.Success
	}
	then := func() { h.reply(c, result, r.Build(), off) }
	switch {
	case r.Work != nil:
		h.elsewhere(c, r.Work, then)
	case len(r.Queries) > 0:
		h.await(c, r.Queries, then)
	default:
		h.finish(c, result, finish(r))
	}
}
