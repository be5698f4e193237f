package target

import (
	"context"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
)

// Sent implements fabric.Handler.
func (h *Handler) Sent(r *fabric.Request) {
	c := r.Command.(*cmd)
	c.s.trace.Sent(r, c.traced)
	if c.latency == nil {
		return
	}
	total := c.latency.Add(r)
	if total >= observe.WatchdogAfter {
		c.s.watchdog(total)
	}
	if slow := h.t.slowIO.Load(); slow != 0 && total >= slow {
		c.logSlow(r, total)
	}
}

// SetSlowIO says from which time on a command is logged with its stages; 0 is never. It is limited
// as other lines that hosts cause.
func (t *Target) SetSlowIO(d time.Duration) { t.slowIO.Store(int64(d)) }

func (c *cmd) logSlow(r *fabric.Request, total int64) {
	spent := func(s fabric.Stage) time.Duration { return time.Duration(r.Stages[s]) }
	c.s.ctrl.PeerLog().Report(event.CommandSlow, "command", ioOps[r.SQE.Opcode()].name, "duration",
		time.Duration(total), "wait", spent(fabric.StageWait), "host_data",
		spent(fabric.StageHostData), "backend", spent(fabric.StageBackend), "response",
		spent(fabric.StageResponse), "subsystem", c.s.ctrl.sub.NQN, "nsid", r.SQE.NSID(), "host",
		c.s.ctrl.HostNQN, "qid", c.s.qid, "size", r.Length, "status", r.CQE.Status().String())
}

// Latencies lists the latencies of all reactors, see observe.Reader.
func (t *Target) Latencies(ctx context.Context) ([]observe.LatencyInfo, error) {
	var reactors []*observe.Latencies
	t.mu.Lock()
	for _, h := range t.handlers {
		reactors = append(reactors, &h.latency)
	}
	t.mu.Unlock()
	return t.latencies.Read(ctx, reactors)
}
