package config

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// Host has the settings of one host for all subsystems. It does not allow the host to connect.
type Host struct {
	NQN    string
	Limits qos.Limits
	Authentication
	// Networks are the networks from which the host may connect; empty means any.
	Networks []netip.Prefix
}

func (h *Host) value() lang.Value {
	return append(lang.Mapping{
		lang.NewKey("nqn", lang.Unique(nqn(&h.NQN, ""), "Write one entry for each host."),
			"NQN of the host (`cat /etc/nvme/hostnqn` on the host), of any form.").
			Require("Add it."),
		lang.NewKey("networks", lang.List(&h.Networks, 0, 256, func(n *netip.Prefix) lang.Value {
			return lang.Unique(network(n), "Delete one of the two.")
		}),
			"The networks from which it may connect, as in `10.0.0.0/24` or `10.0.0.7/32`. Set "+
				"it to refuse machines elsewhere that know the NQN; an address is no proof of "+
				"identity, either.").Without("any"),
		limitsKey(&h.Limits, "The host, in all subsystems together, gets no more than this."),
	}, h.Authentication.keys()...)
}

// hostList is a list of the NQNs of hosts.
func hostList(p *[]string) lang.Value {
	return lang.List(p, 0, 4096, func(h *string) lang.Value {
		return lang.Unique(nqn(h, ""), "Delete one of the two.")
	})
}

// Authentication is the proof of identity required of a host. The zero value requires none.
type Authentication struct {
	// Key is the host's, OldKey an earlier valid one, ControllerKey the controller's; nil: none.
	Key, OldKey, ControllerKey *auth.Key
	// The PSKs of TLS are derived from TLSKey, and from OldTLSKey while it is valid; nil: none.
	TLSKey, OldTLSKey *auth.TLSKey
	// OldUntil is the expiry of old keys, Until that of all keys of the host. Zero means never.
	OldUntil, Until time.Time
	// Reauthenticate is the lifetime of an authentication; 0 means unlimited.
	Reauthenticate time.Duration
	// Hashes and Groups are the allowed ones; empty means the defaults of auth.Policy.
	Hashes []auth.Hash
	Groups []auth.Group
}

// Policy returns the form that the target takes, nil if the host has no key.
func (a *Authentication) Policy() *auth.Policy {
	if a.Key == nil {
		return nil
	}
	p := &auth.Policy{
		Keys: []*auth.Key{a.Key}, ControllerKey: a.ControllerKey, Hashes: a.Hashes,
		Groups: a.Groups, Until: a.Until, Reauthenticate: a.Reauthenticate,
	}
	if a.OldKey != nil {
		p.Keys, p.OldUntil = append(p.Keys, a.OldKey), a.OldUntil
	}
	return p
}

// TLSKeys returns the TLS keys that are valid at the given time, nil if the host has none.
func (a *Authentication) TLSKeys(now time.Time) (keys []*auth.TLSKey) {
	if a.Expired(now) {
		return nil
	}
	if a.TLSKey != nil {
		keys = append(keys, a.TLSKey)
	}
	if a.OldTLSKey != nil && (a.OldUntil.IsZero() || now.Before(a.OldUntil)) {
		keys = append(keys, a.OldTLSKey)
	}
	return keys
}

// Expired reports whether all keys of the host have expired.
func (a *Authentication) Expired(now time.Time) bool {
	return !a.Until.IsZero() && !now.Before(a.Until)
}

func (a *Authentication) keys() []lang.Key {
	return []lang.Key{
		lang.NewKey("dhchap_key", chapKey(&a.Key),
			"Key with which the host has to authenticate (DH-HMAC-CHAP): `DHHC-1:...:`, as "+
				"`nvmf-target key gen` makes it and `nvme connect --dhchap-secret` takes it. Set "+
				"it when the NQN is not proof enough of a host's identity.").
			Without("none").OrSecretFile(),
		lang.NewKey("dhchap_old_key", chapKey(&a.OldKey),
			"A key that is valid as well. Set it to the previous key while the host changes over "+
				"to another `dhchap_key`.").Without("none").OrSecretFile(),
		lang.NewKey("dhchap_ctrl_key", chapKey(&a.ControllerKey),
			"Key with which the target authenticates itself to the host, if the host asks for "+
				"it (`nvme connect --dhchap-ctrl-secret`). Set it when the host must be sure "+
				"that it is this target.").Without("none").OrSecretFile(),
		lang.NewKey("dhchap_hash", preferences(&a.Hashes, auth.AllHashes),
			"The hash functions that the host may use, in order of preference. Set it when only "+
				"some are acceptable.").Without("all, the cheapest first"),
		lang.NewKey("dhchap_dhgroup", preferences(&a.Groups, auth.AllGroups),
			"The Diffie-Hellman groups that the host may use, in order of preference. Set it "+
				"when only some are acceptable, or for hosts that support no other: the larger "+
				"ones cost much CPU time, even if strangers choose them, and `\"null\"`, in "+
				"quotes, protects less.").
			Without("ffdhe2048, ffdhe3072"),
		lang.NewKey("tls_key", tlsKey(&a.TLSKey),
			"Key from which the PSKs of TLS are derived, for all subsystems: "+
				"`NVMeTLSkey-1:...:`, as `nvmf-target key gen --tls` makes it. `nvme "+
				"check-tls-key --insert` puts it into the keyring of the host. The host can use "+
				"TLS on listeners with `tls`, and where that is `required` no other host can "+
				"claim its NQN. Set it when the data of hosts must be encrypted on the network.").
			Without("none").OrSecretFile(),
		lang.NewKey("tls_old_key", tlsKey(&a.OldTLSKey),
			"A key that is valid as well. Set it to the previous key while the host changes over "+
				"to another `tls_key`.").Without("none").OrSecretFile(),
		lang.NewKey("old_keys_until", moment(&a.OldUntil),
			"When `dhchap_old_key` and `tls_old_key` expire. Connected hosts stay connected. "+
				"Set it so that nobody has to remember to delete the old keys.").Without("never"),
		lang.NewKey("keys_until", moment(&a.Until),
			"When all keys of the host expire. Then the host stays connected until it loses its "+
				"connection, and cannot connect again. `check` and the log warn 30 days before. "+
				"Set it where keys must not be used for longer.").Without("never"),
		lang.NewKey("reauthenticate", lang.Duration(&a.Reauthenticate, MinReauthenticate,
			MaxReauthenticate),
			"How long an authentication is valid. After that, the next read or write of the "+
				"host is refused once, so that the host authenticates again. It is disconnected "+
				"unless it does so within a minute of its next command of any kind. Linux does, "+
				"but not with dm-multipath. Set it when keys that were replaced or have expired "+
				"must end connections.").Without("for ever"),
	}
}

