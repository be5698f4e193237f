package fabrictest

import (
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// env is the environment of a violation: a handler f, watched by w, a session of it, and a request
// of that session.
type env struct {
	f *faulty
	w fabric.Handler
	s fabric.Session
	r *fabric.Request
}

func one(r *fabric.Request) []*fabric.Request { return []*fabric.Request{r} }

// violations are all violations that the watcher detects, each with a part of its report.
var violations = []struct {
	name, want string
	run        func(e env)
}{
	{"nothing", "", func(e env) {
		e.w.Prepare(one(e.r))
		e.w.Execute(one(e.r))
		e.w.Close(e.s)
	}},
	{"Execute without Prepare", "Execute of command 7", func(e env) { e.w.Execute(one(e.r)) }},
	{"Prepare twice", "Prepare of command 7", func(e env) {
		e.w.Prepare(one(e.r))
		e.w.Prepare(one(e.r))
	}},
	{"Execute twice", "Execute of command 7", func(e env) {
		e.w.Prepare(one(e.r))
		e.w.Execute(one(e.r))
		e.w.Execute(one(e.r))
	}},
	{"Abandon of what executes", "Abandon of command 7", func(e env) {
		e.f.execute = func(*fabric.Request) {}
		e.w.Prepare(one(e.r))
		e.w.Execute(one(e.r))
		e.w.Abandon(e.r)
	}},
	{"Prepare after Close", "after Close", func(e env) {
		e.w.Close(e.s)
		e.w.Prepare(one(e.r))
	}},
	{"Close twice", "Close called twice", func(e env) {
		e.w.Close(e.s)
		e.w.Close(e.s)
	}},
	{"Close of a stranger", "Open did not return", func(e env) { e.w.Close(new(int)) }},
	{"memory that was not accepted", "not accepted", func(e env) {
		e.r.HostLength = 16
		e.f.attach(2)
		e.w.Prepare(one(e.r))
	}},
	{"EndZeroCopy before Execute", "which is prepared", func(e env) {
		e.r.HostLength = 8
		e.f.attach(1)
		e.w.Prepare(one(e.r))
		e.w.EndZeroCopy(e.r)
	}},
	{"EndZeroCopy twice", "a second one", func(e env) {
		e.r.HostLength = 8
		e.f.attach(1)
		e.w.Prepare(one(e.r))
		e.w.Abandon(e.r)
		e.w.EndZeroCopy(e.r)
		e.w.EndZeroCopy(e.r)
	}},
	{"no EndZeroCopy", "not ended", func(e env) {
		e.r.HostLength = 8
		e.f.attach(1)
		e.w.Prepare(one(e.r))
		e.w.Abandon(e.r)
		e.r.Reset()
		e.r.HostLength = 8
		e.w.Prepare(one(e.r))
	}},
	{"EndZeroCopy of nothing", "has no zero copy", func(e env) { e.w.EndZeroCopy(e.r) }},
	{"not reset", "was not reset", func(e env) {
		e.r.Length = 4
		e.w.Prepare(one(e.r))
	}},
	{"no memory", "0 bytes of memory for 8", func(e env) {
		e.r.HostLength = 8
		e.f.prepare = func(r *fabric.Request) { r.Dir, r.Length = fabric.HostToController, 8 }
		e.w.Prepare(one(e.r))
		e.w.Execute(one(e.r))
	}},
	{"SQE changed", "changed the SQE", func(e env) {
		e.f.prepare = func(r *fabric.Request) { r.SQE[0]++ }
		e.w.Prepare(one(e.r))
	}},
	{"refused with data", "and yet has data", func(e env) {
		e.r.HostLength = 8
		e.f.prepare = func(r *fabric.Request) {
			r.Dir, r.Length, r.Status = fabric.HostToController, 8, nvme.InvalidField
		}
		e.w.Prepare(one(e.r))
	}},
	{"more than the host gave", "the host gave 4", func(e env) {
		e.r.HostLength = 4
		e.f.prepare = func(r *fabric.Request) { r.Dir, r.Length = fabric.HostToController, 8 }
		e.w.Prepare(one(e.r))
	}},
	{"length without direction", "direction 0 and 8 bytes", func(e env) {
		e.r.HostLength = 8
		e.f.prepare = func(r *fabric.Request) { r.Length = 8 }
		e.w.Prepare(one(e.r))
	}},
	{"too little attached", "4 bytes attached, 8 wanted", func(e env) {
		e.r.HostLength = 8
		e.f.prepare = func(r *fabric.Request) {
			r.Dir, r.Length, r.ZeroCopy, r.Segs = fabric.ControllerToHost, 8, true,
				[]mem.Segment{{B: make([]byte, 4)}}
		}
		e.w.Prepare(one(e.r))
	}},
	{"zero copy of data in the capsule", "data in the capsule", func(e env) {
		e.r.HostLength, e.r.InCapsule = 8, true
		e.f.attach(1)
		e.w.Prepare(one(e.r))
	}},
	{"segments without zero copy", "without zero copy", func(e env) {
		e.r.HostLength = 8
		e.f.prepare = func(r *fabric.Request) {
			r.Dir, r.Length, r.Segs = fabric.ControllerToHost, 8,
				[]mem.Segment{{B: make([]byte, 8)}}
		}
		e.w.Prepare(one(e.r))
	}},
	{"completed twice", "Complete of command 7", func(e env) {
		e.f.execute = func(r *fabric.Request) {
			e.f.complete(r)
			e.f.complete(r)
		}
		e.w.Prepare(one(e.r))
		e.w.Execute(one(e.r))
	}},
	{"empty batch", "Complete of nothing", func(e env) { e.f.q.Complete(nil) }},
	{"CQE of another command", "names CID 8", func(e env) {
		e.f.execute = func(r *fabric.Request) {
			r.CQE.Fill(0, 0, r.SQE.CID()+1, 0)
			e.f.q.Complete(one(r))
		}
		e.w.Prepare(one(e.r))
		e.w.Execute(one(e.r))
	}},
	{"CQE not filled", "reserved bits", func(e env) {
		e.f.execute = func(r *fabric.Request) { e.f.q.Complete(one(r)) }
		e.r.SQE.SetCID(0)
		e.w.Prepare(one(e.r))
		e.w.Execute(one(e.r))
	}},
	{"refusal forgotten", "completed successfully", func(e env) {
		e.f.execute = func(r *fabric.Request) {
			r.CQE.Fill(0, 0, r.SQE.CID(), nvme.Success)
			e.f.q.Complete(one(r))
		}
		e.r.Status = nvme.InvalidField
		e.w.Prepare(one(e.r))
		e.w.Execute(one(e.r))
	}},
	{"Connect without depth", "without SetDepth", func(e env) {
		e.r.SQE.Connect().Set(0, 31, 0, 0)
		e.w.Prepare(one(e.r))
		e.w.Execute(one(e.r))
	}},
	{"depth too large", "SetDepth(33)", func(e env) {
		_ = e.f.q.SetDepth(33, fabric.Allowed, fabric.Claim{})
	}},
}

func newWorld(t *testing.T, n int) *World {
	w := testutil.Value(NewWorld(n))(t)
	t.Cleanup(func() { testutil.Check(t, w.Close()) })
	return w
}

// TestTimers: timers run in the order of their time on the virtual clock, on all reactors, and may
// be stopped.
func TestTimers(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.Reactors[0], w.Reactors[1]
	var got []int
	note := func(n int) func() { return func() { got = append(got, n) } }
	a.After(int64(3*time.Second), note(3))
	b.After(int64(time.Second), func() {
		note(1)()
		a.After(int64(time.Second), note(2)) // due within the same Advance
	})
	stop := a.After(int64(time.Second), note(99))
	a.After(int64(time.Hour), note(100))
	stop()
	stop()
	start := a.Now()
	w.Advance(3 * time.Second)
	if !slices.Equal(got, []int{1, 2, 3}) || b.Now()-start != int64(3*time.Second) ||
		a.Timers() != 1 {
		t.Errorf("ran %v, clock %v, %d timers", got, time.Duration(b.Now()-start), a.Timers())
	}
}

// TestUntil sleeps until another goroutine posts.
func TestUntil(t *testing.T) {
	w := newWorld(t, 1)
	done := false
	go w.Reactors[0].Post(func() { done = true })
	testutil.Check(t, w.Until(func() bool { return done }))
	testutil.True(t, !w.Step(), "there was more to do")
}

type counter struct{ polls, work int }

func (c *counter) Poll(int) int {
	c.polls++
	if c.work == 0 {
		return 0
	}
	c.work--
	return 1
}
func (c *counter) Arm() bool { return true }

// TestSettle polls as long as there is work.
func TestSettle(t *testing.T) {
	w := newWorld(t, 1)
	c := &counter{work: 5}
	w.Reactors[0].Attach(c)
	w.Settle()
	testutil.True(t, c.work == 0 && c.polls == 6, "%d polls, %d left", c.polls, c.work)
	testutil.True(t, w.Reactors[0].Watch(0, 0, nil) != nil,
		"a virtual reactor watches a descriptor")
}
