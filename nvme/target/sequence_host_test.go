package target

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// hostCommand is a command that a host sends: to its first I/O queue, or to its admin queue.
type hostCommand struct {
	io   bool
	nsid uint64
	make func(a *arguments) *fabrictest.Command
	show func(s *sequence, a *arguments, c *fabrictest.Command) string // of one that succeeds
}

// hostCommands are the commands of hosts in sequences. The first argument is always the host.
var hostCommands = map[string]hostCommand{
	"identify":    {make: makeIdentify, show: showIdentify},
	"log":         {nsid: uint64(nvme.NSIDAll), make: makeLog, show: showLog},
	"get-feature": {make: makeGetFeature, show: showFeature},
	"set-feature": {make: makeSetFeature, show: showFeature},
	"self-test": {make: func(a *arguments) *fabrictest.Command {
		return selfTestCommand(nvme.SelfTestCode(a.named(1, map[string]uint64{
			"short": 1, "extended": 2, "abort": 0xF,
		})), 0)
	}},
	"keep-alive":    {make: plain(nvme.AdminKeepAlive)},
	"async-event":   {make: plain(nvme.AdminAsyncEventReq)},
	"admin-command": {make: makeOther, show: showValue},
	"io-command":    {io: true, nsid: 1, make: makeOther},
	"get-property": {make: func(a *arguments) *fabrictest.Command {
		return propertyGetCommand(nvme.PropertyOffset(a.named(1, propertyNames)))
	}, show: func(_ *sequence, _ *arguments, c *fabrictest.Command) string {
		return fmt.Sprintf(" value=%#x", c.CQE.Result())
	}},
	"set-property": {make: func(a *arguments) *fabrictest.Command {
		return propertySetCommand(nvme.PropertyOffset(a.named(1, propertyNames)),
			a.number("value", 0))
	}},
	"mark": {io: true, nsid: 1, make: makeRW(nvme.NVMWriteUncorrectable, false)},
	"fabrics-command": {make: func(a *arguments) *fabrictest.Command {
		return &fabrictest.Command{SQE: fabricsCommand(nvme.FabricsType(a.number("type", 0)))}
	}},
	"read":    {io: true, nsid: 1, make: makeRW(nvme.NVMRead, true), show: showData},
	"write":   {io: true, nsid: 1, make: makeRW(nvme.NVMWrite, true)},
	"compare": {io: true, nsid: 1, make: makeRW(nvme.NVMCompare, true)},
	"verify":  {io: true, nsid: 1, make: makeRW(nvme.NVMVerify, false)},
	"zeroes":  {io: true, nsid: 1, make: makeRW(nvme.NVMWriteZeroes, false)},
	"flush":   {io: true, nsid: 1, make: plain(nvme.NVMFlush)},
	"deallocate": {io: true, nsid: 1, make: func(a *arguments) *fabrictest.Command {
		ranges := a.ranges("lba", "blocks")
		return dsm(1, !a.flag("advice"), ranges...)
	}},
	"copy": {io: true, nsid: 1, make: func(a *arguments) *fabrictest.Command {
		var list []source
		from, format := a.list("from"), nvme.CopyRanges
		for i, r := range a.ranges("lba", "blocks") {
			nsid := uint64(0)
			if from != nil { // one for each range, or the same for all
				nsid, format = a.value(from[i%len(from)]), nvme.CopyNamespaces
			}
			list = append(list, source{uint32(nsid), r[0], uint32(r[1])})
		}
		format = nvme.CopyFormat(a.number("format", uint64(format)))
		return copyTo(a.number("to", 8), format, list...)
	}},
	"register": {io: true, nsid: 1, make: makeReservation(nvme.IOReservationRegister)},
	"acquire":  {io: true, nsid: 1, make: makeReservation(nvme.IOReservationAcquire)},
	"release":  {io: true, nsid: 1, make: makeReservation(nvme.IOReservationRelease)},
	"report":   {io: true, nsid: 1, make: makeReport, show: showReport},
}

// showValue shows DW0 if it is not 0.
func showValue(_ *sequence, _ *arguments, c *fabrictest.Command) string {
	return strings.TrimPrefix(fmt.Sprintf(" value=%#x", c.CQE.DW0()), " value=0x0")
}