// preferences is a list of some of all, the first choice first.
func preferences[T interface {
	comparable
	fmt.Stringer
}](p *[]T, all []T) lang.Value {
	return lang.Sequence(p, 1, len(all), func(one *T) lang.Value {
		return lang.Unique(lang.Words(one, all), "Once is enough.")
	})
}

// The bounds of Reauthenticate. Hosts have a minute to reauthenticate.
const (
	MinReauthenticate = 10 * time.Second
	MaxReauthenticate = 365 * 24 * time.Hour
)

// moment is an expiry time. A date means the end of that day, in UTC.
func moment(p *time.Time) lang.Value {
	rules := lang.Schema{
		"type":    "string",
		"pattern": `^\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d))?$`,
	}
	return lang.Scalar("a date or time", "date or time", rules,
		func() string {
			if p.IsZero() {
				return ""
			}
			return p.UTC().Format(time.RFC3339)
		},
		func(n *yaml.Node) (what, hint string) {
			for _, layout := range []string{time.DateOnly, time.RFC3339} {
				if t, err := time.Parse(layout, n.Value); err == nil {
					if *p = t; layout == time.DateOnly {
						*p = t.AddDate(0, 0, 1)
					}
					return "", ""
				}
			}
			return lang.Printable(n.Value) + " is not a date or time",
				"Write it as 2027-01-31 (the end of that day, UTC) or 2027-01-31T18:00:00+01:00."
		})
}

// hidingKey makes the placeholders of secrets useless outside this process.
var hidingKey = func() []byte {
	b := make([]byte, 32)
	rand.Read(b) // never fails
	return b
}()

func chapKey(p **auth.Key) lang.Value {
	return secretKey(p, "DH-HMAC-CHAP key", "^DHHC-1:0[0-3]:", "key gen", auth.ParseKey)
}

func tlsKey(p **auth.TLSKey) lang.Value {
	return secretKey(p, "TLS key", "^NVMeTLSkey-1:0[0-2]:", "key gen --tls", auth.ParseTLSKey)
}

// secretKey is a secret in a format that begins with pattern. The command gen makes one.
func secretKey[K interface{ Reveal() string }](p *K, what, pattern, gen string,
	parse func(string) (K, error),
) lang.Value {
	given := false
	rules := lang.Schema{"pattern": pattern + "[A-Za-z0-9+/]+=*:$"}
	get := func() string {
		if !given {
			return ""
		}
		return newToken((*p).Reveal()).String()
	}
	return lang.Parsed(what, rules, get, func(text string) (what, hint string) {
		k, err := parse(text)
		if err != nil {
			return err.Error(), "nvmf-target " + gen + " makes a key, and key check looks at one."
		}
		*p, given = k, true
		return "", ""
	})
}

// authentication reports conflicts between the keys of a host.
func (v *validator) authentication(a *Authentication, path string) {
	path += "."
	for key, given := range map[string]bool{
		"dhchap_old_key": a.OldKey != nil, "dhchap_ctrl_key": a.ControllerKey != nil,
		"dhchap_hash": a.Hashes != nil, "dhchap_dhgroup": a.Groups != nil,
		"reauthenticate": a.Reauthenticate != 0,
	} {
		v.need(path+key, given, a.Key != nil, path+"dhchap_key")
	}
	v.need(path+"tls_old_key", a.OldTLSKey != nil, a.TLSKey != nil, path+"tls_key")
	v.need(path+"keys_until", !a.Until.IsZero(), a.Key != nil || a.TLSKey != nil,
		path+"dhchap_key", path+"tls_key")
	if k := a.ControllerKey; k != nil && a.Key != nil && (k.Equal(a.Key) ||
		a.OldKey != nil && k.Equal(a.OldKey)) {
		v.Add(path+"dhchap_ctrl_key", "host and controller have the same key, so that each could "+
			"pretend to be the other", "Make another one: nvmf-target key gen.")
	}
}
