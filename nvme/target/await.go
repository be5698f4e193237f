package target

import "github.com/nvmf-target/nvmf-target/nvme/target/admin"

// awaiting is a command that waits for the answers of queries. Its owner is the reactor of the
// command; the end of its queue, or admin.AnswerWait, ends the wait.
type awaiting struct {
	admin.Waiter
	queries []admin.Asker
	left    int // answers that have not come
	then    func()
}

// await asks queries and calls then when all have answered, or admin.AnswerWait is over. A command
// that waits takes no goroutine.
func (h *Handler) await(c *cmd, queries []admin.Asker, then func()) {
	a := &awaiting{queries: queries, then: then}
	a.Answered = func() { h.post(func() { h.answered(c, a) }) }
	for _, q := range queries {
		if q.Request(&a.Waiter) {
			a.left++
		}
	}
	if a.left == 0 {
		then()
		return
	}
	c.awaiting = a
	h.awaiting.push(c)
}

func (h *Handler) answered(c *cmd, a *awaiting) {
	if c.awaiting != a {
		return // the wait has ended
	}
	if a.left--; a.left == 0 {
		h.endAwait(c)
	}
}

// endAwait ends the wait of a command with the answers that there are.
func (h *Handler) endAwait(c *cmd) {
	a := c.awaiting
	c.awaiting = nil
	h.awaiting.remove(c)
	for _, q := range a.queries {
		q.Leave(&a.Waiter)
	}
	a.then()
}