func plain(op nvme.Opcode) func(*arguments) *fabrictest.Command {
	return func(*arguments) *fabrictest.Command { return command(op, 0, nil) }
}

// connect connects a host: its queues, and the controller, which it enables.
func (s *sequence) connect(a *arguments) string {
	name := a.word(0)
	c := adminArgs(subNamed(a.text("subsystem", "")))
	c.host, c.hostID = hostNamed(a.text("host", name)), [16]byte{}
	copy(c.hostID[:], a.text("id", a.text("host", name)))
	c.kato, c.recfmt = uint32(a.number("kato", 0)), uint16(a.number("recfmt", 0))
	c.sqsize = uint16(a.number("sqsize", uint64(c.sqsize)))
	c.cntlid = uint16(a.number("cntlid", uint64(c.cntlid)))
	switch nqn := a.text("nqn", c.host); nqn {
	case "none":
		c.host = ""
	default:
		c.host = nqn
	}
	switch nqn := a.text("subnqn", c.sub); {
	case nqn == "none":
		c.sub = ""
	case nqn == "upper-case":
		c.sub = strings.ToUpper(c.sub)
	case nqn == "224-bytes":
		c.sub += strings.Repeat("x", 224-len(c.sub))
	default:
		c.sub = nqn
	}
	if a.flag("no-id") {
		c.hostID = [16]byte{}
	}
	qi := info(nvme.TransportTCP)
	qi.PortID = uint16(a.number("port", 1))
	qi.Local = a.address("local", testLocal.String())
	qi.Remote = a.address("remote", testPeer.String())
	qi.MSDBD = int(a.number("sgls", uint64(qi.MSDBD)))
	qi.InCapsuleSize = int(a.number("in-capsule", uint64(qi.InCapsuleSize)))
	if a.text("transport", "tcp") == "rdma" {
		qi.Transport = nvme.TransportRDMA
	}
	qi.TLS = a.tls()
	hint := a.flag("hint")
	h := &host{r: s.r, args: c, info: qi, admin: s.r.dialInfo(0, qi)}
	if a.flag("unconnected") {
		s.hosts[name] = h
		return "no controller"
	}
	cmd := c.command()
	a.alter(cmd)
	controllers := len(s.r.target.Controllers())
	if out := s.connected(h.admin, cmd, true); out != "" {
		if n := len(s.r.target.Controllers()); n != controllers {
			out += ", but there is a controller"
		}
		if a.text("again", "") != "" { // the queue of a refused Connect may try again
			c = adminArgs(testSub)
			c.host, c.hostID = hostNamed(name), testHostID
			if again := s.connected(h.admin, c.command(), true); again != "" {
				out += ", and again " + again
			}
		}
		return out + s.hint(hint)
	}
	h.cntlid = nvme.ConnectResult(cmd.CQE.DW0()).CNTLID()
	s.hosts[name] = h
	unproven := nvme.ConnectResult(cmd.CQE.DW0())&nvme.ConnectATR != 0
	if !a.flag("disabled") && !unproven {
		s.r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	}
	for i := range a.number("queues", 0) {
		h.connectIO(int(i+1) % len(s.r.handlers))
	}
	out := fmt.Sprintf("controller %d", h.cntlid)
	if cmd.CQE.DW0() != uint32(nvme.MakeConnectResult(h.cntlid)) {
		out += ", has to authenticate"
	}
	return out
}

// connected sends a Connect, and returns the reason for its refusal. If noted is set, the target
// must have noted the expected and the received value, and a hint for the operator.
func (s *sequence) connected(q *fabrictest.Queue, c *fabrictest.Command, noted bool) string {
	before := s.r.recorder.Kinds()[event.ConnectRefused]
	s.r.do(q, c)
	st := c.CQE.Status() &^ nvme.More
	if st.OK() {
		return ""
	}
	s.r.refusals = before
	now := s.r.recorder.Kinds()[event.ConnectRefused]
	if noted && st != nvme.ConnectControllerBusy && now > before {
		s.r.wantRefusal()
	}
	if c.CQE.Result() == 0 {
		return st.String()
	}
	return fmt.Sprintf("%v, %v", st, nvme.InvalidParameter(c.CQE.Result()))
}

// hint is the advice of the log after the last refusal, if that is wanted.
func (s *sequence) hint(wanted bool) string {
	if !wanted {
		return ""
	}
	return "\n  hint: " + s.r.recorder.Refusals()[0].Hint
}

