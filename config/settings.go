package config

import (
	"slices"
	"strings"
)

// Settings is a configuration as text, for Diff: its objects with the keys that are not at their
// defaults. It is immutable. The zero value is an empty configuration.
type Settings struct {
	objects []object
}

// Settings returns the configuration as it was parsed.
func (c *Config) Settings() Settings { return c.settings }

// Kind is a kind of Object.
type Kind string

// The kinds of objects. KindFile has all keys outside of lists.
const (
	KindFile      Kind = "file"
	KindListener  Kind = "listener"
	KindHost      Kind = "host"
	KindSubsystem Kind = "subsystem"
	KindNamespace Kind = "namespace"
	KindReferral  Kind = "referral"
)

// Object names a part of a configuration. Objects of two configurations with the same name are the
// same object, wherever they are in the files.
type Object struct {
	Kind Kind
	// Listener is the Name of a listener, else "".
	Listener string
	// Referral is the Name of a referral, else "".
	Referral string
	// NQN is the NQN of a host, of a subsystem, or of the subsystem of a namespace, else "".
	NQN string
	// NSID is the NSID of a namespace, else 0.
	NSID uint32
}

// object is an Object with its settings, in the order of the schema.
type object struct {
	Object
	settings []setting
	// volatile: the content of the storage ends with the target.
	volatile bool
}

// setting is a key that is not at its default, or one entry of an unordered list.
type setting struct {
	key, value string
	// unset is the value in a KeyChange if the other configuration lacks the setting: the default,
	// or "".
	unset string
	// written: the default can be written as a value.
	written bool
	// entry: value is one of several entries under this key.
	entry bool
	// restart, storage and secret are as in KeyChange.
	restart, storage, secret bool
}

// flatten returns the settings that keys have decoded into c.
func (c *Config) flatten(keys []Key) (s Settings) {
	s.add(Object{Kind: KindFile}, Mapping(keys), includeKey, managedKey, "listeners", "hosts",
		"subsystems", "discovery.referrals")
	for i, v := range entriesOf(keys, "listeners") {
		s.add(Object{Kind: KindListener, Listener: c.Listeners[i].Name}, v,
			"transport", "address", "port")
	}
	for i, v := range entriesOf(section(keys, "discovery"), "referrals") {
		s.add(Object{Kind: KindReferral, Referral: c.Discovery.Referrals[i].Name()}, v,
			"transport", "address", "port", "nqn")
	}
	for i, v := range entriesOf(keys, "hosts") {
		s.add(Object{Kind: KindHost, NQN: c.Hosts[i].NQN}, v, "nqn")
	}
	for i, v := range entriesOf(keys, "subsystems") {
		sub := &c.Subsystems[i]
		s.add(Object{Kind: KindSubsystem, NQN: sub.NQN}, v, "nqn", "namespaces")
		for j, v := range entriesOf(v.(Mapping), "namespaces") {
			s.add(Object{Kind: KindNamespace, NQN: sub.NQN, NSID: sub.Namespaces[j].NSID}, v,
				"nsid")
		}
	}
	return s
}

// entriesOf returns the Values of the entries of the list called name.
func entriesOf(keys []Key, name string) []Value {
	i := slices.IndexFunc(keys, func(k Key) bool { return k.Name == name })
	return keys[i].Value.(interface{ decoded() []Value }).decoded()
}

// section returns the keys of a section.
func section(keys []Key, name string) []Key {
	i := slices.IndexFunc(keys, func(k Key) bool { return k.Name == name })
	return keys[i].Value.(Mapping)
}

// add adds an object with the settings of v, except the keys that name it or are objects.
func (s *Settings) add(name Object, v Value, but ...string) {
	o := object{Object: name}
	v.flatten(&o, setting{})
	o.settings = slices.DeleteFunc(o.settings, func(s setting) bool {
		return slices.Contains(but, s.key)
	})
	s.objects = append(s.objects, o)
}

// key adds the settings of a key below outer.
func (o *object) key(k Key, outer setting) {
	outer.key = join(outer.key, k.Name)
	outer.restart = outer.restart || k.Restart
	outer.secret = k.Secret
	outer.written = k.Required == "" && k.Default == ""
	k.Value.flatten(o, outer)
}

func (m Mapping) flatten(o *object, at setting) {
	for _, k := range m {
		o.key(k, at)
	}
}

func (s *scalar) flatten(o *object, at setting) {
	if at.value = s.get(); s.decoded && at.value != s.initial {
		if at.written {
			at.unset = s.initial
		}
		o.settings = append(o.settings, at)
	}
}

func (l *list[T]) flatten(o *object, at setting) {
	words := make([]string, len(l.values))
	for i, v := range l.values {
		words[i] = v.String()
	}
	if l.ordered {
		if at.value = "[" + strings.Join(words, ", ") + "]"; len(words) > 0 {
			o.settings = append(o.settings, at)
		}
		return
	}
	at.entry = true
	at.secret = at.secret || slices.ContainsFunc(l.values, hasSecret)
	for _, at.value = range words {
		o.settings = append(o.settings, at)
	}
}

// hasSecret reports whether an entry of a list has a secret.
func hasSecret(v Value) bool {
	m, _ := v.(Mapping)
	return slices.ContainsFunc(m, func(k Key) bool { return k.Secret && k.Value.String() != "" })
}

func (v *storageValue) flatten(o *object, at setting) {
	if v.backend != nil {
		o.volatile = v.backend.Volatile // the storage behind a wrapper comes later, and decides
	}
	for i, k := range v.keys {
		at.storage = at.storage || i >= len(v.common)
		o.key(k, at)
	}
}
