package target

import (
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
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
