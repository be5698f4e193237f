package config

import (
	"cmp"
	"slices"

	"github.com/nvmf-target/nvmf-target/config/lang"
)

// Op is an operation on an object.
type Op string

// The operations.
const (
	Add    Op = "add"
	Remove Op = "remove"
	Modify Op = "modify"
)

// Change describes the difference of one object.
type Change struct {
	Op Op
	Object
	// Keys are the keys that change, in the order of the schema. For Add they are the keys that are
	// not at their defaults; for Remove there are none. The keys that name the object are left out.
	Keys []lang.KeyChange
	// Secrets: the object has secrets that are removed with it.
	Secrets bool
}

// Diff returns the changes from running to wanted, in an order in which they can be applied: an
// object is removed before its replacement and before the object around it, and added after that.
func Diff(running, wanted Settings) (changes []Change) {
	was, is := running.byName(), wanted.byName()
	for _, o := range running.objects {
		if is[o.Object] == nil {
			changes = append(changes, Change{
				Op: Remove, Object: o.Object, Secrets: o.Secrets() != nil,
			})
		}
	}
	for _, o := range wanted.objects {
		old := was[o.Object]
		switch {
		case old != nil:
		case o.Kind == KindFile:
			old = new(object)
		default:
			added := lang.Settings{}.Changes(o.Settings)
			changes = append(changes, Change{Op: Add, Object: o.Object, Keys: added})
			continue
		}
		if keys := old.Changes(o.Settings); keys != nil {
			changes = append(changes, Change{Op: Modify, Object: o.Object, Keys: keys})
		}
	}
	slices.SortStableFunc(changes, func(a, b Change) int {
		return cmp.Compare(a.rank(was), b.rank(was))
	})
	return changes
}

// Restart reports whether part of the change needs a restart.
func (c Change) Restart() bool {
	return slices.ContainsFunc(c.Keys, func(k lang.KeyChange) bool { return k.Restart })
}

// ChangesSecret reports whether a secret is added, changed or removed.
func (c Change) ChangesSecret() bool {
	return c.Secrets || slices.ContainsFunc(c.Keys, func(k lang.KeyChange) bool { return k.Secret })
}

// step is an operation on a kind of object.
type step struct {
	Op
	Kind
}

// ranks has the positions of changes in the order; the others have 0.
var ranks = map[step]int{
	{Remove, KindListener}: -7, {Remove, KindNamespace}: -6, {Remove, KindSubsystem}: -5,
	// before the host may connect: it may have to authenticate
	{Add, KindHost}: -5, {Modify, KindHost}: -5,
	{Modify, KindSubsystem}: -4, {Modify, KindNamespace}: -3, {Add, KindSubsystem}: -2,
	{Add, KindNamespace}: -1, {Modify, KindFile}: 1,
}

// rank is the position of a change in the order. Equal changes stay in the order of the files.
func (c *Change) rank(was map[Object]*object) int {
	s := step{c.Op, c.Kind}
	if s == (step{Add, KindNamespace}) && was[Object{Kind: KindSubsystem, NQN: c.NQN}] == nil {
		s.Kind = KindSubsystem // which is added, too
	}
	return ranks[s]
}

func (s Settings) byName() map[Object]*object {
	byName := map[Object]*object{}
	for i := range s.objects {
		byName[s.objects[i].Object] = &s.objects[i]
	}
	return byName
}

// Merge returns the part of the wanted configuration that a running target can apply without a
// restart: keys that need a restart keep their running values in objects of both configurations.
func Merge(running, wanted Settings) (merged Settings) {
	was := running.byName()
	for _, o := range wanted.objects {
		if old := was[o.Object]; old != nil {
			o.Settings = old.Merge(o.Settings)
		}
		merged.objects = append(merged.objects, o)
	}
	return merged
}

// String is one line: "~ namespace 2 of nqn.2026-11.io.nvmf-target:disk0: read_only: false -> true"
func (c Change) String() string {
	text := map[Op]string{Add: "+ ", Remove: "- ", Modify: "~ "}[c.Op] + c.Object.String()
	for i, k := range c.Keys {
		switch {
		case i > 0:
			text += ", "
		case c.Kind != KindFile:
			text += ": "
		}
		if c.Op == Add {
			text += k.Key + ": " + lang.Quoted(k.New)
		} else {
			text += k.String()
		}
	}
	return text
}
