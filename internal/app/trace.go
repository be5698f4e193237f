package app

import (
	"context"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// traceEvery is how often reactors are asked for commands that a client follows.
const traceEvery = 100 * time.Millisecond

// trace gives fn what the flight recorder has.
func (s *Server) trace(ctx context.Context, q control.TraceQuery,
	fn func(control.TraceQueue) error,
) error {
	f := target.TraceFilter{HostNQN: q.Host, SubNQN: q.Subsystem, QID: q.Queue}
	send := func(q *target.TraceQueue) error { return fn(traceQueue(q)) }
	if q.Dumps {
		for _, d := range s.target.TraceDumps(f) {
			if err := send(d); err != nil {
				return err
			}
		}
		return nil
	}
	t := s.target.NewTracer(f, q.Follow)
	for {
		if err := t.Read(ctx, send); err != nil || !q.Follow {
			return err
		}
		select {
		case <-time.After(traceEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func traceQueue(q *target.TraceQueue) control.TraceQueue {
	out := control.TraceQueue{
		Time: q.Time, Reason: q.Reason, ID: q.ID, Host: q.HostNQN, Subsystem: q.SubNQN,
		CNTLID: q.CNTLID, QID: q.QID, Reactor: q.Reactor, Transport: q.Transport.String(),
		Local: q.Local.String(), Remote: q.Remote.String(), Missed: q.Missed,
		Commands: make([]control.TraceCommand, len(q.Commands)),
	}
	for i := range q.Commands {
		out.Commands[i] = traceCommand(&q.Commands[i])
	}
	return out
}

func traceCommand(c *target.TraceCommand) control.TraceCommand {
	out := control.TraceCommand{
		Number: c.Number, State: c.State.String(), Start: c.Start, Command: c.Name,
		Opcode: uint16(c.Opcode), FabricsType: uint16(c.FabricsType), CID: c.CID, NSID: c.NSID,
		Length: c.Length, Fused: uint16(c.FUSE), FUA: c.FUA, Blocks: c.Blocks,
		WaitSeconds:     c.Stages[fabric.StageWait].Seconds(),
		HostDataSeconds: c.Stages[fabric.StageHostData].Seconds(),
		BackendSeconds:  c.Stages[fabric.StageBackend].Seconds(),
		ResponseSeconds: c.Stages[fabric.StageResponse].Seconds(),
	}
	if c.Blocks > 0 {
		out.LBA = c.CDW10
	} else {
		out.CDW10, out.CDW11, out.CDW12 = uint32(c.CDW10), uint32(c.CDW10>>32), c.CDW12
	}
	if c.State == target.TraceDone || c.State == target.TraceResponding {
		out.Status, out.StatusCode = traceStatus(c.Status), uint16(c.Status)
	}
	return out
}

func traceStatus(st nvme.Status) string {
	if st.OK() {
		return "success"
	}
	return st.String()
}
