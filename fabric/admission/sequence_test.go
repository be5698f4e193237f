package admission

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// sequence carries out a file of testdata/sequences.
type sequence struct {
	*counter
	conns map[string]*Conn
	words []string          // of the step
	keys  map[string]string // of the step
}

// TestSequences carries out testdata/sequences, described in testdata/README.md.
func TestSequences(t *testing.T) {
	datadriven.Walk(t, "testdata/sequences", func(t *testing.T, path string) {
		s := &sequence{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "limits" {
				var l Limits
				d.ScanArgs(t, "connections", &l.Connections)
				d.ScanArgs(t, "of-host", &l.PerHost)
				d.ScanArgs(t, "memory", &l.Memory)
				s = &sequence{counter: newCounter(t, l), conns: map[string]*Conn{}}
			}
			var out strings.Builder
			for line := range strings.Lines(d.Input) {
				line = strings.TrimSpace(line)
				fmt.Fprintf(&out, "%s: %s%s\n", line, s.step(line), s.gone())
			}
			return out.String()
		})
	})
}

// gone lists the connections that the last step has evicted.
func (s *sequence) gone() string {
	names := slices.Sorted(maps.Keys(s.evicted))
	clear(s.evicted)
	switch {
	case len(names) == 0:
		return ""
	case len(names) > 8:
		return fmt.Sprintf(", evicts %d", len(names))
	}
	return ", evicts " + strings.Join(names, " ")
}

// sequenceSteps are the steps that are carried out for each named connection.
var sequenceSteps = map[string]func(s *sequence, c *Conn) error{
	"associate": func(s *sequence, c *Conn) error { return s.associate(c, 0) },
	"charge":    func(s *sequence, c *Conn) error { return c.Charge(s.number("memory", 0)) },
	"leave":     func(_ *sequence, c *Conn) error { c.Leave(); return nil },
	"uncharge":  func(_ *sequence, c *Conn) error { c.Uncharge(); return nil },
	"end":       func(_ *sequence, c *Conn) error { c.Leave(); c.Uncharge(); return nil },
	"keep":      func(_ *sequence, c *Conn) error { c.Keep(); return nil },
	"hold":      func(_ *sequence, c *Conn) error { c.Hold(true); return nil },
	"release":   func(_ *sequence, c *Conn) error { c.Hold(false); return nil },
}

// step carries out one step and returns its result.
func (s *sequence) step(line string) string {
	s.words, s.keys = nil, map[string]string{}
	for _, w := range strings.Fields(line) {
		if key, value, ok := strings.Cut(w, "="); ok {
			s.keys[key] = value
		} else {
			s.words = append(s.words, w)
		}
	}
	ok := func(err error) string {
		if err != nil {
			return err.Error()
		}
		return "ok"
	}
	switch s.words[0] {
	case "admit", "connect":
		return s.open()
	case "charge-all":
		return ok(s.Charge(s.number("memory", 0)))
	case "uncharge-all":
		s.Uncharge(s.number("memory", 0))
	case "advance":
		s.clock = s.clock.Add(testutil.Value(time.ParseDuration(s.words[1]))(s.t))
	case "close":
		s.Close()
	case "empty":
		s.empty()
	case "known":
		all := s.named()
		known := 0
		for _, c := range all {
			if c.FromAllowed() {
				known++
			}
		}
		return fmt.Sprintf("%d of %d", known, len(all))
	case "usage":
		return fields(s.Usage())
	case "budget-of-known":
		b := &s.budgets[1][unassociated]
		return fmt.Sprintf("%d connections, %d bytes", b.connections, b.memory)
	default:
		do := sequenceSteps[s.words[0]]
		testutil.MustTrue(s.t, do != nil, "unknown step %s", line)
		for _, c := range s.named() {
			if err := do(s, c); err != nil {
				return err.Error()
			}
		}
	}
	return "ok"
}

// named returns the connections that the step names: NAME, or PREFIX*.
func (s *sequence) named() (list []*Conn) {
	prefix, several := strings.CutSuffix(s.words[1], "*")
	for _, name := range slices.Sorted(maps.Keys(s.conns)) {
		if name == s.words[1] || several && strings.HasPrefix(name, prefix) {
			list = append(list, s.conns[name])
		}
	}
	testutil.MustTrue(s.t, len(list) > 0, "there is no connection %s", s.words[1])
	return list
}

// fields lists the fields of a structure that are not 0.
func fields(v any) string {
	var list []string
	for i := range reflect.TypeOf(v).NumField() {
		if f := reflect.ValueOf(v).Field(i); !f.IsZero() {
			list = append(list, fmt.Sprint(reflect.TypeOf(v).Field(i).Name, " ", f))
		}
	}
	return strings.Join(list, ", ")
}

// open opens connections, until one is refused.
func (s *sequence) open() string {
	name, from := s.words[1], s.words[2]
	most := s.number("times", 1)
	for i := int64(0); i < most; i++ {
		one := name
		if most > 1 {
			one += fmt.Sprint(i)
		}
		c, err := s.Admit(s.address(from, i), s.number("memory", 0),
			func(error) { s.evicted[one] = true })
		if err == nil && s.words[0] == "connect" {
			if err = s.associate(c, i); err != nil {
				c.Leave()
				c.Uncharge()
			}
		}
		if err != nil && most > 1 {
			return fmt.Sprintf("%d, then %v", i, err)
		} else if err != nil {
			return err.Error()
		}
		s.conns[one] = c
		if slices.Contains(s.words, "shown") {
			c.Hold(true)
			c.Shown()
			c.Hold(false)
		}
	}
	return "ok"
}

// address returns the i-th address of ADDRESS*N, which stands for N addresses used in turn.
func (s *sequence) address(from string, i int64) netip.Addr {
	first, n, several := strings.Cut(from, "*")
	a := testutil.Value(netip.ParseAddr(first))(s.t)
	if several {
		b := a.AsSlice()
		i %= testutil.Value(strconv.ParseInt(n, 10, 64))(s.t)
		b[len(b)-2], b[len(b)-1] = b[len(b)-2]+byte(i>>8), b[len(b)-1]+byte(i)
		a, _ = netip.AddrFromSlice(b)
	}
	return a
}

func (s *sequence) associate(c *Conn, i int64) error {
	has := func(word string) bool { return slices.Contains(s.words, word) }
	host, n, several := strings.Cut(s.keys["host"], "%")
	if several {
		host += fmt.Sprint(i % testutil.Value(strconv.ParseInt(n, 10, 64))(s.t))
	}
	to := fabric.Allowed
	if has("discovery") {
		to = fabric.Discovery
	} else if has("unproven") {
		to = fabric.Unproven
	}
	return c.Associate(to, fabric.Claim{Host: host, Proven: has("proven"), Admin: has("admin")},
		s.number("more", 0))
}

// number returns the value of a key, in bytes, KiB or MiB.
func (s *sequence) number(key string, def int64) int64 {
	text, ok := s.keys[key]
	if !ok {
		return def
	}
	shift := 0
	for unit, n := range map[string]int{"KiB": 10, "MiB": 20} {
		if strings.HasSuffix(text, unit) {
			text, shift = strings.TrimSuffix(text, unit), n
		}
	}
	return testutil.Value(strconv.ParseInt(text, 10, 64))(s.t) << shift
}
