package target

import (
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// sequence executes the commands of a file of testdata/sequences.
type sequence struct {
	t        *testing.T
	reactors int
	r        *harness // made with the first command that needs it

	subs       map[string]*subsystems.Config
	devices    map[string]*sequenceDevice // by subsystem and NSID
	store      *memoryStore
	protection *protectionStore
	marks      *markStore

	hosts   map[string]*host
	events  map[string]*fabrictest.Command // that wait
	sent    map[string][]sentCommand       // by the name that start gave them
	kept    map[string][]byte              // returned data of commands, by name
	changed func()                         // ends a change of the configuration
	swap    *exchange                      // of the device of namespace 1
	failed  uint16                         // the CID of the last command that has failed
}

// TestSequences executes testdata/sequences/*.txt: each block is a command with its arguments and,
// below "----", its output. With -rewrite, the files get the output of the commands.
func TestSequences(t *testing.T) {
	datadriven.Walk(t, "testdata/sequences", func(t *testing.T, path string) {
		s := &sequence{
			t: t, reactors: 1, subs: map[string]*subsystems.Config{},
			devices: map[string]*sequenceDevice{}, hosts: map[string]*host{},
			events: map[string]*fabrictest.Command{}, sent: map[string][]sentCommand{},
			kept: map[string][]byte{},
		}
		t.Cleanup(s.closeDevices) // after the target
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			return s.execute(&arguments{TestData: d, t: t})
		})
	})
}

// execute executes one command. "each" executes the commands in the lines below it, with its own
// arguments added, once or several times. It prints the last output of each of them.
func (s *sequence) execute(a *arguments) string {
	a.t.Helper()
	if a.Cmd != "each" {
		return strings.TrimPrefix(s.one(a), "\n")
	}
	var words, values []datadriven.CmdArg
	times := a.number("times", 1)
	for _, arg := range a.CmdArgs {
		switch {
		case len(arg.Vals) == 0:
			words = append(words, arg)
		case arg.Key != "times":
			values = append(values, arg)
		}
	}
	var out string
	for range times {
		out = ""
		for line := range strings.Lines(a.Input) {
			line = strings.TrimSpace(line)
			out += line + ": " + s.one(a.below(line, words, values)) + "\n"
		}
	}
	return out
}

// below has the command of a line, between arguments of the command above it.
func (a *arguments) below(line string, words, values []datadriven.CmdArg) *arguments {
	d := &datadriven.TestData{Pos: a.Pos}
	var err error
	if d.Cmd, d.CmdArgs, err = datadriven.ParseLine(line); err != nil {
		a.Fatalf(a.t, "%v", err)
	}
	d.CmdArgs = slices.Concat(words, d.CmdArgs, values)
	return &arguments{TestData: d, t: a.t, used: map[string]bool{}, shared: values}
}

// one executes a command. With a range as argument it does so for each of the values, and prints
// equal output of several values once.
func (s *sequence) one(a *arguments) string {
	a.t.Helper()
	for i, arg := range a.CmdArgs {
		if word := arg.Key; strings.Contains(word, "..") {
			return s.each(a, word, func(args []datadriven.CmdArg, v string) { args[i].Key = v })
		}
		if len(arg.Vals) == 1 && strings.Contains(arg.Vals[0], "..") {
			return s.each(a, arg.Vals[0], func(args []datadriven.CmdArg, v string) {
				args[i].Vals = []string{v}
			})
		}
	}
	a.used = map[string]bool{}
	for _, arg := range a.shared {
		a.used[arg.Key] = true
	}
	run := steps[a.Cmd]
	if run == nil {
		a.Fatalf(a.t, "unknown command %s", a.Cmd)
	}
	if s.r == nil && a.Cmd != "target" {
		s.start()
	}
	out := run(s, a)
	for _, arg := range a.CmdArgs {
		if !a.used[arg.Key] {
			a.Fatalf(a.t, "unknown argument %s", arg)
		}
	}
	return out
}

// each executes a command for every value of a range such as 0x00..0xFF.
func (s *sequence) each(a *arguments, values string, set func(args []datadriven.CmdArg, v string),
) string {
	first, last, _ := strings.Cut(values, "..")
	format := map[bool]string{true: "%#02x", false: "%d"}[strings.HasPrefix(first, "0x")]
	var outputs []string
	found := map[string][][2]uint64{} // the values that have an output, as ranges
	for n := a.value(first); n <= a.value(last); n++ {
		d := *a.TestData
		d.CmdArgs = slices.Clone(d.CmdArgs)
		set(d.CmdArgs, fmt.Sprintf(format, n))
		out := s.one(&arguments{TestData: &d, t: a.t, shared: a.shared})
		l := found[out]
		switch {
		case l == nil:
			outputs = append(outputs, out)
			found[out] = [][2]uint64{{n, n}}
		case l[len(l)-1][1] == n-1:
			l[len(l)-1][1] = n
		default:
			found[out] = append(l, [2]uint64{n, n})
		}
	}
	if len(outputs) == 1 {
		return outputs[0]
	}
	var b strings.Builder
	for _, out := range outputs {
		var words []string
		for _, x := range found[out] {
			word := fmt.Sprintf(format, x[0])
			if x[1] > x[0] {
				word += ".." + fmt.Sprintf(format, x[1])
			}
			words = append(words, word)
		}
		fmt.Fprintf(&b, "\n  %s:%s", out, wrapWords(words))
	}
	return b.String()
}

