package disk

import (
	"errors"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestTell: each of many followers is told once, and no call tells more than tellBatch.
func TestTell(t *testing.T) {
	const followers = 1000
	err := errors.New("the flush failed")
	a := newActor()
	o := a.op(backend.OpFlush, 0, 0)
	o.err = err
	for range followers {
		f := a.op(backend.OpFlush, 0, 0)
		o.followers.Push(f, &f.node)
	}
	told := 0
	for o != nil {
		o.tell(shared)
		a.c.inbox.Take(&a.c.arrived)
		n := 0
		o = nil
		for f := a.c.arrived.Pop(); f != nil; f = a.c.arrived.Pop() {
			testutil.MustTrue(t, f.event == shared && f.err == err, "event %d, %v", f.event, f.err)
			n++
			o = f // the last one has the others
		}
		if told += n; n > tellBatch {
			t.Fatalf("one call tells %d", n)
		}
	}
	testutil.True(t, told == followers, "%d of %d were told", told, followers)
}
