package rdma

// Queues of a group take turns, so that one that has many commands in flight delays the others by a
// few of them and not by all. In a poll a queue begins and sends what its turn allows; the rest
// continues in the next poll, when capsules of others have come.

// turnCommands and turnBytes are roughly what begins in a turn, and what is sent: 32 small commands
// or three of 128 KiB.
const (
	turnCommands = 32
	turnBytes    = 384 << 10
)

// hasTurn reports whether the queue may begin a command in this poll.
func (q *queue) hasTurn() bool {
	if q.turnPoll != q.g.polls {
		q.turnPoll, q.turn = q.g.polls, turnBytes
	}
	return q.turn > 0
}

// beginWaiting gives a turn to queues whose capsules wait for one, as many as fit in the budget.
func (g *group) beginWaiting(budget int) (work int) {
	n := 0
	for most := len(g.waiting); n < most && work < budget; n++ { // some come back
		q := g.waiting[n]
		q.waits = false
		before := len(q.capsules)
		if q.state < queueClosing {
			q.beginNext()
		}
		work += 1 + before - len(q.capsules)
	}
	rest := copy(g.waiting, g.waiting[n:])
	clear(g.waiting[rest:])
	g.waiting = g.waiting[:rest]
	return work
}