// start makes a target, which goes on with the contents of the stores.
func (s *sequence) start() {
	s.r = newHarness(s.t, s.reactors)
	if s.store != nil {
		s.r.target.shared.Reservations = s.store
	}
	if s.protection != nil {
		s.r.target.shared.Protection = s.protection
	}
	if s.marks != nil {
		s.marks.wake = s.r.w.Reactors[0].Wake
		s.r.target.shared.Uncorrectable = s.marks
	}
}

// arguments are the arguments of a command. Every one of them must be used.
type arguments struct {
	*datadriven.TestData
	t      *testing.T
	used   map[string]bool
	shared []datadriven.CmdArg // arguments of each, not needed by all of its commands
}

// list has the values of an argument.
func (a *arguments) list(key string) []string {
	for _, arg := range a.CmdArgs {
		if arg.Key == key && len(arg.Vals) > 0 {
			if a.used != nil {
				a.used[key] = true
			}
			return arg.Vals
		}
	}
	return nil
}

// text is the value of an argument, or def without the argument.
func (a *arguments) text(key, def string) string {
	if l := a.list(key); l != nil {
		return strings.Join(l, ",")
	}
	return def
}

// number is the value of an argument, or def without the argument. Several values are combined.
func (a *arguments) number(key string, def uint64) uint64 {
	l := a.list(key)
	if l == nil {
		return def
	}
	var n uint64
	for _, v := range l {
		n |= a.value(v)
	}
	return n
}

// value is that of a name, or of a number such as 0x10, 4KiB, or 16EiB-4.
func (a *arguments) value(v string) uint64 {
	if n, known := sequenceNames[v]; known {
		return n
	}
	v, less, _ := strings.Cut(v, "-")
	shift := uint(0)
	for i, unit := range []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"} {
		if strings.HasSuffix(v, unit) {
			v, shift = strings.TrimSuffix(v, unit), 10*uint(i+1)
		}
	}
	n, ok := new(big.Int).SetString(v, 0)
	if !ok {
		a.Fatalf(a.t, "%q is not a number", v)
	}
	n.Lsh(n, shift)
	if less != "" {
		n.Sub(n, new(big.Int).SetUint64(a.value(less)))
	}
	if !n.IsUint64() {
		a.Fatalf(a.t, "%v has more than 64 bits", n)
	}
	return n.Uint64()
}

// flag reports whether an argument without a value is given.
func (a *arguments) flag(key string) bool {
	for _, arg := range a.CmdArgs {
		if arg.Key == key && len(arg.Vals) == 0 {
			a.used[key] = true
			return true
		}
	}
	return false
}

// word is argument i, which has no value.
func (a *arguments) word(i int) string {
	if i >= len(a.CmdArgs) || len(a.CmdArgs[i].Vals) > 0 {
		a.Fatalf(a.t, "argument %d of %s is missing", i+1, a.Cmd)
	}
	a.used[a.CmdArgs[i].Key] = true
	return a.CmdArgs[i].Key
}

// named is argument i: a name of the table, or a number.
func (a *arguments) named(i int, table map[string]uint64) uint64 {
	w := a.word(i)
	if n, known := table[w]; known {
		return n
	}
	n, err := strconv.ParseUint(w, 0, 64)
	if err != nil {
		a.Fatalf(a.t, "%q is neither a number nor known", w)
	}
	return n
}

func (a *arguments) address(key, def string) netip.AddrPort {
	v, err := netip.ParseAddrPort(a.text(key, def))
	if err != nil {
		a.Fatalf(a.t, "%v", err)
	}
	return v
}

// host is the host that argument i names.
func (s *sequence) host(a *arguments, i int) *host {
	h := s.hosts[a.word(i)]
	if h == nil {
		a.Fatalf(a.t, "there is no host %s", a.word(i))
	}
	return h
}

// hostNamed is the NQN of a host.
func hostNamed(name string) string { return "nqn.2026-11.io.nvmf-target.host:" + name }

// subNamed is the NQN of a subsystem: that of the tests has no name.
func subNamed(name string) string {
	switch {
	case name == "discovery":
		return nvme.DiscoveryNQN
	case name == "", name == "test":
		return testSub
	case strings.HasPrefix(name, "nqn."):
		return name
	default:
		return testSub + ":" + name
	}
}

