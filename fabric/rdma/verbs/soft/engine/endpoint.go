package engine

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/list"
)

// An Endpoint is a queue pair. It embeds a Handle. The engine is held during all its methods. They
// must not block, and each does a bounded amount of work.
type Endpoint interface {
	// Receive takes one packet to the endpoint. p and h are valid during the call. Run follows once
	// for all packets of a batch.
	Receive(p *wire.Packet, h *packet.Header)
	// Run sends due packets, at most a share of a batch. It returns true if there is more to send;
	// the engine then runs it again after the other endpoints, and after Alloc returned nil when
	// the socket takes packets. Run follows Receive, Schedule, Kick and Expire.
	Run() (again bool)
	// Expire is called when the time set with SetDeadline has passed; the deadline is then stopped.
	Expire()

	handle() *Handle
}

// A Handle connects an endpoint to its engine. It is embedded in the endpoint, one for one life:
// from Attach to Detach.
type Handle struct {
	engine *Engine
	ep     Endpoint
	qpn    uint32
	alive  bool // between Attach and Detach

	kicked   atomic.Bool // on or about to be on kicks
	kick     list.Node[Handle]
	turn     list.Node[Handle] // on the engine's queue
	wait     list.Node[Handle] // in reads
	at       time.Duration     // the deadline, 0 if none
	deadline list.Place        // in deadlines
}

func (h *Handle) handle() *Handle { return h }

// Attach gives the endpoint a random queue pair number of this engine (crypto/rand) and delivers
// packets to it. Engine held. ENOMEM if the device has too many.
func (e *Engine) Attach(ep Endpoint) (qpn uint32, err error) {
	if e.dev.qps.Add(1) > int32(e.dev.attr.MaxQP) {
		e.dev.qps.Add(-1)
		return 0, fmt.Errorf("create queue pair: %s has at most %d: %w", e.dev.attr.Name,
			e.dev.attr.MaxQP, unix.ENOMEM)
	}
	for qpn = e.randomQPN(); e.endpoints[qpn] != nil; qpn = e.randomQPN() {
	}
	h := ep.handle()
	h.engine, h.ep, h.qpn, h.alive = e, ep, qpn, true
	e.endpoints[qpn] = h
	e.deadlines.Reserve(len(e.endpoints) + 1) // and reads
	return qpn, nil
}

// Queue pairs 0 and 1 belong to management, and the last number is the destination of multicasts.
const (
	firstQPN = wire.CMQPN + 1
	lastQPN  = packet.PSNMask - 1
)

// randomQPN draws a queue pair number. Its upper bits choose the engine.
func (e *Engine) randomQPN() uint32 {
	n := len(e.dev.engines)
	for {
		var b [4]byte
		_, _ = rand.Read(b[:]) // never fails
		qpn := binary.NativeEndian.Uint32(b[:]) & packet.PSNMask
		const low = 1<<24/wire.MaxEngines - 1
		upper := int(qpn/(low+1))/n*n + e.index // the nearest one of this engine
		if qpn = uint32(upper)*(low+1) + qpn&low; upper < wire.MaxEngines && qpn >= firstQPN &&
			qpn <= lastQPN {
			return qpn
		}
	}
}

// Detach ends the delivery of packets and every other call of the endpoint's methods. Engine held.
func (e *Engine) Detach(qpn uint32) {
	h := e.endpoints[qpn]
	if h == nil {
		return
	}
	delete(e.endpoints, qpn)
	e.dev.qps.Add(-1)
	h.alive = false
	if h.turn.Listed() {
		e.queue.Remove(&h.turn)
	}
	e.ForgetReads(h)
	e.deadlines.remove(h)
}

// Schedule runs the endpoint in this turn, or in the next ones if many run or it is running now.
// Engine held.
func (e *Engine) Schedule(h *Handle) {
	if h.alive && !h.turn.Listed() {
		e.queue.Push(h, &h.turn)
	}
}

// Kick runs the endpoint: in this goroutine if nobody holds the engine, otherwise in the holder's
// before it leaves. It does not wait for that. Any goroutine may call it after Attach. Data that
// the caller has published before with atomic operations is visible to Run.
func (h *Handle) Kick() {
	if h.kicked.Swap(true) {
		return // the goroutine that set it has not run the endpoint yet
	}
	h.engine.kicks.Push(h, &h.kick)
	h.engine.enter(maxTurns, false)
}

// SetDeadline calls the endpoint's Expire at a time of Now, or somewhat later. Zero stops the
// deadline. A later time than the last one, and zero, cost nothing; an earlier one costs the
// logarithm of the number of endpoints. Engine held.
func (e *Engine) SetDeadline(h *Handle, at time.Duration) {
	if h.alive {
		e.deadlines.set(h, at)
	}
}
