package lang

import (
	"cmp"
	"strconv"
)

// KeyChange is a key with another value, or an entry that only one of two lists has.
type KeyChange struct {
	// Key is "reactors.count", "hosts" or "of.size": its path below the object.
	Key string
	// Old and New are the values as in a file, or the default, "" if that cannot be written.
	Old, New string
	// Entry: New is added to the list, or Old is removed; the other one is "".
	Entry bool
	// Restart: the change needs a restart of the program.
	Restart bool
	// Storage: the key belongs to data. It needs a restart if that ends; see Settings.Volatile.
	Storage bool
	// Secret: the values are secrets, and hidden.
	Secret bool
}

// settingID identifies the same setting in two objects.
type settingID struct{ key, entry string }

func (s *Setting) id() settingID {
	if s.entry {
		return settingID{s.key, s.value}
	}
	return settingID{key: s.key}
}

// needsRestart reports whether a change of the setting needs a restart; all are the running ones.
func (all *Settings) needsRestart(s *Setting) bool {
	return s.restart || s.Storage && all.Volatile
}

// Changes returns the changes from the running settings to wanted.
func (all Settings) Changes(wanted Settings) (out []KeyChange) {
	change := func(s *Setting, from, to string) {
		out = append(out, KeyChange{
			Key: s.key, Old: from, New: to, Entry: s.entry, Restart: all.needsRestart(s),
			Storage: s.Storage, Secret: s.secret,
		})
	}
	running := map[settingID]*Setting{}
	for i := range all.list {
		s := &all.list[i]
		running[s.id()] = s
	}
	for i := range wanted.list {
		s := &wanted.list[i]
		old := running[s.id()]
		delete(running, s.id())
		switch {
		case old == nil:
			change(s, s.unset, s.value)
		case old.value != s.value:
			change(s, old.value, s.value)
		}
	}
	for i := range all.list {
		if s := &all.list[i]; running[s.id()] != nil {
			change(s, s.value, s.unset)
		}
	}
	return out
}

// Merge returns the part of wanted that needs no restart; other keys keep their running values.
func (all Settings) Merge(wanted Settings) (merged Settings) {
	merged.Volatile = all.Volatile || wanted.Volatile
	for _, s := range wanted.list {
		if !all.needsRestart(&s) {
			merged.list = append(merged.list, s)
		}
	}
	for _, s := range all.list {
		if all.needsRestart(&s) {
			merged.list = append(merged.list, s)
		}
	}
	return merged
}

// String is "reactors.count: 2 -> 4 (needs a restart)" or "hosts: + NQN".
func (k KeyChange) String() string {
	text := Quoted(cmp.Or(k.Old, unset)) + " -> " + Quoted(cmp.Or(k.New, unset))
	switch {
	case k.Entry && k.Old == "":
		text = "+ " + Quoted(k.New)
	case k.Entry:
		text = "- " + Quoted(k.Old)
	}
	if text = k.Key + ": " + text; k.Restart {
		text += " (needs a restart)"
	}
	return text
}

// unset stands for a missing value.
const unset = "unset"

// Quoted returns text, in quotes if it would be unclear on a line without them.
func Quoted(text string) string {
	if quoted := strconv.Quote(text); quoted != `"`+text+`"` || text == "" {
		return quoted
	}
	return text
}