// nameOf is a short form of an NQN, as the two functions above take it.
func nameOf(nqn string) string {
	switch {
	case nqn == nvme.DiscoveryNQN:
		return "discovery"
	case nqn == testSub:
		return "test"
	}
	return strings.TrimPrefix(strings.TrimPrefix(nqn, testSub+":"), hostNamed(""))
}

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
			c.Late, c.Lost = a.flag("late"), a.flag("lost")
			c.Malformed = nvme.Status(a.number("malformed", 0))
			c.Broken = nvme.Status(a.number("broken", 0))
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
	if a.flag("somehow") { // with statuses that depend on what comes first
		return "done"
	} else if len(slices.Compact(slices.Clone(out))) == 1 {
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

// conditions shows which namespaces are ready, and how many of their commands were given up, or the
// numbers of errors by reason.
func (s *sequence) conditions(a *arguments) string {
	var out []string
	for _, n := range s.r.target.Stats() {
		if a.flag("errors") {
			out = append(out, fmt.Sprint(n.Errors))
			continue
		}
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

// secrets are the keys of hosts and controllers in sequences.
var secrets = map[string]string{"own": hostSecret, "other": controllerSecret}

// policy sets the keys of a host, or takes them away with "none".
func (s *sequence) policy(a *arguments) string {
	if a.flag("none") {
		s.r.target.SetHostPolicy(hostNamed(a.word(0)), nil)
		return "ok"
	}
	p := &auth.Policy{
		Groups:         []auth.Group{auth.GroupNull},
		Reauthenticate: time.Duration(a.number("reauthenticate", 0)) * time.Second,
	}
	for _, name := range strings.Split(a.text("key", "own"), ",") {
		p.Keys = append(p.Keys, authKey(a.t, secrets[name]))
	}
	if name := a.text("controller-key", ""); name != "" {
		p.ControllerKey = authKey(a.t, secrets[name])
	}
	if a.flag("expired") {
		p.Until = time.Now().Add(-time.Second)
	}
	s.r.target.SetHostPolicy(hostNamed(a.word(0)), p)
	return "ok"
}

// enforceKeys ends the controllers of hosts that have no key any more where one is required.
func (s *sequence) enforceKeys(*arguments) string {
	s.r.target.EnforceKeys()
	s.r.settle()
	return "ok"
}

// authenticate runs an exchange on the admin queue of a host, or on an I/O queue, up to a message.
// The commands below it are sent before each message.
func (s *sequence) authenticate(a *arguments) string {
	h := s.host(a, 0)
	q := h.admin
	if n := a.number("queue", 0); n > 0 {
		q = h.io[n-1]
	}
	side := &auth.Host{
		HostNQN: h.args.host, SubNQN: h.args.sub, Key: authKey(a.t, secrets[a.text("key", "own")]),
	}
	if name := a.text("controller-key", ""); name != "" {
		side.ControllerKey = authKey(a.t, secrets[name])
	}
	var m []byte
	var err error
	last, out, between := a.text("until", ""), "ok", ""
	for _, message := range []struct {
		name string
		pass func()
	}{
		{"negotiate", func() { s.r.authSend(q, side.Negotiate(7)) }},
		{"challenge", func() { m, err = side.Challenged(s.r.authReceive(q)) }},
		{"reply", func() { s.r.authSend(q, m) }},
		{"success", func() { m, err = side.Succeeded(s.r.authReceive(q)) }},
		{"success2", func() { s.r.authSend(q, m) }},
	} {
		for line := range strings.Lines(a.Input) {
			line = strings.TrimSpace(line)
			between += fmt.Sprintf("before %s, %s: %s\n", message.name, line,
				s.one(a.below(line, []datadriven.CmdArg{{Key: a.word(0)}}, nil)))
		}
		if m == nil && message.name == "success2" {
			break
		}
		message.pass()
		if err != nil {
			if out = err.Error(); m != nil {
				s.r.authSend(q, m)
			}
			break
		}
		if message.name == last {
			out = "goes on"
			break
		}
	}
	s.r.w.Settle()
	return between + out
}

// authentications counts exchanges.
func (s *sequence) authentications(*arguments) string {
	n, failed := s.r.target.Authentications()
	return fmt.Sprintf("%d authentications, %d failed", n, failed)
}

// controllers lists controllers with their queues, and all connections.
func (s *sequence) controllers(*arguments) string {
	var out strings.Builder
	for _, c := range s.r.target.Controllers() {
		fmt.Fprintf(&out, "controller %d of %s: %d queues\n", c.CNTLID, nameOf(c.NQN), c.Queues)
	}
	for _, c := range s.r.connections() {
		fmt.Fprintf(&out, "connection of %q to %q: queue %d, %v\n", nameOf(c.Host),
			nameOf(c.Subsystem), c.QID, subsystems.SecurityOf(&c))
	}
	return out.String()
}

// tls is the TLS of a connection, for the names of a PSK identity.
func (a *arguments) tls() *fabric.TLS {
	host := a.text("tls-host", "")
	if host == "" {
		return nil
	}
	changed := a.flag("tls-changed") // since the handshake
	return &fabric.TLS{
		HostNQN: hostNamed(host), SubNQN: subNamed(a.text("tls-subsystem", "")),
		Cipher: "TLS_AES_128_GCM_SHA256", Counts: func() bool { return !changed },
	}
}
