package ram

import "github.com/nvmf-target/nvmf-target/backend"

// The path of a change that needs a frame when none is free, because its own frame is being read
// without a copy, or because readers have all others:
//
//	Submit              the channel waits (RetryGroup), tries once more, and keeps the change
//	StartZeroCopyWrite  refuses on every reactor; active channels empty their frame caches
//	EndZeroCopyRead     wakes all waiting channels, as does everything that frees frames
//	Poll                the channel tries again, in the order in which the changes came, some in
//	                    each Poll
//
// A change proceeds by frames and keeps its progress while it waits: only blocks are atomic.

// change makes one step of an IO that changes data.
func (c *channel) change(io *backend.IO) {
	how := c.step(io)
	if how == blocked {
		if c.retry.Wait(true) { // before the second try: from now on the channel is woken
			c.restart()
		}
		how = c.step(io)
	}
	c.put(io, how)
	if c.blocked.Empty() && c.again.Empty() && c.retry.Wait(false) {
		c.restart()
	}
}

// put puts an IO on the list for the outcome of its step.
func (c *channel) put(io *backend.IO, how outcome) {
	switch how {
	case finished:
		c.done.Push(io, &io.Node)
	case yielded:
		c.long.Push(io, &io.Node)
		c.wake() // nothing else signals the remaining work
	case blocked:
		c.blocked.Push(io, &io.Node)
		if c.searches() {
			c.wake()
		}
	}
}

func (c *channel) step(io *backend.IO) (how outcome) {
	if io.Op == backend.OpWrite {
		return c.write(io)
	}
	how, io.Err = c.zero(io)
	for how == yielded && io.Len <= stepBytes {
		how, io.Err = c.zero(io)
	}
	return how
}

const (
	// retryMost is the maximum number of changes that a Poll tries again, retryBytes the maximum of
	// their bytes.
	retryMost  = 16
	retryBytes = 2 * stepBytes
)

// retryBlocked tries some changes again. All have been tried before the first one has another turn.
func (c *channel) retryBlocked() {
	if c.again.Empty() {
		if c.retry.Take() {
			c.restart()
			c.again, c.blocked = c.blocked, c.again
		} else if c.searches() {
			c.tried = c.searched
			c.again, c.blocked = c.blocked, c.again
		}
	}
	at := c.searched
	n, bytes := 0, int64(0)
	for n < retryMost && bytes < retryBytes && c.searched == at && !c.again.Empty() {
		io := c.again.Pop()
		n, bytes = n+1, bytes+min(io.Len, stepBytes)
		c.change(io)
	}
}
