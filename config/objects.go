package config

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/config/lang"
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

// Object names a part of a configuration. Equal names in two files mean the same object.
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

// String is the object as in Change.String, "" for the file.
func (o Object) String() string {
	switch o.Kind {
	case KindListener:
		return "listener " + lang.Quoted(o.Listener)
	case KindReferral:
		return "referral " + lang.Quoted(o.Referral)
	case KindHost:
		return "host " + lang.Quoted(o.NQN)
	case KindSubsystem:
		return "subsystem " + lang.Quoted(o.NQN)
	case KindNamespace:
		return fmt.Sprintf("namespace %d of %s", o.NSID, lang.Quoted(o.NQN))
	}
	return ""
}

// object is an Object with its settings.
type object struct {
	Object
	lang.Settings
}

// flatten returns the settings that keys have decoded into c.
func (c *Config) flatten(keys []lang.Key) (s Settings) {
	s.add(Object{Kind: KindFile}, lang.Mapping(keys), "include", managedKey, "listeners", "hosts",
		"subsystems", "discovery.referrals")
	for i, v := range lang.Entries(keys, "listeners") {
		s.add(Object{Kind: KindListener, Listener: c.Listeners[i].Name}, v,
			"transport", "address", "port")
	}
	for i, v := range lang.Entries(keys, "discovery", "referrals") {
		s.add(Object{Kind: KindReferral, Referral: c.Discovery.Referrals[i].Name()}, v,
			"transport", "address", "port", "nqn")
	}
	for i, v := range lang.Entries(keys, "hosts") {
		s.add(Object{Kind: KindHost, NQN: c.Hosts[i].NQN}, v, "nqn")
	}
	for i, v := range lang.Entries(keys, "subsystems") {
		sub := &c.Subsystems[i]
		s.add(Object{Kind: KindSubsystem, NQN: sub.NQN}, v, "nqn", "namespaces")
		for j, v := range lang.Entries(v.(lang.Mapping), "namespaces") {
			s.add(Object{Kind: KindNamespace, NQN: sub.NQN, NSID: sub.Namespaces[j].NSID}, v,
				"nsid")
		}
	}
	return s
}

// add adds an object with the settings of v, except the keys that name it or are objects.
func (s *Settings) add(name Object, v lang.Value, but ...string) {
	s.objects = append(s.objects, object{name, lang.SettingsOf(v, but...)})
}
