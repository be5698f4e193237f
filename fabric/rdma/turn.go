package rdma

// Queues of a group take turns, so a queue with many commands in flight delays the others by a few
// commands and not by all. In a poll a queue begins and sends as much as its turn allows. The rest
// continues in the next poll, after capsules of other queues have come.

// turnCommands and turnBytes limit roughly the work begun in a turn: 32 small commands or three of
// 128 KiB. A turn sends 64 small responses, or as many bytes: each counts at least leastSend.
const (
	turnCommands = 32
	turnBytes    = 384 << 10
	leastSend    = turnBytes / 64
)

// takeMost is the number of requests that a queue that ends takes back in a poll.
const takeMost = 64

// hasTurn reports whether the queue may begin a command in this poll: it has turn left, and all
// queues together have not used up the budget of the poll.
func (q *queue) hasTurn() bool {
	if q.turnPoll != q.g.polls {
		q.turnPoll, q.turn = q.g.polls, turnBytes
	}
	return q.turn > 0 && q.g.mayBegin > 0
}

// beginWaiting gives a turn to queues with waiting capsules, up to the budget.
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
