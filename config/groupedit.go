package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/nvmf-target/nvmf-target/config/lang"
)

// This file changes single objects in the text of a version that gateways share.

// GroupText is the text of a version, see Group.File. Its methods return the text after a request
// for a host, a subsystem, or a namespace or a host of one. See Group.Same.
type GroupText string

// Put creates or changes an object. body is as for Managed.Content.
func (t GroupText) Put(m Managed, body []byte) (GroupText, error) {
	given, err := lang.ParseBody(body, secretFiles()...)
	if err != nil {
		return t, err
	}
	if _, named := m.entry(); m.Key == "" {
		err = m.only(given, named)
	}
	keys := map[string]any{}
	if err == nil && len(body) > 0 {
		err = decodeNumbers(string(body), &keys)
	}
	if err != nil {
		return t, err
	}
	return t.edit(m, func(list []any, i int) ([]any, error) {
		if m.Subsystem != "" && m.Host != "" {
			if i < 0 {
				list = append(list, m.Host)
			}
			return list, nil
		}
		if i < 0 {
			list, i = append(list, map[string]any{}), len(list)
		}
		for key, value := range list[i].(map[string]any) { // as in finds it
			secret := strings.TrimSuffix(key, lang.FileSuffix)
			kept := m.subsystem() && (key == "namespaces" || key == "hosts") ||
				m.Subsystem == "" && (key == oldKeysUntil || isSecret(secret)) &&
					keys[secret] == nil && keys[secret+lang.FileSuffix] == nil
			if kept && keys[key] == nil {
				keys[key] = value
			}
		}
		name, id := m.identity()
		keys[name] = id
		list[i] = keys
		return list, nil
	})
}

// Delete removes an object. A missing one is not an error. A subsystem with others in it needs
// recursive.
func (t GroupText) Delete(m Managed, recursive bool) (GroupText, error) {
	return t.edit(m, func(list []any, i int) ([]any, error) {
		if i < 0 {
			return list, nil
		}
		for _, inside := range []string{"namespaces", "hosts"} {
			if sub, _ := list[i].(map[string]any); m.subsystem() && !recursive {
				if some, ok := sub[inside].([]any); sub[inside] != nil && (!ok || len(some) > 0) {
					return list, lang.BadRequest("", "the subsystem has "+inside,
						"Delete them first, or all together with it by ?recursive=true.")
				}
			}
		}
		return slices.Delete(list, i, i+1), nil
	})
}

// FreeNSID returns the NSID of the namespace with this UUID in a subsystem, or else a free one.
func (t GroupText) FreeNSID(nqn string, id uuid.UUID) (nsid uint32) {
	var all struct {
		Subsystems []struct {
			NQN        string
			Namespaces []struct {
				NSID uint32
				UUID string
			}
		}
	}
	_ = json.Unmarshal([]byte(t), &all) // else Put fails
	used := map[uint32]bool{}
	for _, sub := range all.Subsystems {
		for _, n := range sub.Namespaces {
			if sub.NQN != nqn {
				continue
			}
			if used[n.NSID] = true; id.String() == strings.ToLower(n.UUID) {
				return n.NSID
			}
		}
	}
	for nsid = 1; used[nsid]; nsid++ {
	}
	return nsid
}

// edit changes the list that the object is, or would be, in. i is its place there, -1: none.
func (t GroupText) edit(m Managed, change func(list []any, i int) ([]any, error)) (GroupText,
	error,
) {
	var all map[string]any
	if err := decodeNumbers(string(t), &all); err != nil {
		return t, err
	}
	of, name, parent := all, "subsystems", Managed{Subsystem: m.Subsystem}
	switch {
	case m.Key != "" || m.Listener != "" || m.Referral != "":
		return t, lang.BadRequest("", "requests do not change it for all gateways",
			"Use nvmf-target apply FILE --group.")
	case m.Subsystem == "":
		name = "hosts"
	case m != parent:
		list, _ := all[name].([]any)
		if of, name = nil, "hosts"; m.NSID != 0 {
			name = "namespaces"
		}
		if i := parent.in(list); i >= 0 {
			of = list[i].(map[string]any)
		}
	}
	list, ok := of[name].([]any)
	if !ok && of[name] != nil {
		return t, lang.BadRequest("", name+" is not a list in the configuration of the group",
			"Use nvmf-target apply FILE --group.")
	}
	list, err := change(list, m.in(list))
	if err == nil && of == nil && len(list) > 0 {
		err = lang.BadRequest("", "the subsystem was removed meanwhile", "")
	}
	if err != nil {
		return t, err
	}
	if of[name] != nil || len(list) > 0 {
		of[name] = list
	}
	data, err := json.Marshal(all)
	return GroupText(data), err
}

// identity returns the key that names the object in its list, and its value.
func (m Managed) identity() (key string, value any) {
	switch {
	case m.NSID != 0:
		return "nsid", json.Number(fmt.Sprint(m.NSID))
	case m.Subsystem != "" && m.Host == "":
		return "nqn", m.Subsystem
	}
	return "nqn", m.Host
}

// in returns the place of the object in a list of JSON, -1 if it is not there.
func (m Managed) in(list []any) int {
	key, id := m.identity()
	return slices.IndexFunc(list, func(entry any) bool {
		if m.Subsystem != "" && m.Host != "" {
			return entry == id
		}
		keys, ok := entry.(map[string]any)
		return ok && keys[key] == id
	})
}

// decodeNumbers decodes JSON, and keeps numbers as they are.
func decodeNumbers(text string, v any) error {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	return d.Decode(v)
}