// connectQueue connects an I/O queue of a host.
func (s *sequence) connectQueue(a *arguments) string {
	h := s.host(a, 0)
	c := h.ioArgs(uint16(a.number("qid", uint64(len(h.io)+1))))
	c.cntlid = uint16(a.number("cntlid", uint64(c.cntlid)))
	c.cntlid += uint16(a.number("cntlid-plus", 0))
	c.sqsize = uint16(a.number("sqsize", uint64(c.sqsize)))
	c.sub = subNamed(a.text("subsystem", nameOf(c.sub)))
	if v := a.text("host", ""); v != "" {
		c.host = hostNamed(v)
	}
	if v := a.text("id", ""); v != "" {
		c.hostID = [16]byte{}
		copy(c.hostID[:], v)
	}
	if a.flag("no-id") {
		c.hostID = [16]byte{}
	}
	qi := h.info
	qi.PortID = uint16(a.number("port", uint64(qi.PortID)))
	qi.Remote = a.address("remote", qi.Remote.String())
	if a.text("transport", "") == "rdma" {
		qi.Transport = nvme.TransportRDMA
	}
	if a.text("private-qid", "") != "" {
		qi.QID = int(a.number("private-qid", 0))
		qi.CNTLID = uint16(a.number("private-cntlid", 0xFFFF))
	}
	q := s.r.dialInfo(len(s.r.handlers)-1, qi)
	if a.flag("no-resources") {
		q.RefuseDepth = errors.New("test")
	}
	cmd := c.command()
	hint := a.flag("hint")
	if out := s.connected(q, cmd, h.args.host != ""); out != "" {
		return out + s.hint(hint)
	}
	h.io = append(h.io, q)
	if nvme.ConnectResult(cmd.CQE.DW0())&nvme.ConnectATR != 0 {
		return "ok, has to authenticate"
	}
	return "ok"
}

// disconnect ends the connections of a host, or that of an I/O queue.
func (s *sequence) disconnect(a *arguments) string {
	h := s.host(a, 0)
	if n := a.number("queue", 0); n > 0 {
		h.io[n-1].HangUp()
		h.io = slices.Delete(h.io, int(n-1), int(n))
	} else {
		h.hangUp()
		delete(s.hosts, a.word(0))
	}
	if !a.flag("at-once") { // before other reactors know
		s.r.w.Settle()
	}
	return "ok"
}

// reset resets the controller of a host, and connects as many I/O queues as it had.
func (s *sequence) reset(a *arguments) string {
	h := s.host(a, 0)
	s.r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
	s.r.until("RDY is 0", func() bool { return !h.csts().RDY() })
	s.r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	n := len(h.io)
	h.io = nil
	for range n {
		h.connectIO(len(s.r.handlers) - 1)
	}
	return "ok"
}

// queues says which queues of a host are open.
func (s *sequence) queues(a *arguments) string {
	h := s.host(a, 0)
	s.r.w.Settle()
	var words []string
	for i, q := range append([]*fabrictest.Queue{h.admin}, h.io...) {
		name := map[bool]string{true: "admin", false: fmt.Sprint(i)}[i == 0]
		words = append(words, name+" "+map[bool]string{true: "closed", false: "open"}[q.Closed()])
		if a.flag("why") && q.Reason != nil {
			words[len(words)-1] += fmt.Sprintf(" (%v)", q.Reason)
		}
		if a.flag("peer") {
			words = append(words, peerText(q))
		}
		if a.flag("depth") {
			words = append(words, fmt.Sprintf("%d entries", q.Depth))
		}
	}
	return strings.Join(words, ", ")
}

// peerText tells how the target regards the peer of a queue.
func peerText(q *fabrictest.Queue) string {
	text := [...]string{
		fabric.Unproven: "unproven", fabric.Discovery: "discovery", fabric.Allowed: "allowed",
	}[q.Peer]
	if q.Claim.Proven {
		text += ", proven"
	}
	if q.Holds.Load() > 0 {
		text += map[bool]string{false: ", was held", true: ", is held"}[q.Held.Load()]
	}
	return text
}

