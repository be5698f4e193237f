package group

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Facts are the settings of a gateway that hosts of a group depend on. All gateways publish them in
// the record.
type Facts struct {
	// Same has settings that must be equal at all gateways, by name.
	Same map[string]string `json:"same,omitempty"`
	// Ranges has ranges, with their ends, that must not overlap, by name.
	Ranges map[string][2]uint16 `json:"ranges,omitempty"`
	// Own has names that no other gateway may have.
	Own []string `json:"own,omitempty"`
	// Ports are where hosts reach the gateway, and Generation is one of its discovery log.
	Ports      []Port `json:"ports,omitempty"`
	Generation uint64 `json:"generation,omitempty"`
	// Drained: the gateway does not take the group.
	Drained bool `json:"drained,omitempty"`
	// Sizes changes with the size of an image. It may differ from that of others.
	Sizes string `json:"sizes,omitempty"`
	// Connected is a hash of the hosts that use the group and are connected, "" for none.
	Connected string `json:"connected,omitempty"`
	// Prefers: the gateway takes the group before others.
	Prefers bool `json:"prefers,omitempty"`
	// Notifications are the last ones of the gateway for hosts of others, and Process is random.
	Notifications []Notification `json:"notifications,omitempty"`
	Process       string         `json:"process,omitempty"`
}

// Notification is a notification of reservations.
type Notification struct {
	// Number grows with each notification of the process.
	Number uint64 `json:"n"`
	// Object is that of the namespace.
	Object string `json:"object"`
	Type   uint8  `json:"type"`
	// Hosts has hashes of the hosts that it is for.
	Hosts []string `json:"hosts"`
}

// Port is an address at which hosts reach a gateway.
type Port struct {
	// Gateway has it. It is not part of its facts.
	Gateway string `json:"-"`
	// ID is that of the port in the discovery log there.
	ID        uint16 `json:"id"`
	Transport string `json:"transport"`
	// TLS is off, allowed or required.
	TLS  string         `json:"tls"`
	Addr netip.AddrPort `json:"addr"`
	// Label of the listener, "" for none.
	Label string `json:"label,omitempty"`
}

const (
	// MaxPorts bounds the ports of a gateway, and maxGeneration their generations.
	MaxPorts, maxGeneration = 16, 1 << 62

	// maxSame and maxOthers bound the kinds of facts of a gateway in bytes, so that the record
	// stays below MaxRecord.
	maxSame, maxOthers = 8 << 10, 1 << 10
	// maxNotifications bounds the notifications of a gateway in bytes: one for 256 hosts fits. A
	// gateway has some for half a minute after it has served the group.
	maxNotifications = 5 << 10
	// maxDifferences bounds the differences that are reported.
	maxDifferences = 16
)

func longer(v any, most int) bool {
	data, _ := json.Marshal(v) // maps and texts
	return len(data) > most
}

// hashed is the name of a hash of all settings but the version.
const hashed = "a hash of the longer settings"

func hash(same map[string]string) map[string]string {
	if same[hashed] != "" {
		return same
	}
	rest := maps.Clone(same)
	delete(rest, "version")
	data, _ := json.Marshal(rest)
	return map[string]string{
		"version": same["version"], hashed: fmt.Sprintf("%x", sha256.Sum256(data)),
	}
}

// bytes returns the facts as the record has them. Settings that are too long are replaced by a hash
// of all, and others are left out.
func (f *Facts) bytes() json.RawMessage {
	short := *f
	if longer(short.Same, maxSame) {
		short.Same = hash(short.Same)
	}
	if longer(short.Ranges, maxOthers) {
		short.Ranges = nil
	}
	if longer(short.Own, maxOthers) {
		short.Own = nil
	}
	short.Ports = short.Ports[:min(len(short.Ports), MaxPorts)]
	for longer(short.Ports, 2*maxOthers) {
		short.Ports = short.Ports[:len(short.Ports)-1]
	}
	for longer(short.Notifications, maxNotifications) {
		short.Notifications = short.Notifications[1:]
	}
	data, _ := json.Marshal(&short)
	return data
}

// Elsewhere returns the ports of all gateways but one, and the highest generation that a gateway
// has published.
func (s *Status) Elsewhere(gateway string) (ports []Port, generation uint64) {
	for i := range s.Instances {
		in := &s.Instances[i]
		var f Facts
		if json.Unmarshal(in.Facts, &f) != nil {
			continue // of another version, or none
		}
		if f.Generation <= maxGeneration {
			generation = max(generation, f.Generation)
		}
		for _, p := range f.Ports[:min(len(f.Ports), MaxPorts)] {
			if p.Gateway = in.Gateway; in.Gateway != gateway {
				ports = append(ports, p)
			}
		}
	}
	return ports, generation
}

// Notifications calls fn with the notifications of each other gateway.
func (s *Status) Notifications(gateway string, fn func(process string, list []Notification)) {
	for i := range s.Instances {
		if in := &s.Instances[i]; in.Gateway != gateway {
			f := in.facts()
			fn(f.Process, f.Notifications)
		}
	}
}

// facts returns the facts that the instance has published, none if they are of another version.
func (i *Instance) facts() (f Facts) {
	_ = json.Unmarshal(i.Facts, &f) // else of another version
	return f
}

// differences compares the settings of a gateway with each other one, up to 16 differences.
func (r *Record) differences(gateway string, data json.RawMessage) (list []string) {
	var mine Facts
	_ = json.Unmarshal(data, &mine)
	for i := range r.Instances {
		in := &r.Instances[i]
		if in.Gateway == gateway || in.Facts == nil || len(data) == 0 {
			continue
		}
		var f Facts
		if err := json.Unmarshal(in.Facts, &f); err != nil {
			f = Facts{} // of another version, so everything differs
		}
		list = mine.differences(&f, fmt.Sprintf("gateway %.100q", in.Gateway), list)
	}
	return list
}

func (f *Facts) differences(other *Facts, gateway string, list []string) []string {
	add := func(format string, args ...any) {
		if len(list) < maxDifferences {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	mine, theirs := f.Same, other.Same
	if mine[hashed] != theirs[hashed] {
		mine, theirs = hash(mine), hash(theirs)
	}
	all := maps.Clone(mine)
	maps.Copy(all, theirs)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if a, b := cmp.Or(mine[name], "missing"), cmp.Or(theirs[name], "missing"); a != b {
			add("%.300q is %.200q here, and %.200q at %s", name, a, b, gateway)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.Ranges)) {
		a, b := f.Ranges[name], other.Ranges[name]
		if a[0] <= b[1] && b[0] <= a[1] {
			add("%.300q overlap: %d to %d here, and %d to %d at %s", name, a[0], a[1], b[0],
				b[1], gateway)
		}
	}
	for _, name := range f.Own {
		if slices.Contains(other.Own, name) {
			add("%.300q is here, and at %s", name, gateway)
		}
	}
	return list
}
