package target

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// sentCommand is a command that start has sent.
type sentCommand struct {
	*fabrictest.Command
	q *fabrictest.Queue
}

// begin sends a command, once or several times, or the commands below it at once, and does not wait
// for them. Its first argument is a name for await.
func (s *sequence) begin(a *arguments) string {
	name := a.word(0)
	all := []*arguments{a}
	if a.Input == "" {
		a.Cmd, a.CmdArgs = a.word(1), a.CmdArgs[2:]
	} else {
		all = nil
		for _, arg := range a.CmdArgs {
			a.used[arg.Key] = true
		}
		for line := range strings.SplitSeq(a.Input, "\n") {
			all = append(all, a.below(line, a.CmdArgs[1:], nil))
		}
	}
	s.sent[name] = nil
	var batch []*fabrictest.Command
	for _, a := range all {
		if hostCommands[a.Cmd].make == nil {
			a.Fatalf(a.t, "%s is not a command of a host", a.Cmd)
		}
		for range a.number("repeat", 1) {
			c, q := s.newCommand(a)
			c.Late = a.flag("late")
			batch = append(batch, c)
			s.sent[name] = append(s.sent[name], sentCommand{c, q})
		}
	}
	if s.sent[name][0].q.Closed() {
		return "the queue is closed"
	}
	s.r.must(s.sent[name][0].q.Send(batch...))
	s.r.w.Settle()
	s.changesMade()
	return s.progress(name)
}

// changesMade waits for the goroutines that change reservations, and for the reactors after them.
func (s *sequence) changesMade() {
	for _, sub := range *s.r.target.table.Load() {
		for _, ns := range sub.Namespaces.Load().List {
			made := make(chan struct{})
			ns.Reservations.Submit(&reservation.Change{
				Host: subnet.Owner{NQN: "test"}, Done: func(nvme.Status) { close(made) },
				Apply: func(*reservation.State) (reservation.Outcome, nvme.Status) {
					return reservation.Outcome{}, reservationConflict
				},
			})
			<-made
		}
	}
	s.r.w.Settle()
}

// progress tells which of the commands with a name are done.
func (s *sequence) progress(name string) string {
	all := s.sent[name]
	switch n := doneOf(commandsOf(all)); n {
	case 0:
		return "waits"
	case len(all):
		return "done"
	default:
		return fmt.Sprintf("%d of %d done", n, len(all))
	}
}

func commandsOf(all []sentCommand) (list []*fabrictest.Command) {
	for _, c := range all {
		list = append(list, c.Command)
	}
	return list
}

// await shows how the commands with a name complete, each of them if they differ.
func (s *sequence) await(a *arguments) string {
	all := s.sent[a.word(0)]
	if len(all) == 0 {
		a.Fatalf(a.t, "there is no command %s", a.word(0))
	}
	if a.flag("now") {
		return s.progress(a.word(0))
	} else if a.flag("returned") { // without completing, as its queue has ended
		s.r.w.Settle()
		for _, c := range all {
			if c.q.Outstanding() > 0 && (c.q.Closed() || !c.Done) {
				return "the queue still has it"
			}
		}
		if s.progress(a.word(0)) == "waits" {
			return "returned"
		}
		return s.progress(a.word(0))
	}
	var out []string
	for _, c := range all {
		s.r.until("the command completes", func() bool {
			if s.r.delays() { // it is refused late
				s.r.w.Advance(time.Second)
			}
			return c.Done
		})
		if !c.CQE.Status().OK() {
			s.failed = c.SQE.CID()
		}
		text := (c.CQE.Status() &^ nvme.More).String()
		if v := c.CQE.DW0(); v != 0 && !c.CQE.Status().OK() {
			text += fmt.Sprintf(" value=%#x", v)
		}
		out = append(out, text)
	}
	if len(slices.Compact(slices.Clone(out))) == 1 {
		return out[0]
	}
	return strings.Join(out, "\n")
}

