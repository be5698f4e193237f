package dispatch

import (
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
)

// Walk is a visit of commands, in pieces: of a queue that ends, or, for timeouts and fences, of all
// queues of a reactor. It does not visit commands that come meanwhile. Reactor only.
type Walk struct {
	// Next takes a step, see list.Pieces. Done is called after the last one.
	Next func() int
	Done func()
	node list.Node[Walk]
}

// Listed reports whether the walk waits or goes on. A round of a fence that goes on does not count.
func (w *Walk) Listed() bool { return w.node.Listed() }

// The kinds of walks.
const (
	ownWalk   = iota // the one for timeouts, and those of queues that end, or are to end
	fenceWalk        // the rounds of fences
	walkKinds
)

// walks are the walks of a reactor. They are one chain of pieces: however many there are, the
// reactor does a piece between two polls. Walks of a kind follow one another, hosts take turns at
// the rounds of fences, and the kinds take turns: preempts of one host delay neither the timeouts
// and queues of others, nor all of their preempts.
type walks struct {
	own   list.List[Walk]
	later list.Turns[subnet.Owner, Walk] // rounds of fences that have not begun
	round *Walk                          // the round that goes on
	turn  int                            // the kind that took the last step
	// checks is set while there are walks: each IO is checked before the device gets it, because a
	// walk may still have to visit its command and end it.
	checks bool
}

// Start begins a walk after earlier ones of its kind. The caller completes commands afterwards.
func (r *Channels) Start(w *Walk) {
	r.own.Push(w, &w.node)
	r.startWalks()
}

// startRound begins the round of a fence for a host, as Start does.
func (r *Channels) startRound(host subnet.Owner, w *Walk) {
	r.later.Push(host, w, &w.node)
	r.startWalks()
}

func (r *Channels) startWalks() {
	if r.checks {
		return
	}
	r.checks = true
	r.inPieces(r.walkOn, func() { r.checks = false })
}

// walkOn takes a step of the walk of the next kind.
func (r *Channels) walkOn() int {
	for range walkKinds {
		r.turn = (r.turn + 1) % walkKinds
		if r.round == nil {
			r.round = r.later.Pop()
		}
		w := r.round
		if r.turn == ownWalk {
			w = r.own.First()
		}
		if w == nil {
			continue
		}
		if n := w.Next(); n > 0 {
			return n
		}
		if r.turn == ownWalk {
			r.own.Remove(&w.node)
		} else {
			r.round = nil
		}
		w.Done()
		return 1
	}
	return 0
}
