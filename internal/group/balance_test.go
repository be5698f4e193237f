package group

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

const (
	scaleGateways, scaleGroups = 3, 3
	scaleAfter                 = 2 // ticks
)

// place is what the records of all groups say. A gateway that has been killed is still in them.
type place struct {
	holder [scaleGroups]int
	births [scaleGateways]int
	hosts  [scaleGateways]string
}

// scale is a state of the model of Balance: gateways with groups. Each looks once a tick, at the
// records or at those of the tick before, and knows which groups it serves itself.
type scale struct {
	now      int
	place    // now
	before   place
	down     [scaleGateways]bool
	balances [scaleGateways]*Balance
	events   int // that are left
	eventAt  int
	changed  int // when a group has last got another holder
	fault    string
	trace    string
}

// tilt is a fault in the protocol that the model has to find.
type tilt int

const (
	level    tilt = iota
	anyHosts      // hosts do not matter
	noClaim       // the holder does not wait until the other one asks
	hasty         // one look is enough
)

// status returns the groups as gateways see them.
func (p *place) status(g int, wrong tilt) map[uint32]Status {
	all := map[uint32]Status{}
	for i, h := range p.holder {
		s := Status{Phase: phases[standby], Holder: string(rune('a' + h)), connected: p.hosts[g]}
		if h == g {
			s.Phase = phases[serving]
		}
		for x := range scaleGateways {
			name := string(rune('a' + x))
			f := Facts{Connected: p.hosts[x], Prefers: x == i}
			if wrong == anyHosts {
				f.Connected, s.connected = "all", "all"
			}
			s.Instances = append(s.Instances, Instance{
				ID: fmt.Sprint(name, p.births[x]), Gateway: name, Facts: f.bytes(),
			})
		}
		all[uint32(i+1)] = s
	}
	return all
}

func (b *Balance) clone() *Balance {
	c := *b
	c.since, c.yields, c.gave = maps.Clone(b.since), maps.Clone(b.yields), maps.Clone(b.gave)
	c.peers = map[string]*peer{}
	for name, p := range b.peers {
		q := *p
		c.peers[name] = &q
	}
	return &c
}

// key returns equal texts for states with equal futures.
func (s *scale) key() string {
	k := fmt.Sprint(s.place, s.before, s.down, s.events, s.now-s.eventAt < 3,
		min(s.now-s.changed, scaleAfter))
	for _, b := range s.balances {
		since := map[move]time.Duration{}
		for m, at := range b.since {
			since[m] = time.Duration(s.now) - at
		}
		k += fmt.Sprint(since, b.holders, b.yields, b.gave)
		for _, name := range slices.Sorted(maps.Keys(b.peers)) {
			p := b.peers[name]
			k += fmt.Sprint(name, p.instances, p.wait, p.faulty, p.lost)
		}
	}
	return k
}

// with returns a copy that has changed.
func (s *scale) with(step string, change func(*scale)) *scale {
	c := *s
	c.trace += "\n  " + step
	for g, b := range c.balances {
		c.balances[g] = b.clone()
	}
	change(&c)
	return &c
}

// next calls visit with all states that can follow.
func (s *scale) next(wrong tilt, visit func(*scale)) {
	for late := range 1 << scaleGateways {
		visit(s.with(fmt.Sprintf("%v, late %03b", s.place, late), func(c *scale) {
			c.tick(late, wrong)
		}))
	}
	if s.eventAt == s.now {
		return
	}
	for i, h := range s.holder {
		for heir := range scaleGateways {
			if s.down[h] && !s.down[heir] {
				visit(s.with(fmt.Sprintf("%c takes group %d over", 'a'+heir, i+1), func(c *scale) {
					c.holder[i], c.changed = heir, c.now
				}))
			}
		}
	}
	if s.events == 0 {
		return
	}
	event := func(step string, change func(*scale)) {
		visit(s.with(step, func(c *scale) {
			c.events--
			c.eventAt = c.now
			change(c)
		}))
	}
	for g := range scaleGateways {
		name := string(rune('a' + g))
		if s.down[g] {
			event(name+" starts", func(c *scale) {
				c.down[g] = false
				c.births[g]++
				c.balances[g] = NewBalance(name, scaleAfter)
			})
			continue
		}
		event("hosts leave "+name+" or come back", func(c *scale) {
			c.hosts[g] = strings.TrimPrefix("all", c.hosts[g])
		})
		event(name+" is killed", func(c *scale) { c.down[g] = true })
	}
}

