package target

import "github.com/nvmf-target/nvmf-target/nvme"

// notReadyDelay is how long the completion with the status notReady is delayed, in nanoseconds.
// Without it, hosts with several paths would retry in a tight loop, and hosts with one path would
// use up their few attempts within a moment.
const notReadyDelay = int64(1e9)

// finishLater completes a command with notReady, after a delay unless its queue has ended.
func (h *Handler) finishLater(c *cmd) {
	c.since = 0
	if c.s.closed {
		h.finish(c, 0, notReady)
		return
	}
	c.due = h.loop.Now() + notReadyDelay
	h.delayed.Push(c, &c.delayed)
	if h.stopDelay == nil {
		h.startDelay()
	}
}

// startDelay sets the timer for the oldest delayed command.
func (h *Handler) startDelay() {
	h.stopDelay = h.after(max(h.delayed.First().due-h.loop.Now(), 1e6), func() {
		h.stopDelay = nil
		now := h.loop.Now()
		for c := h.delayed.First(); c != nil && c.due <= now; c = h.delayed.First() {
			h.finishDelayed(c, notReady)
		}
		if !h.delayed.Empty() {
			h.startDelay()
		}
	})
}

// finishDelayed completes a delayed command now.
func (h *Handler) finishDelayed(c *cmd, st nvme.Status) {
	h.delayed.Remove(&c.delayed)
	h.finish(c, 0, st)
	if h.delayed.Empty() && h.stopDelay != nil {
		h.stopDelay()
		h.stopDelay = nil
	}
}
