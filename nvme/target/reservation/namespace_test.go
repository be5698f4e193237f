package reservation

import (
	"fmt"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestTurns: hosts take turns, for any number of changes that one of them asks for. The changes of
// one host are made in order.
func TestTurns(t *testing.T) {
	r := New(nil, "nqn", 1)
	entered, gate := make(chan struct{}), make(chan struct{})
	var order []int
	var left sync.WaitGroup
	submit := func(host, number int, before func()) *Change {
		left.Add(1)
		c := &Change{
			Host: subnet.Owner{NQN: fmt.Sprint(host)}, Done: func(nvme.Status) { left.Done() },
			Apply: func(*State) (Outcome, nvme.Status) {
				before()
				order = append(order, 10*host+number)
				return Outcome{}, conflict
			},
		}
		r.Submit(c)
		return c
	}
	submit(1, 0, func() { close(entered); <-gate })
	<-entered
	for i := range 4 {
		c := submit(1, i+1, func() {})
		if i == 1 {
			c.End()
			left.Done()
		}
	}
	submit(2, 1, func() {})
	submit(2, 2, func() {})
	c := submit(3, 1, func() {})
	submit(4, 1, func() {})
	c.End()
	left.Done()
	close(gate)
	left.Wait()
	testutil.EqualSlices(t, order, []int{10, 11, 21, 41, 13, 22, 14}, "")
	r.mu.Lock()
	defer r.mu.Unlock()
	testutil.True(t, r.changes.Empty(), "changes are left")
}
