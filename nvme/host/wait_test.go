package host

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// slowCQ is a completion queue with one SEND in each of the next polls.
type slowCQ struct {
	verbs.CQ
	left, last int
}

func (c *slowCQ) ReqNotify() error { return nil }

func (c *slowCQ) Poll(wcs []verbs.WC) (int, error) {
	c.last = min(c.left, 1)
	c.left -= c.last
	wcs[0] = verbs.WC{}
	return c.last, nil
}

type noChannel struct{ verbs.CompChannel }

func (noChannel) FD() int             { return -1 } // poll ignores it
func (noChannel) Drain() (int, error) { return 0, nil }

// TestWaitPollsUntilNothing has completions that end no command. Wait polls until there is none
// before it sleeps, as verbs.CQ demands: a soft device may have an acknowledgment to send then.
func TestWaitPollsUntilNothing(t *testing.T) {
	c := &slowCQ{left: 3}
	l := &rdmaLink{cq: c, ch: noChannel{}, wakeFD: -1, state: make([]rdmaSlot, 1)}
	testutil.Must(t, l.wait(&Queue{}, -1, 0))
	testutil.True(t, c.left == 0 && c.last == 0, "%d completions are left, the last poll had %d",
		c.left, c.last)
}