// event returns the event that the host has got since the last time, and asks for the next one.
func (s *sequence) event(a *arguments) string {
	name, h := a.word(0), s.host(a, 0)
	s.r.settle()
	c, out := s.events[name], "none"
	if c != nil && !c.Done {
		return out
	}
	if c != nil {
		e := nvme.AsyncEvent(c.CQE.DW0())
		out = fmt.Sprintf("%v: %s", c.CQE.Status(), eventNames[e])
		if c.CQE.Status().OK() {
			out = cmp.Or(eventNames[e], fmt.Sprintf("event %#x", uint32(e)))
		}
	}
	s.events[name] = s.r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	s.r.w.Settle() // an event may have waited for the request
	return out
}

// alter changes a command that a host could not send by mistake.
func (a *arguments) alter(c *fabrictest.Command) {
	if n := int(a.number("bytes", uint64(len(c.Data)))); n <= len(c.Data) {
		c.Data = c.Data[:n]
	} else {
		c.Data = append(c.Data, make([]byte, n-len(c.Data))...)
	}
	c.InCapsule = c.InCapsule || a.flag("in-capsule")
	c.SQE.SetFlags(uint8(a.number("flags", uint64(c.SQE.Flags()))))
	for _, arg := range a.CmdArgs {
		var i int
		if n, _ := fmt.Sscanf(arg.Key, "dword%d", &i); n == 1 {
			c.SQE.SetCDW(i, uint32(a.number(arg.Key, 0)))
		}
		if n, _ := fmt.Sscanf(arg.Key, "byte%d", &i); n == 1 {
			c.SQE[i] = byte(a.number(arg.Key, 0))
		}
		if n, _ := fmt.Sscanf(arg.Key, "data%d", &i); n == 1 {
			v := arg.Vals[0]
			a.used[arg.Key] = true
			copy(c.Data[i:], bytes.Repeat([]byte{byte(a.value(v))}, int(a.number("times", 1))))
		}
	}
}

// newCommand makes the command of a host.
func (s *sequence) newCommand(a *arguments) (*fabrictest.Command, *fabrictest.Queue) {
	h, k := s.host(a, 0), hostCommands[a.Cmd]
	c := k.make(a)
	if c.SQE.Opcode() != nvme.FabricsOpcode {
		c.SQE.SetNSID(uint32(a.number("nsid", k.nsid)))
	}
	a.alter(c)
	if k.io == a.flag("other-queue") {
		return c, h.admin
	}
	q := int(a.number("queue", 1))
	if q > len(h.io) {
		a.Fatalf(a.t, "the host has no I/O queue %d", q)
	}
	return c, h.io[q-1]
}

// command sends a command of a host, once or several times, and shows how it completes.
func (s *sequence) command(a *arguments) string {
	var out string
	n := a.number("repeat", 1)
	for i := range n {
		c, q := s.newCommand(a)
		s.r.send(q, c)
		s.r.until("a command completes", func() bool {
			if s.r.delays() { // it is refused late
				s.r.w.Advance(time.Second)
			}
			return c.Done
		})
		if now := s.completion(a, c); i > 0 && now != out {
			return "different results"
		} else if out = now; a.text("keep", "") != "" {
			s.kept[a.text("keep", "")] = c.Data
		}
	}
	if n > 1 {
		out = fmt.Sprintf("%d times %s", n, out)
	}
	return out
}

// same compares the data of the first command with the data of the others, joined.
func (s *sequence) same(a *arguments) string {
	var rest []byte
	for i := range a.CmdArgs[1:] {
		rest = append(rest, s.kept[a.word(i+1)]...)
	}
	if bytes.Equal(s.kept[a.word(0)], rest) {
		return "the same"
	}
	return "different"
}

// delays reports whether a refusal waits.
func (r *harness) delays() bool {
	return slices.ContainsFunc(r.raw, func(h *Handler) bool { return !h.delayed.Empty() })
}

func (s *sequence) completion(a *arguments, c *fabrictest.Command) string {
	for _, key := range []string{ // for successful commands only
		"quiet", "fields", "entries", "header", "show", "results", "offset", "show-data",
		"zero-blocks",
	} {
		a.used[key] = true
	}
	if st := c.CQE.Status(); !st.OK() {
		s.failed = c.SQE.CID()
		out := (st &^ nvme.More).String()
		if st&nvme.More == 0 && c.SQE.Opcode() != nvme.FabricsOpcode {
			out += ", not in the error log"
		}
		if c.Returned > 0 {
			out += fmt.Sprintf(", but %d bytes", c.Returned)
		}
		if v := c.CQE.DW0(); v != 0 {
			out += fmt.Sprintf(" value=%#x", v)
		}
		return out
	}
	if show := hostCommands[a.Cmd].show; show != nil {
		return "ok" + show(s, a, c)
	}
	return "ok"
}

