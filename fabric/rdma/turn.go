package rdma

// Queues of a group take turns, so that one that has many commands in flight delays the others by a
// few of them and not by all. In a poll a queue begins and sends what its turn allows; the rest
// continues in the next poll, when capsules of others have come.

// turnCommands and turnBytes are roughly what begins in a turn: 32 small commands or three of 128
// KiB. In a turn 64 small responses are sent, or as many bytes: each counts leastSend, at least.
const (
	turnCommands = 32
	turnBytes    = 384 << 10
	leastSend    = turnBytes / 64
)

// hasTurn reports whether the queue may begin a command in this poll: as long as all of them have
// begun no more than the budget of the poll.
func (q *queue) hasTurn() bool {
	if q.turnPoll != q.g.polls {
		q.turnPoll, q.turn = q.g.polls, turnBytes
	}
	return q.turn > 0 && q.g.mayBegin > 0
}

// beginWaiting gives a turn to queues whose capsules wait for one, as many as fit in the budget.
func (g *group) beginWaiting(budget int) (work int) {
	last := g.waiting.Last() // some come back
	for q := g.waiting.First(); q != nil && work < budget; q = g.waiting.First() {
		g.waiting.Remove(&q.waits)
		before := len(q.capsules)
		if q.state < queueClosing {
			q.beginNext()
		}
		work += 1 + before - len(q.capsules)
		if q == last {
			break
		}
	}
	return work
}
