package compound

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/nvme"
)

const (
	// mostSpare is how many compounds, of 6 KiB each, a reactor keeps for the next commands, and
	// mostCompounds how many there are at a time, but for the first of each owner.
	mostSpare     = 64
	mostCompounds = 512
	// resumeMost is how many postponed commands are executed at a time.
	resumeMost = 32
)

// Config has the parts of a reactor that a Pool uses.
type Config struct {
	// Now returns the time of the reactor in nanoseconds.
	Now func() int64
	// Post runs a function on the reactor.
	Post func(func())
	// Memory is the data memory of commands that read into memory of the target.
	Memory *mem.Pool
	// Resume executes a postponed command again.
	Resume func(*Postponed)
}

// Pool has the compounds of a reactor, and the owners of their work.
type Pool struct {
	Config
	free  list.List[Compound]
	spare int              // the number of these
	inUse int              // the number of others, but for the target's own
	reads int              // compounds that read into memory of the target
	turns list.List[Owner] // with work that waits for its turn
}

// NewPool makes the pool of a reactor.
func NewPool(cfg Config) *Pool { return &Pool{Config: cfg} }

// Idle reports whether no command of hosts has a compound or waits for one.
func (p *Pool) Idle() bool { return p.inUse == 0 && p.reads == 0 && p.turns.Empty() }

// Reading reports whether there are compounds that read into memory of the target. They wait for
// memory and for locks, also if no device has anything of them.
func (p *Pool) Reading() bool { return p.reads > 0 }

// Owner is the owner of compounds on one reactor: a host, or the network of some.
type Owner struct {
	compounds int                  // that count for it
	stuck     int                  // compounds that were given up, and that devices still have
	postponed list.List[Postponed] // until it may have another one
	resumes   bool                 // some of these are executed, or will be in a turn of their own

	flows list.List[Flow]  // with work that waits for its turn
	turn  list.Node[Owner] // in Pool.turns while there are any
	left  int64            // of its turn, in bytes
}

// Postponed is the place of a command that waits until its owner may have another compound. It is a
// field of the command.
type Postponed struct {
	// Command is the command.
	Command any
	node    list.Node[Postponed]
}

// Listed reports whether the command waits.
func (c *Postponed) Listed() bool { return c.node.Listed() }

// mayHave reports whether an owner may have another compound within its share. It may always have
// one besides its compounds of commands that were given up.
func (p *Pool) mayHave(o *Owner) bool {
	return o.compounds == o.stuck || !subnet.Exceeds(o.compounds, 1, mostCompounds-p.inUse-1)
}

// Postpones reports whether a command has to wait until its owner may have another compound.
func (p *Pool) Postpones(o *Owner, c *Postponed) bool {
	if p.mayHave(o) {
		return false
	}
	o.postponed.Push(c, &c.node)
	return true
}

// Withdraw ends the wait of a postponed command.
func (o *Owner) Withdraw(c *Postponed) { o.postponed.Remove(&c.node) }

// New returns a compound for a command of an owner, which may have it. Without an owner the command
// is the target's own. The caller fills it in and starts it.
func (p *Pool) New(c Command, o *Owner) *Compound {
	m := p.free.Pop()
	if m != nil {
		p.spare--
	} else {
		m = &Compound{pool: p, zero: zero{ranges: make([]backend.Range, 0, nvme.MaxDSMRanges)}}
		for i := range m.ios {
			io := &m.ios[i]
			io.Owner, io.Compound = io, m
			m.idle.Push(io, &io.node)
		}
	}
	m.Command = c
	if o != nil {
		m.owner = o
		o.compounds++
		p.inUse++
	}
	return m
}

// release ends the use of a compound by its owner.
func (p *Pool) release(o *Owner) {
	o.compounds--
	p.inUse--
	p.resume(o)
}

// resume executes some postponed commands of an owner, if it may have a compound.
func (p *Pool) resume(o *Owner) {
	if o.resumes {
		return
	}
	o.resumes = true
	for n := 0; !o.postponed.Empty() && p.mayHave(o); n++ {
		if n == resumeMost { // they have failed at once
			p.Post(func() {
				o.resumes = false
				p.resume(o)
			})
			return
		}
		p.Resume(o.postponed.Pop())
	}
	o.resumes = false
}