// tick lets all gateways look and a tick pass.
func (s *scale) tick(late int, wrong tilt) {
	var wants [scaleGateways]uint32
	var yields [scaleGateways]map[uint32]string
	for g, b := range s.balances {
		if s.down[g] {
			continue
		}
		seen := s.place
		if late&(1<<g) != 0 {
			seen = s.before
			for i, h := range s.holder {
				if h == g || seen.holder[i] == g {
					seen.holder[i] = h
				}
			}
		}
		if wrong == hasty {
			b.after = 1
			for _, p := range b.peers {
				p.wait = 0
			}
		}
		wants[g], yields[g] = b.look(time.Duration(s.now), seen.status(g, wrong))
	}
	before := s.place
	for from := range yields {
		for id, to := range yields[from] {
			g := int(to[0] - 'a')
			asks := wants[g] == id && to == fmt.Sprint(string(to[0]), s.births[g])
			if s.holder[id-1] == from && (asks || wrong == noClaim) {
				s.move(int(id-1), from, g)
			}
		}
	}
	s.before = before
	s.now++
}

// move moves a group, and notes what is wrong with that. A gateway may not know of the last event.
func (s *scale) move(group, from, to int) {
	count := [scaleGateways]int{}
	for _, h := range s.holder {
		count[h]++
	}
	known := s.now-s.eventAt > 1
	switch {
	case known && s.down[to]:
		s.fault = "a group moves to a gateway that is down"
	case known && s.hosts[to] == "":
		s.fault = "a group moves to a gateway without hosts"
	case known && count[from] < count[to]+2:
		s.fault = "a group moves to a gateway that serves as many"
	case s.now-s.changed < scaleAfter:
		s.fault = "a group moves while others do"
	}
	s.holder[group], s.changed = to, s.now
}

// weigh visits up to most states that follow from one in which the first gateway serves all groups.
// It returns a fault with its trace, and whether groups have moved.
func weigh(wrong tilt, most int, begin func(*scale)) (fault string, moved bool) {
	first := &scale{events: 3, eventAt: -9, changed: -9}
	for g := range scaleGateways {
		first.balances[g] = NewBalance(string(rune('a'+g)), scaleAfter)
		first.hosts[g] = "all"
	}
	begin(first)
	first.before = first.place
	seen, queue := map[string]bool{first.key(): true}, []*scale{first}
	for len(queue) > 0 && fault == "" && len(seen) < most {
		s := queue[0]
		queue = queue[1:]
		s.next(wrong, func(c *scale) {
			if c.fault != "" {
				fault = c.fault + ":" + c.trace
			}
			moved = moved || c.holder != s.holder && c.down == s.down
			if k := c.key(); !seen[k] {
				seen[k] = true
				queue = append(queue, c)
			}
		})
	}
	return fault, moved
}

// TestBalanceModel: in all orders of looks, kills, starts and changes of hosts, groups move only
// between gateways that live, one after the other, to where their hosts are, and not back.
func TestBalanceModel(t *testing.T) {
	for wrong, begin := range map[tilt]func(*scale){
		hasty:    func(*scale) {},
		anyHosts: func(s *scale) { s.hosts[1], s.hosts[2] = "", "" },
		noClaim:  func(s *scale) { s.down[1], s.down[2] = true, true },
	} {
		fault, moved := weigh(level, 1000, begin)
		testutil.True(t, fault == "" && moved, "%d: moved %v, %s", wrong, moved, fault)
		fault, _ = weigh(wrong, 5000, begin)
		testutil.True(t, fault != "", "mutant %d is not found", wrong)
	}
	fault, moved := weigh(level, 300, func(s *scale) {
		s.holder[2], s.hosts[2], s.down[2], s.events = 1, "", true, 0
	})
	testutil.True(t, fault == "" && !moved, "two groups to one: %s", fault)
}

// scene has the records of three groups, which a serves, and looks of both gateways at them.
type scene struct {
	*testing.T
	p    place
	now  time.Duration
	a, b *Balance
}

func newScene(t *testing.T, after time.Duration) *scene {
	s := &scene{T: t, a: NewBalance("a", after), b: NewBalance("b", after)}
	for g := range s.p.hosts {
		s.p.hosts[g] = map[bool]string{true: "all"}[g < 2]
	}
	return s
}

// look returns what b asks for, and who may have that, or "".
func (s *scene) look() (uint32, string) {
	_, yields := s.a.look(s.now, s.p.status(0, level))
	wants, _ := s.b.look(s.now, s.p.status(1, level))
	return wants, yields[wants]
}

// moves lets time pass until b and a agree on the group that b prefers, and returns that time.
func (s *scene) moves() time.Duration {
	s.Helper()
	for seconds := range time.Duration(10_000) {
		if wants, to := s.look(); to != "" {
			testutil.Equal(s, fmt.Sprint(wants, to), fmt.Sprint("2b", s.p.births[1]), "the move")
			return seconds * time.Second
		}
		s.now += time.Second
	}
	s.Fatal("no move")
	return 0
}

