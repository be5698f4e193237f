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

// prepares is a step after which Prepare of the handler asks for n bytes, with the segments.
func prepares(dir fabric.Direction, zeroCopy bool, segs ...mem.Segment) func(e env) {
	return func(e env) {
		e.f.prepare = func(r *fabric.Request) {
			r.Dir, r.Length, r.ZeroCopy, r.Segs = dir, 8, zeroCopy, segs
		}
	}
}

// executes is a step after which Execute of the handler completes the request with this CQE.
func executes(cqe func(e env, r *fabric.Request)) func(e env) {
	return func(e env) {
		e.f.execute = func(r *fabric.Request) {
			cqe(e, r)
			e.f.q.Complete(one(r))
		}
	}
}

func hostGave(n uint32) func(e env) { return func(e env) { e.r.HostLength = n } }

// violationSteps are the steps of testdata/violations.txt.
var violationSteps = map[string]func(e env){
	"prepare":        func(e env) { e.w.Prepare(one(e.r)) },
	"execute":        func(e env) { e.w.Execute(one(e.r)) },
	"abandon":        func(e env) { e.w.Abandon(e.r) },
	"end-zero-copy":  func(e env) { e.w.EndZeroCopy(e.r) },
	"close":          func(e env) { e.w.Close(e.s) },
	"close-stranger": func(e env) { e.w.Close(new(int)) },
	"reset":          func(e env) { e.r.Reset() },
	"host-gave-4":    hostGave(4), "host-gave-8": hostGave(8), "host-gave-16": hostGave(16),
	"has-length": func(e env) { e.r.Length = 4 },
	"in-capsule": func(e env) { e.r.InCapsule = true },
	"refused":    func(e env) { e.r.Status = nvme.InvalidField },
	"CID-0":      func(e env) { e.r.SQE.SetCID(0) },
	"connect":    func(e env) { e.r.SQE.Connect().Set(0, 31, 0, 0) },

	"attaches-1":         func(e env) { e.f.attach(1) },
	"attaches-2":         func(e env) { e.f.attach(2) },
	"wants-8":            prepares(fabric.HostToController, false),
	"wants-no-direction": prepares(fabric.NoData, false),
	"attaches-half":      prepares(fabric.ControllerToHost, true, mem.Segment{B: make([]byte, 4)}),
	"attaches-without-zero-copy": prepares(fabric.ControllerToHost, false,
		mem.Segment{B: make([]byte, 8)}),
	"changes-SQE": func(e env) { e.f.prepare = func(r *fabric.Request) { r.SQE[0]++ } },
	"refuses-with-data": func(e env) {
		e.f.prepare = func(r *fabric.Request) {
			r.Dir, r.Length, r.Status = fabric.HostToController, 8, nvme.InvalidField
		}
	},

	"holds":              func(e env) { e.f.execute = func(*fabric.Request) {} },
	"completes-twice":    executes(func(e env, r *fabric.Request) { e.f.complete(r) }),
	"completes-unfilled": executes(func(env, *fabric.Request) {}),
	"completes-another": executes(func(_ env, r *fabric.Request) {
		r.CQE.Fill(0, 0, r.SQE.CID()+1, 0)
	}),
	"forgets-refusal": executes(func(_ env, r *fabric.Request) {
		r.CQE.Fill(0, 0, r.SQE.CID(), nvme.Success)
	}),
	"completes-nothing": func(e env) { e.f.q.Complete(nil) },
	"depth-33":          func(e env) { _ = e.f.q.SetDepth(33, fabric.Allowed, fabric.Claim{}) },

	"has-2-segments": func(e env) { e.r.Segs = make([]mem.Segment, 2) },
	"hands-over":     func(e env) { e.f.free = e.f.q.HandOverBuffers(e.r) },
	"frees":          func(e env) { e.f.free() },
}
