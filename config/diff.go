package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
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
	Keys []KeyChange
	// Secrets: the object has secrets that are removed with it.
	Secrets bool
}

// KeyChange is a key with another value, or an entry that only one of two lists has.
type KeyChange struct {
	// Key is "reactors.count", "hosts" or "of.size": its path below the object.
	Key string
	// Old and New are the values as written in a file. Without a value they are the default, or ""
	// if the default cannot be written.
	Old, New string
	// Entry: New is added to the list, or Old is removed; the other one is "".
	Entry bool
	// Restart: the change needs a restart of the target.
	Restart bool
	// Storage: the key belongs to the storage of a namespace.
	Storage bool
	// Secret: the values are secrets, and hidden.
	Secret bool
}

// Diff returns the changes from running to wanted, in an order in which they can be applied. A
// removed object comes before its replacement. An object is added before the objects inside it, and
// removed after them.
func Diff(running, wanted Settings) (changes []Change) {
	was, is := running.byName(), wanted.byName()
	for _, o := range running.objects {
		if is[o.Object] == nil {
			secrets := slices.ContainsFunc(o.settings, func(s setting) bool { return s.secret })
			changes = append(changes, Change{Op: Remove, Object: o.Object, Secrets: secrets})
		}
	}
	for _, o := range wanted.objects {
		old := was[o.Object]
		switch {
		case old != nil:
		case o.Kind == KindFile:
			old = new(object)
		default:
			added := new(object).changes(&o)
			changes = append(changes, Change{Op: Add, Object: o.Object, Keys: added})
			continue
		}
		if keys := old.changes(&o); keys != nil {
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
	return slices.ContainsFunc(c.Keys, func(k KeyChange) bool { return k.Restart })
}

// ChangesSecret reports whether a secret is added, changed or removed.
func (c Change) ChangesSecret() bool {
	return c.Secrets || slices.ContainsFunc(c.Keys, func(k KeyChange) bool { return k.Secret })
}

// rank is the position of a change in the order. Changes of the same rank stay in the order of the
// files.
func (c *Change) rank(was map[Object]*object) int {
	type step struct {
		Op
		Kind
	}
	switch (step{c.Op, c.Kind}) {
	case step{Remove, KindListener}:
		return 0
	case step{Remove, KindNamespace}:
		return 1
	case step{Remove, KindSubsystem}:
		return 2
	case step{Add, KindHost}, step{Modify, KindHost}:
		return 2 // before the host may connect: it may have to authenticate
	case step{Modify, KindSubsystem}:
		return 3
	case step{Modify, KindNamespace}:
		return 4
	case step{Add, KindSubsystem}:
		return 5
	case step{Add, KindNamespace}:
		if was[Object{Kind: KindSubsystem, NQN: c.NQN}] == nil {
			return 5 // the subsystem is added, too
		}
		return 6
	case step{Modify, KindFile}:
		return 8
	}
	return 7
}

func (s Settings) byName() map[Object]*object {
	byName := map[Object]*object{}
	for i := range s.objects {
		byName[s.objects[i].Object] = &s.objects[i]
	}
	return byName
}

// settingID identifies the same setting in two objects.
type settingID struct{ key, entry string }

func (s *setting) id() settingID {
	if s.entry {
		return settingID{s.key, s.value}
	}
	return settingID{key: s.key}
}

// needsRestart reports whether a change of the setting of the running object needs a restart.
func (o *object) needsRestart(s *setting) bool { return s.restart || s.storage && o.volatile }

// changes returns the changes from the running object o to wanted.
func (o *object) changes(wanted *object) (out []KeyChange) {
	change := func(s *setting, from, to string) {
		out = append(out, KeyChange{
			Key: s.key, Old: from, New: to, Entry: s.entry, Restart: o.needsRestart(s),
			Storage: s.storage, Secret: s.secret,
		})
	}
	running := map[settingID]*setting{}
	for i := range o.settings {
		s := &o.settings[i]
		running[s.id()] = s
	}
	for i := range wanted.settings {
		s := &wanted.settings[i]
		old := running[s.id()]
		delete(running, s.id())
		switch {
		case old == nil:
			change(s, s.unset, s.value)
		case old.value != s.value:
			change(s, old.value, s.value)
		}
	}
	for i := range o.settings {
		if s := &o.settings[i]; running[s.id()] != nil {
			change(s, s.value, s.unset)
		}
	}
	return out
}

// Merge returns the part of the wanted configuration that a running target can apply without a
// restart: in objects of both, keys that need a restart keep their running values.
func Merge(running, wanted Settings) (merged Settings) {
	was := running.byName()
	for _, o := range wanted.objects {
		if old := was[o.Object]; old != nil {
			o.volatile = o.volatile || old.volatile
			o.settings = slices.DeleteFunc(slices.Clone(o.settings), func(s setting) bool {
				return old.needsRestart(&s)
			})
			for _, s := range old.settings {
				if old.needsRestart(&s) {
					o.settings = append(o.settings, s)
				}
			}
		}
		merged.objects = append(merged.objects, o)
	}
	return merged
}

// String is the object as in Change.String, "" for the file.
func (o Object) String() string {
	switch o.Kind {
	case KindListener:
		return "listener " + shown(o.Listener)
	case KindReferral:
		return "referral " + shown(o.Referral)
	case KindHost:
		return "host " + shown(o.NQN)
	case KindSubsystem:
		return "subsystem " + shown(o.NQN)
	case KindNamespace:
		return fmt.Sprintf("namespace %d of %s", o.NSID, shown(o.NQN))
	}
	return ""
}

// String is one line: "~ namespace 2 of nqn.2026-11.io.nvmf-target:disk0: read_only: false ->
// true".
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
			text += k.Key + ": " + shown(k.New)
		} else {
			text += k.String()
		}
	}
	return text
}

// String is "reactors.count: 2 -> 4 (needs a restart)" or "hosts: + NQN".
func (k KeyChange) String() string {
	text := shown(cmp.Or(k.Old, unset)) + " -> " + shown(cmp.Or(k.New, unset))
	switch {
	case k.Entry && k.Old == "":
		text = "+ " + shown(k.New)
	case k.Entry:
		text = "- " + shown(k.Old)
	}
	if text = k.Key + ": " + text; k.Restart {
		text += " (needs a restart)"
	}
	return text
}

// unset stands for a missing value.
const unset = "unset"

// shown returns text, in quotes if it would be unclear on a line without them.
func shown(text string) string {
	if quoted := strconv.Quote(text); quoted != `"`+text+`"` || text == "" {
		return quoted
	}
	return text
}
