package target

import (
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
)

// delayLists are the commands of a reactor that wait for a limited time.
type delayLists struct {
	delayed      dispatch.Delays[cmd] // completed after notReadyDelay
	awaiting     dispatch.Delays[cmd] // wait for the answers of queries, for admin.AnswerWait
	halves       dispatch.Delays[cmd] // fused commands that wait for the other one, for pairWait
	changing     dispatch.Delays[cmd] // wait for changes of reservations, for drainDeadline
	stopTimeouts func()               // stops the timer of timeouts, nil if it does not run
	timeouts     dispatch.Walk        // looks for timeouts
	timeoutsLeft bool                 // devices may have commands that it has not seen, or has left
}

// notReadyDelay is how long the completion with the status notReady is delayed, in nanoseconds.
// Without it, hosts with several paths would retry in a tight loop, and hosts with one path would
// use up their few attempts within a moment.
const notReadyDelay = int64(1e9)

// finishLater completes a command with notReady, after a delay unless its queue has ended.
func (h *Handler) finishLater(c *cmd) {
	c.since = 0
	if c.s.queue.Over {
		h.finish(c, 0, notReady)
		return
	}
	h.delayed.Push(c, &c.delayed)
}

// finishAs completes a command with a status that may be notReady.
func (h *Handler) finishAs(c *cmd, result uint64, st nvme.Status) {
	if st == notReady {
		h.finishLater(c)
		return
	}
	h.finish(c, result, st)
}

// finishDelayed completes a delayed command now.
func (h *Handler) finishDelayed(c *cmd, st nvme.Status) {
	c.delayed.Remove()
	h.finish(c, 0, st)
}