// batch sends the commands below it at once. Commands after "then" come afterwards, one by one.
func (s *sequence) batch(a *arguments) string {
	var out strings.Builder
	var lines, then []string
	var args []*arguments
	var sent []*fabrictest.Command
	var queue *fabrictest.Queue
	for line := range strings.SplitSeq(a.Input, "\n") {
		if late, ok := strings.CutPrefix(line, "then "); ok {
			then = append(then, late)
			continue
		}
		b := a.below(line, a.CmdArgs, nil)
		c, q := s.newCommand(b)
		lines, args, sent, queue = append(lines, line), append(args, b), append(sent, c), q
	}
	a.word(0)
	s.r.must(queue.Send(sent...))
	s.r.w.Settle()
	for i, c := range sent {
		how := "waits"
		if c.Done {
			how = s.completion(args[i], c)
		}
		fmt.Fprintf(&out, "%s: %s\n", lines[i], how)
	}
	for _, line := range then {
		fmt.Fprintf(&out, "%s: %s\n", line, s.one(a.below(line, a.CmdArgs, nil)))
	}
	return out.String()
}

// access shows which I/O commands hosts may send, as a table.
func (s *sequence) access(a *arguments) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-11s", "")
	for i := range a.CmdArgs {
		fmt.Fprintf(&b, "%-11s", a.word(i))
	}
	for _, name := range []string{
		"read", "compare", "verify", "write", "zeroes", "deallocate", "copy", "flush",
	} {
		fmt.Fprintf(&b, "\n%-11s", name)
		for i := range a.CmdArgs {
			one := &arguments{TestData: a.TestData, t: a.t, used: map[string]bool{}}
			c := hostCommands[name].make(one)
			c.SQE.SetNSID(1)
			s.r.do(s.host(a, i).io[0], c)
			word := map[nvme.Status]string{
				nvme.Success: "ok", reservationConflict: "conflict", writeProtected: "protected",
			}[c.CQE.Status()&^nvme.More]
			fmt.Fprintf(&b, "%-11s", cmp.Or(word, c.CQE.Status().String()))
		}
	}
	return trimLines(b.String())
}

func trimLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// hostBehavior enables Copy between namespaces.
func (s *sequence) hostBehavior(a *arguments) string {
	s.r.enableCopy(s.host(a, 0))
	return "ok"
}

// selfTestEnds lets time pass until a self-test has ended.
func (s *sequence) selfTestEnds(a *arguments) string {
	h := s.host(a, 0)
	sub, began := s.r.target.find(h.args.sub), s.r.w.Reactors[0].Now()
	t := &sub.lookup(h.cntlid).selfTest
	steps := 0
	s.r.until("the self-test ends", func() bool {
		if steps++; steps%50 == 0 || t.reading == 0 {
			s.r.w.Advance(time.Millisecond)
		}
		s.r.w.Reactors[0].Wake()
		return t.c.SelfTest.Code == 0
	})
	out := fields(h.selfTestLog().Results[0], nil)
	if a.flag("duration") {
		out += fmt.Sprintf(" after %d s", (s.r.w.Reactors[0].Now()-began)/1e9)
	}
	return strings.TrimSpace(out)
}

func makeOther(a *arguments) *fabrictest.Command {
	return command(nvme.Opcode(a.number("opcode", 0)), 0, make([]byte, a.number("bytes", 0)))
}

func makeIdentify(a *arguments) *fabrictest.Command {
	cns := nvme.CNS(a.named(1, cnsNames))
	c := identifyCommand(cns, 0)
	c.SQE.Identify().Set(cns, uint16(a.number("from", 0)), nvme.CSI(a.number("csi", 0)))
	if cns == nvme.CNSEnduranceGroups {
		binary.LittleEndian.PutUint16(c.SQE[44:], uint16(a.number("group", 0)))
	}
	return c
}