// TestBackOff: a gateway that starts again and again, or loses a group that it got, waits longer
// each time but the first, up to half an hour. After an hour that is forgotten.
func TestBackOff(t *testing.T) {
	s := newScene(t, time.Minute)
	start := func() {
		s.p.births[1]++
		half := s.p.status(0, level)
		half[1].Instances[1].ID = "b of before" // a record tells of the start before the other one
		s.a.look(s.now, half)
	}
	for _, minutes := range []time.Duration{1, 1, 2, 4, 8, 16, 30, 30} {
		testutil.Equal(t, s.moves(), minutes*time.Minute, "the wait")
		start()
	}
	s.look()
	s.now += calm
	s.p.hosts[0] = "others"
	s.look()
	s.p.hosts[0] = "all"
	testutil.Equal(t, s.moves(), time.Minute, "the wait after an hour")
	start()
	testutil.Equal(t, s.moves(), time.Minute, "the wait after a start")
	s.p.holder[0], s.p.holder[1] = 1, 1
	s.look()
	s.p.holder[0] = 0
	s.look()
	s.p.holder[1] = 0
	testutil.Equal(t, s.moves(), 2*time.Minute, "the wait after a loss of two groups")
	start()
	s.b = NewBalance("b", time.Minute)
	testutil.Equal(t, s.moves(), 2*time.Minute, "the wait after the start that follows it")
	s.a.gave[1] = "gone" // nothing is known of it
	s.look()
}

// TestManyGroups: a look at 64 groups and gateways, none of which can move, decodes no facts that
// it has seen before.
func TestManyGroups(t *testing.T) {
	all := map[uint32]Status{}
	for id := range uint32(64) {
		s := Status{Phase: phases[serving], Holder: "0"}
		for g := range maxInstances {
			name := fmt.Sprint(g)
			s.Instances = append(s.Instances, Instance{
				ID: name, Gateway: name, Facts: (&Facts{Connected: name}).bytes(),
			})
		}
		all[id] = s
	}
	b := NewBalance("0", time.Minute)
	allocs := testutil.AllocsPerRun(1, func() { b.look(time.Hour, all) })
	testutil.True(t, allocs < 20_000, "%v allocations", allocs)
}

// TestDeadTarget: a gateway that is dead, but in all records, delays the turn of another one.
func TestDeadTarget(t *testing.T) {
	s := newScene(t, time.Minute)
	s.p.hosts[2] = "all"
	c := NewBalance("c", time.Minute)
	for minutes, asked := 0, false; !asked; s.now += time.Second {
		_, yields := s.a.look(s.now, s.p.status(0, level))
		wants, _ := c.look(s.now, s.p.status(2, level))
		asked = yields[wants] == "c0"
		minutes = int(s.now / time.Minute)
		testutil.MustTrue(t, minutes < 3, "c gets no group")
	}
}

// TestStays: no group moves while there is a reason against that.
func TestStays(t *testing.T) {
	s := newScene(t, time.Minute)
	s.moves()
	for reason, change := range map[string]func(*Status){
		"a group has no holder":       func(s *Status) { s.Holder = "" },
		"there is a problem":          func(s *Status) { s.Problem = "x" },
		"the settings differ":         func(s *Status) { s.Differences = []string{"x"} },
		"a group is being given away": func(s *Status) { s.Phase = phases[stopping] },
		"hosts have come or gone":     func(s *Status) { s.connected = "x" },
		"b does not take part in all": func(s *Status) { s.Instances = s.Instances[:1] },
		"nobody has hosts": func(s *Status) {
			for i := range s.Instances {
				s.Instances[i].Facts = nil
			}
		},
		"all are drained": func(s *Status) {
			for i := range s.Instances {
				s.Instances[i].Facts = (&Facts{Connected: "all", Drained: true}).bytes()
			}
		},
	} {
		for _, id := range []uint32{1, 2, 3} {
			all := s.p.status(0, level)
			one := all[id]
			change(&one)
			all[id] = one
			_, yields := s.a.clone().look(s.now, all)
			testutil.True(t, yields[id] == "", "%s: %v", reason, yields)
			if one.Holder == "" || len(one.Instances) == 1 || one.Phase == phases[stopping] {
				testutil.Equal(t, len(yields), 0, "%s: moves of other groups", reason)
			}
		}
	}
	s.p.holder[1] = 1 // two to one
	s.now += time.Hour
	s.look()
	s.now += time.Hour
	wants, to := s.look()
	testutil.True(t, wants == 0 && to == "", "%d to %q of a tie", wants, to)
	off := NewBalance("a", 0)
	off.Look(map[uint32]*Group{1: nil}, nil) // which are not looked at
}
