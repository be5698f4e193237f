package fabrictest

import (
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
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
