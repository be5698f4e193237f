package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// slowChannel is a device that takes room IOs, and gives them back when they are due.
type slowChannel struct {
	backend.Channel
	room int
	most int // that Submit was offered, or Poll had room for, at once
	has  list.List[backend.IO]
	due  list.List[backend.IO]
}

func (c *slowChannel) Submit(ios []*backend.IO) int {
	c.most = max(c.most, len(ios))
	n := min(len(ios), c.room)
	c.room -= n
	for _, io := range ios[:n] {
		c.has.Push(io, &io.Node)
	}
	return n
}

func (c *slowChannel) Poll(done []*backend.IO) int {
	c.most = max(c.most, len(done))
	n := c.due.Fill(done)
	c.room += n
	return n
}

// TestChannelSteps: however many IOs wait for a device, or are back from it, a step handles
// batchSize of them, in order, and one is withdrawn without a look at the others.
func TestChannelSteps(t *testing.T) {
	const waiting, room = 1000, 200
	r := newHarness(t, 1, ramSubsystem(t, 1))
	q := r.connectHost(1).io[0]
	r.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	var ch *channel
	for _, h := range r.raw {
		for _, c := range h.channels {
			ch = c
		}
	}
	slow := &slowChannel{room: room}
	dev := ch.dev
	ch.dev = slow
	var ios []*backend.IO
	for i := range waiting {
		io := &backend.IO{Op: backend.OpRead, Off: int64(i) * 512, Len: 512}
		ios = append(ios, io)
		ch.add(io, &ch.pending)
	}
	for n := ch.push(); n > 0; n = ch.push() {
		testutil.MustTrue(t, n <= batchSize, "a step submits %d", n)
	}
	testutil.MustEqual(t, ch.inflight, room, "the device")
	visited := 0
	for range ch.sent.All() {
		visited++
	}
	testutil.True(t, visited == room, "%d IOs are looked at, the device has %d", visited, room)
	testutil.True(t, !ch.Withdraw(ios[0]) && ch.Withdraw(ios[room]) && !ch.Withdraw(ios[room]),
		"an IO of the device was withdrawn, or one that waits was not")
	next := 0
	for next < waiting {
		for io := slow.has.Pop(); io != nil; io = slow.has.Pop() {
			if next == room {
				next++
			}
			testutil.MustTrue(t, io == ios[next], "IO %d is not the next", next)
			next++
			slow.due.Push(io, &io.Node)
		}
		for n := ch.reap(); n > 0; n = ch.reap() {
			testutil.MustTrue(t, n <= batchSize, "a step takes %d back", n)
		}
		for ch.push() > 0 {
		}
	}
	for ch.reap() > 0 {
	}
	testutil.True(t, slow.most <= batchSize && ch.inflight == 0 && ch.sent.Empty() &&
		ch.pending.Empty(), "at most %d at once; %d are left", slow.most, ch.inflight)
	ch.dev = dev
}
