package lang

import (
	"slices"
	"strings"
)

// Settings are the values of a mapping as text: its keys that are not at their defaults, in the
// order of the schema. They are immutable. The zero value has none.
type Settings struct {
	list []Setting
	// Volatile: keys for which Setting.Storage is set need a restart.
	Volatile bool
}

// Setting is a key that is not at its default, or one entry of an unordered list.
type Setting struct {
	key, value string
	// unset is the KeyChange value of a missing setting: the default, or "".
	unset string
	// written: the default can be written as a value.
	written bool
	// entry: value is one of several entries under this key.
	entry bool
	// restart and secret are as in KeyChange.
	restart, secret bool
	// Storage is as in KeyChange.
	Storage bool
}

// SettingsOf returns the decoded settings of v, without the keys in but.
func SettingsOf(v Value, but ...string) (all Settings) {
	v.Flatten(&all, Setting{})
	all.list = slices.DeleteFunc(all.list, func(s Setting) bool {
		return slices.Contains(but, s.key)
	})
	return all
}

// Entries returns the decoded entries of the list at path, which leads through sections.
func Entries(keys []Key, path ...string) []Value {
	k := find(keys, path[0])
	if section, ok := k.Value.(Mapping); ok {
		return Entries(section, path[1:]...)
	}
	return k.Value.(interface{ entries() []Value }).entries()
}

// Secrets returns the keys that are secrets.
func (all Settings) Secrets() (keys []string) {
	for _, s := range all.list {
		if s.secret {
			keys = append(keys, s.key)
		}
	}
	return keys
}

// Flatten adds the settings of a key below outer.
func (k *Key) Flatten(all *Settings, outer Setting) {
	outer.key = join(outer.key, k.Name)
	outer.restart = outer.restart || k.Restart
	outer.secret = k.Secret
	outer.written = k.Required == "" && k.Default == ""
	k.Value.Flatten(all, outer)
}

func (m Mapping) Flatten(all *Settings, at Setting) {
	for _, k := range m {
		k.Flatten(all, at)
	}
}

func (s *scalar) Flatten(all *Settings, at Setting) {
	if at.value = s.get(); s.decoded && at.value != s.initial {
		if at.written {
			at.unset = s.initial
		}
		all.list = append(all.list, at)
	}
}

func (l *list[T]) Flatten(all *Settings, at Setting) {
	words := make([]string, len(l.values))
	for i, v := range l.values {
		words[i] = v.String()
	}
	if l.ordered {
		if at.value = "[" + strings.Join(words, ", ") + "]"; len(words) > 0 {
			all.list = append(all.list, at)
		}
		return
	}
	at.entry = true
	at.secret = at.secret || slices.ContainsFunc(l.values, hasSecret)
	for _, at.value = range words {
		all.list = append(all.list, at)
	}
}

// hasSecret reports whether an entry of a list has a secret.
func hasSecret(v Value) bool {
	m, _ := v.(Mapping)
	return slices.ContainsFunc(m, func(k Key) bool { return k.Secret && k.Value.String() != "" })
}