// abort sends an Abort command for a command with a name, and tells whether that is aborted.
func (s *sequence) abort(a *arguments) string {
	h, c := s.host(a, 0), s.sent[a.word(1)][a.number("command", 1)-1]
	sqid := slices.Index(h.io, c.q) + 1
	done := s.r.ok(h.admin, abortCommand(uint16(sqid), c.SQE.CID())).CQE.DW0() == 0
	if done && !c.Done {
		return "aborted, but not done"
	}
	return map[bool]string{true: "aborted", false: "not aborted"}[done]
}

// arrive lets the data of commands arrive that were sent with "late".
func (s *sequence) arrive(a *arguments) string {
	for _, c := range s.sent[a.word(0)] {
		c.q.Arrive(c.Command)
	}
	s.r.w.Settle()
	return s.progress(a.word(0))
}

var deviceOps = map[string]backend.Op{
	"reads": backend.OpRead, "writes": backend.OpWrite, "flushes": backend.OpFlush,
	"zeroes": backend.OpWriteZeroes, "discards": backend.OpDiscard,
}

// delay lets a device hold IOs of a kind, or everything, from an offset or not, and take nothing
// more.
func (d *sequenceDevice) delay(a *arguments) {
	if w := a.text("hold", ""); w != "" {
		at, most := a.text("at", ""), int(a.number("most", 1<<20))
		off := int64(a.number("at", 0))
		d.Hold(func(io *backend.IO) bool {
			most--
			if w != "everything" && io.Op != deviceOps[w] || at != "" && io.Off != off {
				most++
				return false
			}
			return most >= 0
		})
	}
	if a.flag("full") {
		d.Full(true)
	}
	if a.flag("not-full") {
		d.Full(false)
	}
	if a.flag("release") {
		d.Release()
	}
}

// held tells how many IOs a device holds.
func (s *sequence) held(a *arguments) string { return fmt.Sprint(s.deviceOf(a).Held()) }

// left tells what there is: queues, controllers, bytes of data memory, and the IOs and barriers of
// channels.
func (s *sequence) left(*arguments) string {
	s.r.w.Settle()
	out := fmt.Sprintf("%d queues, %d controllers", s.r.target.Sessions(),
		len(s.r.target.Controllers()))
	bytes := 0
	for i, h := range s.r.raw {
		bytes += s.r.w.Reactors[i].Memory().Usage().Used
		for _, ch := range h.channels {
			if ch != nil && ch.State().Busy != (dispatch.State{}).Busy {
				out += fmt.Sprintf("\n  reactor %d:%s", i, fields(ch.State().Busy, nil))
			}
		}
	}
	return strings.Replace(out, " controllers", fmt.Sprintf(" controllers, %d bytes", bytes), 1)
}

// conditions shows which namespaces are ready, and how many of their commands were given up.
func (s *sequence) conditions(*arguments) string {
	var out []string
	for _, n := range s.r.target.Stats() {
		out = append(out, fmt.Sprintf("namespace %d: ready %t, timeouts %d, orphans %d, returns %d",
			n.NSID, n.Ready, n.Timeouts, n.Orphans, n.Returns))
	}
	return strings.Join(out, "\n")
}

// pause pauses a namespace, or ends that.
func (s *sequence) pause(a *arguments) string {
	change := s.r.target.PauseNamespace
	if a.Cmd == "resume" {
		change = s.r.target.ResumeNamespace
	}
	s.r.during(func() error { return change(testSub, uint32(a.number("nsid", 1))) })
	s.r.w.Settle()
	return "ok"
}

// end ends a controller: in one of the ways of the table, or by an operator.
func (s *sequence) end(a *arguments) string {
	h := s.host(a, 0)
	if by := a.text("by", ""); by == "operator" {
		from := map[bool]string{false: h.args.sub}[a.flag("everywhere")]
		n := s.r.target.DisconnectHost(h.args.host, from)
		s.r.w.Settle()
		return fmt.Sprintf("%d controllers", n)
	}
	ends[strings.ReplaceAll(a.text("by", ""), "-", " ")](s.r, h)
	if !a.flag("at-once") { // before reactors know
		s.r.w.Settle()
	}
	return "ok"
}

// markedBlocks shows the blocks of namespace 1 that the store of marks has.
func (s *sequence) markedBlocks(*arguments) string {
	return fmt.Sprintf("%v after %d changes", s.marks.blocks(), s.marks.calls)
}
