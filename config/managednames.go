package config

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// This file has the names of managed listeners and referrals, and the secrets of managed hosts.

// oldKeysUntil is the key of a host that must accompany its old keys.
const oldKeysUntil = "old_keys_until"

// Canonical returns the object with its name as in the configuration, or an error.
func (m Managed) Canonical() (Managed, error) {
	var err error
	switch {
	case m.Listener != "":
		_, err = listenerNames(&m.Listener)
	case m.Referral != "":
		_, err = referralNames(&m.Referral)
	case m.Key != "" && !slices.Contains(secretKeys(), m.Key):
		err = lang.BadRequest("key", fmt.Sprintf("hosts have no secret %s", lang.Printable(m.Key)),
			"Use one of: "+strings.Join(secretKeys(), ", ")+".")
	}
	return m, err
}

// listenerNames returns the keys given by the name of a listener. It makes the name canonical.
func listenerNames(name *string) (*yaml.Node, error) {
	if label.MatchString(*name) {
		return mappingNode("name", lang.TextNode(*name)), nil
	}
	transport, at, _ := strings.Cut(*name, " ")
	i := strings.LastIndexByte(at, ':')
	port, err := strconv.ParseUint(at[i+1:], 10, 16)
	var address ListenAddress
	if i < 0 || err != nil || port == 0 ||
		address.UnmarshalText([]byte(strings.Trim(at[:i], "[]"))) != nil {
		return &yaml.Node{Kind: yaml.MappingNode}, lang.BadRequest("listener",
			fmt.Sprintf("%q is not the name of a listener", lang.Printable(*name)),
			"Begin with a letter; up to 63 letters, digits, - and _ are allowed. Or write it as "+
				`in "tcp 10.0.0.1:4420", "tcp [fd00::1]:4420" or "rdma eth0:4420".`)
	}
	*name = transport + " " + address.WithPort(uint16(port))
	return addressNode(transport, address.String(), uint16(port)), nil
}

func addressNode(transport, address string, port uint16) *yaml.Node {
	n := mappingNode("transport", lang.TextNode(transport))
	n.Content = append(n.Content, lang.TextNode("address"), lang.TextNode(address),
		lang.TextNode("port"), number(uint32(port)))
	return n
}

// Name is "tcp 10.0.0.9:8009", followed by the NQN if it is not the well-known one. It is unique.
func (r *Referral) Name() string {
	name := fmt.Sprintf("%v %v", r.Transport, netip.AddrPortFrom(r.Address, r.Port))
	if r.NQN != nvme.DiscoveryNQN {
		name += " " + r.NQN
	}
	return name
}

