package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

const (
	// traceEvery is how often reactors are asked for commands that a client follows.
	traceEvery = 100 * time.Millisecond
	// traceDir is the directory below that of the state with what the flight recorder had when the
	// target failed: maxTraces files, each written within traceLimit.
	traceDir   = "trace"
	maxTraces  = 4
	traceLimit = 5 * time.Second
)

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

// keepTrace writes what the flight recorder has of a worker to a file when its reactor has failed.
// The caller is the goroutine of the reactor, which may be about to end the process: this takes
// traceLimit at most.
func (s *Server) keepTrace(w *worker, reason string) {
	list := w.handler.FatalTrace(reason)
	if s.state.Dir() == "" || len(list) == 0 {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		dir := filepath.Join(s.state.Dir(), traceDir)
		path, err := writeTrace(dir, list)
		if err != nil {
			s.log.Error("the last commands were not kept", "err", err)
			return
		}
		s.log.Error("the last commands of the queues were kept", "reason", reason, "path", path,
			"hint", "nvmf-target trace --read shows them")
	}()
	select {
	case <-done:
	case <-time.After(traceLimit):
	}
}

// writeTrace writes a file, and deletes the oldest ones.
func writeTrace(dir string, list []*target.TraceQueue) (path string, err error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	for _, q := range list {
		if err := e.Encode(traceQueue(q)); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return "", err
	}
	slices.SortFunc(files, strings.Compare) // by time
	for len(files) >= maxTraces {
		err = errors.Join(err, os.Remove(files[0]))
		files = files[1:]
	}
	name := fmt.Sprintf("%s-%d.json", time.Now().UTC().Format("20060102T150405.000"),
		list[0].Reactor)
	path = filepath.Join(dir, name)
	return path, errors.Join(err, state.WriteFile(path, text.Bytes()))
}
