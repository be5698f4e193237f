package target

import (
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
)

// delayLists are the commands of a reactor that wait for a time.
type delayLists struct {
	delayed      delayList     // completed after notReadyDelay
	awaiting     delayList     // wait for the answers of queries, for admin.AnswerWait
	halves       delayList     // fused commands that wait for the other one, for pairWait
	changing     delayList     // wait for changes of reservations, for drainDeadline
	stopTimeouts func()        // stops the timer that looks for timeouts, nil if it does not run
	timeouts     dispatch.Walk // looks for timeouts
	timeoutsLeft bool          // devices may have commands that it has not seen, or has left
}

// notReadyDelay is how long the completion with the status notReady is delayed, in nanoseconds.
// Without it, hosts with several paths would retry in a tight loop, and hosts with one path would
// use up their few attempts within a moment.
const notReadyDelay = int64(1e9)

// delayList has commands that one timer ends, each of them a fixed time after it was added. A
// command is on one list at a time.
type delayList struct {
	h     *Handler
	delay int64        // nanoseconds
	end   func(c *cmd) // called when the time is over; it removes the command, or adds it anew
	list  list.List[cmd]
	stop  func() // stops the timer, nil if it does not run
}

// delayBatch is how many commands the timer ends at a time.
const delayBatch = 128

func (l *delayList) push(c *cmd) {
	c.due, c.delays = l.h.loop.Now()+l.delay, l
	l.list.Push(c, &c.delayed)
	if l.stop == nil {
		l.start()
	}
}

// start sets the timer for the oldest command.
func (l *delayList) start() {
	l.stop = l.h.after(max(l.list.First().due-l.h.loop.Now(), 1e6), func() {
		l.stop = nil
		now := l.h.loop.Now()
		for range delayBatch {
			c := l.list.First()
			if c == nil || c.due > now {
				break
			}
			l.end(c)
		}
		if !l.list.Empty() && l.stop == nil {
			l.start()
		}
	})
}

func (l *delayList) remove(c *cmd) {
	c.delays = nil
	l.list.Remove(&c.delayed)
	if l.list.Empty() && l.stop != nil {
		l.stop()
		l.stop = nil
	}
}

// finishLater completes a command with notReady, after a delay unless its queue has ended.
func (h *Handler) finishLater(c *cmd) {
	c.since = 0
	if c.s.queue.Over {
		h.finish(c, 0, notReady)
		return
	}
	h.delayed.push(c)
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
	h.delayed.remove(c)
	h.finish(c, 0, st)
}