// referralNames returns the keys given by the name of a referral. It makes the name canonical.
func referralNames(name *string) (*yaml.Node, error) {
	transport, rest, _ := strings.Cut(*name, " ")
	text, nqn, named := strings.Cut(rest, " ")
	if nqn == nvme.DiscoveryNQN {
		named = false
	}
	at, err := netip.ParseAddrPort(text)
	if err != nil || at.Port() == 0 || named && nqn == "" {
		return &yaml.Node{Kind: yaml.MappingNode}, lang.BadRequest("referral",
			fmt.Sprintf("%q is not the name of a referral", lang.Printable(*name)),
			`Write it as in "tcp 10.0.0.9:8009", or "tcp [fd00::9]:8009 NQN" if the discovery `+
				"service has a name of its own.")
	}
	n := addressNode(transport, at.Addr().Unmap().String(), at.Port())
	*name = fmt.Sprintf("%s %v", transport, netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
	if named {
		*name += " " + nqn
		n.Content = append(n.Content, lang.TextNode("nqn"), lang.TextNode(nqn))
	}
	return n, nil
}

// Keys returns the keys in the file of an object as a client would send them, without secrets. It
// returns nil if the file was changed by hand and JSON cannot express it.
func (m Managed) Keys(file []byte) map[string]any {
	n := m.found(file)
	_, named := m.entry()
	for i := 0; i+1 < len(n.Content); {
		name := n.Content[i].Value
		if isSecret(name) || lang.Slot(named, name) != nil {
			n.Content = slices.Delete(n.Content, i, i+2)
			continue
		}
		i += 2
	}
	keys := map[string]any{}
	if err := n.Decode(&keys); err != nil {
		return nil
	}
	if _, err := json.Marshal(unquoted(keys)); err != nil {
		return nil
	}
	return keys
}

// SecretsOf returns the names of the secrets that a host has.
func (c *Config) SecretsOf(nqn string) (list []string) {
	for _, o := range c.settings.objects {
		if o.Object == (Object{Kind: KindHost, NQN: nqn}) {
			list = append(list, o.Secrets()...)
		}
	}
	return list
}

// unquoted is lang.Unquoted for all texts of a value. It changes maps and lists in place.
func unquoted(v any) any {
	switch v := v.(type) {
	case string:
		return lang.Unquoted(v)
	case []any:
		for i := range v {
			v[i] = unquoted(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = unquoted(v[k])
		}
	}
	return v
}

// isSecret reports whether a key of a file is a secret of a host, or names a file with one.
func isSecret(key string) bool {
	return slices.Contains(secretKeys(), strings.TrimSuffix(key, lang.FileSuffix))
}

// secretKeys are the keys of a host that are secrets.
func secretKeys() (list []string) {
	for _, k := range new(Host).value().(lang.Mapping) {
		if k.Secret {
			list = append(list, k.Name)
		}
	}
	return list
}

// keepKeys adds the current secrets of a host that a request does not give.
func keepKeys(given, host *yaml.Node) {
	for i := 0; i+1 < len(host.Content); i += 2 {
		name := strings.TrimSuffix(host.Content[i].Value, lang.FileSuffix)
		if (name == oldKeysUntil || isSecret(name)) && lang.Slot(given, name) == nil {
			given.Content = append(given.Content, host.Content[i], host.Content[i+1])
		}
	}
}

// oldKey returns the key that holds the old, still valid value of a secret, "" if there is none.
func oldKey(key string) string {
	prefix, ok := strings.CutSuffix(key, "_key")
	if old := prefix + "_old_key"; ok && slices.Contains(secretKeys(), old) {
		return old
	}
	return ""
}

// withKey returns the file of a host with a new value of a secret. If the client gives an expiry
// time for old keys, the previous value becomes the old key. Repeating the request changes nothing.
func (m Managed) withKey(given *yaml.Node, file []byte) ([]byte, error) {
	key, until := lang.Slot(given, "key"), lang.Slot(given, oldKeysUntil)
	for i := 0; i < len(given.Content); i += 2 {
		if name := given.Content[i].Value; name != "key" && name != oldKeysUntil {
			return nil, lang.BadRequest(lang.Printable(name), "unknown key",
				"Delete it; known here: key, "+oldKeysUntil+".")
		}
	}
	old := oldKey(m.Key)
	switch {
	case key == nil:
		return nil, lang.BadRequest("key", "is missing", "nvmf-target key gen makes one.")
	case until != nil && old == "":
		return nil, lang.BadRequest(oldKeysUntil, m.Key+" has no old key", "Delete it here.")
	}
	return m.changed(file, func(host *yaml.Node) {
		if until != nil {
			if name, now := secretOf(host, m.Key); now != nil &&
				(name != m.Key || now.Value != (*key).Value) {
				unsetKey(host, old)
				host.Content = append(host.Content,
					lang.TextNode(old+strings.TrimPrefix(name, m.Key)), now)
			}
			unsetKey(host, oldKeysUntil)
			host.Content = append(host.Content, lang.TextNode(oldKeysUntil), *until)
		}
		unsetKey(host, m.Key)
		host.Content = append(host.Content, lang.TextNode(m.Key), *key)
	})
}

// WithoutKey returns the file of a host without the secret, and without an expiry of no old key.
func (m Managed) WithoutKey(file []byte) ([]byte, error) {
	return m.changed(file, func(host *yaml.Node) {
		unsetKey(host, m.Key)
		for _, key := range secretKeys() {
			if old := oldKey(key); old != "" {
				if _, value := secretOf(host, old); value != nil {
					return
				}
			}
		}
		unsetKey(host, oldKeysUntil)
	})
}

// changed returns the file after a change of the object.
func (m Managed) changed(file []byte, change func(*yaml.Node)) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(file, &doc); err != nil {
		return nil, err
	}
	change(m.within(&doc))
	return yaml.Marshal(&doc)
}

// secretOf returns a secret of a host, or the name of its file, and its key; nil if there is none.
func secretOf(host *yaml.Node, key string) (name string, value *yaml.Node) {
	for _, name = range []string{key, key + lang.FileSuffix} {
		if at := lang.Slot(host, name); at != nil {
			return name, *at
		}
	}
	return "", nil
}

func unsetKey(n *yaml.Node, key string) {
	for i := 0; i+1 < len(n.Content); {
		if strings.TrimSuffix(n.Content[i].Value, lang.FileSuffix) == key {
			n.Content = slices.Delete(n.Content, i, i+2)
			continue
		}
		i += 2
	}
}