func makeLog(a *arguments) *fabrictest.Command {
	lid := nvme.LID(a.named(1, logNames))
	n := a.number("bytes", uint64(cmp.Or(logSizes[lid], 512)))
	c := logCommand(lid, int(n), 0)
	c.SQE.GetLog().Set(lid, a.number("numd-bytes", n), a.number("offset", 0),
		uint8(a.number("lsp", 0)), a.flag("retain"))
	if lsi := a.number("lsi", 0); lsi != 0 {
		binary.LittleEndian.PutUint16(c.SQE[46:], uint16(lsi))
	}
	return c
}

// featureValue is CDW11, of which temperature thresholds have a part for the sensor and its side.
func (a *arguments) featureValue() uint32 {
	return uint32(a.number("value", 0) | a.number("sensor", 0)<<16 | a.number("select", 0)<<20)
}

func makeGetFeature(a *arguments) *fabrictest.Command {
	fid := nvme.FID(a.named(1, featureNames))
	sel := nvme.FeatureSelect(a.number("sel", 0))
	for key, v := range map[string]nvme.FeatureSelect{
		"default": nvme.FeatureDefault, "saved": nvme.FeatureSaved,
		"capabilities": nvme.FeatureCapabilities,
	} {
		if a.flag(key) {
			sel = v
		}
	}
	c := getFeature(fid, sel, a.featureValue())
	c.Data = bytes.Repeat([]byte{0xAA}, int(a.number("bytes", 0)))
	return c
}

func makeSetFeature(a *arguments) *fabrictest.Command {
	c := setFeature(nvme.FID(a.named(1, featureNames)), a.featureValue())
	if a.flag("save") {
		c.SQE[43] |= 0x80
	}
	c.Data = make([]byte, a.number("bytes", 0))
	if v := a.number("fill", 0); v != 0 {
		c.Data = bytes.Repeat([]byte{byte(v)}, len(c.Data))
	}
	if len(c.Data) >= 8 && a.text("number", "") != "" {
		binary.LittleEndian.PutUint64(c.Data, a.number("number", 0))
	}
	return c
}

// ranges returns the ranges of ranges=(LBA+BLOCKS,...), several times if many is set. Without
// ranges it returns one, or as many as every says.
func (a *arguments) ranges(lba, blocks string) (list [][2]uint64) {
	for range a.number("many", 1) {
		for _, v := range a.list("ranges") {
			first, n, _ := strings.Cut(v, "+")
			list = append(list, [2]uint64{a.value(first), a.value(n)})
		}
	}
	if list != nil {
		return list
	}
	for i := range a.number("every", 1) {
		list = append(list, [2]uint64{a.number(lba, 0) + 4*i, a.number(blocks, 1)})
	}
	return list
}

func makeRW(op nvme.Opcode, data bool) func(a *arguments) *fabrictest.Command {
	return func(a *arguments) *fabrictest.Command {
		n := uint32(a.number("blocks", 1))
		c := rw(op, 0, a.number("lba", 0), n, nil)
		for name, f := range map[string]nvme.RWFlags{"fua": nvme.RWFUA, "free": nvme.RWDeallocate} {
			if a.flag(name) {
				c.SQE.SetCDW(12, c.SQE.CDW(12)|uint32(f))
			}
		}
		if data {
			fill := byte(a.number("fill", 0))
			size := a.number("bytes", uint64(n)*a.number("block", 512))
			c.Data = bytes.Repeat([]byte{fill}, int(size))
		}
		return c
	}
}

// makeReservation makes a Register, Acquire or Release.
func makeReservation(op nvme.Opcode) func(a *arguments) *fabrictest.Command {
	return func(a *arguments) *fabrictest.Command {
		c := resv(op, 0, 0, a.number("current", 0), a.number("key", 0))
		c.SQE.Reservation().Set(nvme.ReservationAction(a.number("action", 0)), a.flag("iekey"),
			nvme.ReservationType(a.number("type", 0)), nvme.ChangePTPL(a.number("cptpl", 0)))
		return c
	}
}

func makeReport(a *arguments) *fabrictest.Command {
	c := command(nvme.IOReservationReport, 0, make([]byte, a.number("bytes", 4096)))
	c.SQE.Reservation().SetReport(len(c.Data), !a.flag("no-eds"))
	if n := a.number("numd", 0); n != 0 {
		c.SQE.SetCDW(10, uint32(n))
	}
	return c
}
