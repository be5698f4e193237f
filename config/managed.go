package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config/lang"
)

const managedKey = "managed"

func (c *Config) managedKeys() []lang.Key {
	return []lang.Key{
		lang.DirectoryKey(managedKey, &c.Managed,
			"Directory with the objects that requests create, one file each. The files are read "+
				"after all other files, as if they were included. The directory is created if it "+
				"is missing, and only its owner may write to it. It allows a configuration "+
				"without `listeners`, without `subsystems`, and with subsystems without hosts. No "+
				"environment variable overrides this key. Set it for an orchestrator, for "+
				"instance to `/var/lib/nvmf-target/managed`.").Without("none"),
		lang.NewKey("managed_paths", lang.List(&c.ManagedPaths, 0, 256, func(p *string) lang.Value {
			return lang.Unique(lang.Path(p), "Delete one of the two.")
		}), "Directories, or single files and devices, for the `path` of namespaces that the "+
			"control interface creates. Symbolic links must stay inside, except links of udev, "+
			"which may lead to devices elsewhere in `/dev`. Existing namespaces are kept. Set it "+
			"to the place of the orchestrator's volumes, where only trusted users can write.").
			Without("none: no paths"),
	}
}

// Managed names an object that the control interface keeps in a file of its own. The fields that
// are set give its kind: a subsystem, a namespace of it (Subsystem, NSID), a host that may connect
// to it (Subsystem, Host), the settings of a host for all subsystems (Host), one of the secrets of
// a host (Host, Key), a listener, or a referral.
type Managed struct {
	// Subsystem is an NQN.
	Subsystem string
	NSID      uint32
	Host      string
	// Key is the name of a key that is a secret, such as dhchap_key. It is in the file of the host.
	Key string
	// Listener is the label of a listener, or a name as in Listener.Name, with a port.
	Listener string
	// Referral is a name as in Referral.Name.
	Referral string
}

// GroupFile has the subsystems and hosts that gateways share, see Group.File. No request names it.
var GroupFile = Managed{Key: "group"}

// subsystem reports whether m names a subsystem.
func (m Managed) subsystem() bool { return m == Managed{Subsystem: m.Subsystem} }

// Dir is the directory of the files of the subsystem, or of all objects of the kind, below the
// managed directory. No directory of an NQN has a comma in its name.
func (m Managed) Dir(directory string) string {
	name := fileName(m.Subsystem)
	switch {
	case m == GroupFile:
		name = ",group"
	case m.Listener != "":
		name = ",listeners"
	case m.Referral != "":
		name = ",referrals"
	case m.Subsystem == "":
		name = ",hosts"
	}
	return filepath.Join(directory, name)
}

// File is the file of the object below the managed directory.
func (m Managed) File(directory string) string {
	name := "subsystem"
	switch {
	case m == GroupFile:
		name = "configuration"
	case m.NSID != 0:
		name = "namespace-" + strconv.FormatUint(uint64(m.NSID), 10)
	case m.Subsystem == "":
		name = fileName(m.Host + m.Listener + m.Referral) // one of them
	case m.Host != "":
		name = "host-" + fileName(m.Host)
	}
	return filepath.Join(m.Dir(directory), name+".yaml")
}

// fileName returns an NQN as part of a file name. Different NQNs have different names.
func fileName(nqn string) string {
	const longest = 120
	name := url.PathEscape(nqn)
	if strings.HasPrefix(name, ".") {
		name = "%2E" + name[1:]
	}
	if len(name) <= longest {
		return name
	}
	sum := sha256.Sum256([]byte(nqn))
	return name[:longest-32] + "-" + hex.EncodeToString(sum[:16])
}

// Touches reports whether a change from one configuration to the next concerns the object or
// something inside it. A change that waits for a restart concerns no object and is allowed.
func (m Managed) Touches(c Change, running, next *Config) bool {
	was, is := m.Object(running), m.Object(next)
	// only reports whether all live keys that change are entries of a list of names.
	only := func(list string, names ...string) bool {
		return !slices.ContainsFunc(c.Keys, func(k lang.KeyChange) bool {
			return !k.Restart && (k.Key != list || !slices.Contains(names, cmp.Or(k.Old, k.New)))
		})
	}
	switch {
	case c.Op == Modify && only(""):
		return true
	case m.Subsystem != "" && m.Host != "":
		return c.Object == is && only("hosts", m.Host)
	case c.Object == was || c.Object == is:
		return true
	case m.Listener != "": // subsystems refer to it by its address, which may have changed
		return c.Kind == KindSubsystem && c.Op == Modify &&
			only("listeners", was.Listener, is.Listener)
	}
	return m.subsystem() && c.Kind == KindNamespace && c.NQN == m.Subsystem && c.Op != Modify
}

// Object returns the object of a configuration, existing or not, that m is or belongs to.
func (m Managed) Object(c *Config) Object {
	switch {
	case m.Listener != "":
		for i := range c.Listeners {
			if l := &c.Listeners[i]; l.Label == m.Listener || l.Name == m.Listener {
				return Object{Kind: KindListener, Listener: l.Name}
			}
		}
		return Object{Kind: KindListener, Listener: m.Listener}
	case m.Referral != "":
		return Object{Kind: KindReferral, Referral: m.Referral}
	case m.NSID != 0:
		return Object{Kind: KindNamespace, NQN: m.Subsystem, NSID: m.NSID}
	case m.Subsystem == "":
		return Object{Kind: KindHost, NQN: m.Host}
	}
	return Object{Kind: KindSubsystem, NQN: m.Subsystem}
}

// Variable is the environment variable, without EnvPrefix, that replaces the list with the object.
func (m Managed) Variable() string {
	lists, _ := m.entry()
	if lists[0] == "referrals" {
		return "DISCOVERY_REFERRALS"
	}
	return strings.ToUpper(lists[0])
}

// Content makes the file of the object from the JSON object of a client. The JSON has the keys of
// the configuration file, without the keys that name the object. Content checks only these keys; it
// does not read variables and files for clients. before is the current file, nil if there is none.
// Secrets of a host that the client omits stay, since nobody can read them back.
func (m Managed) Content(body, before []byte) ([]byte, error) {
	given, err := lang.ParseBody(body)
	if err != nil {
		return nil, err
	}
	if m.Key != "" {
		return m.withKey(given, before)
	}
	lists, entry := m.entry()
	if err := m.only(given, entry); err != nil {
		return nil, err
	}
	if m.Subsystem == "" && m.Host != "" {
		keepKeys(given, m.found(before))
	}
	entry.Content = append(entry.Content, given.Content...)
	for _, list := range slices.Backward(lists) {
		entry = mappingNode(list, listNode(entry))
		switch list {
		case "namespaces":
			entry.Content = append(mappingNode("nqn", lang.TextNode(m.Subsystem)).Content,
				entry.Content...)
		case "referrals":
			entry = mappingNode("discovery", entry)
		}
	}
	return yaml.Marshal(entry)
}

// entry returns the keys that name the object, as an entry of the last of nested lists.
func (m Managed) entry() (lists []string, entry *yaml.Node) {
	switch {
	case m.Listener != "":
		entry, _ = listenerNames(&m.Listener)
		return []string{"listeners"}, entry
	case m.Referral != "":
		entry, _ = referralNames(&m.Referral)
		return []string{"referrals"}, entry
	case m.NSID != 0:
		return []string{"subsystems", "namespaces"}, mappingNode("nsid", number(m.NSID))
	case m.Subsystem == "":
		return []string{"hosts"}, mappingNode("nqn", lang.TextNode(m.Host))
	}
	entry = mappingNode("nqn", lang.TextNode(m.Subsystem))
	if m.Host != "" {
		entry.Content = append(entry.Content, lang.TextNode("hosts"),
			listNode(lang.TextNode(m.Host)))
	}
	return []string{"subsystems"}, entry
}

// found returns the object in its file, as within does.
func (m Managed) found(file []byte) *yaml.Node {
	var doc yaml.Node
	if err := yaml.Unmarshal(file, &doc); err != nil {
		doc = yaml.Node{} // changed by hand, which is reported when the file is loaded
	}
	return m.within(&doc)
}

// within returns the object in a document, an empty mapping if the document has no such object.
func (m Managed) within(doc *yaml.Node) *yaml.Node {
	none := &yaml.Node{Kind: yaml.MappingNode}
	lists, _ := m.entry()
	if len(doc.Content) == 0 {
		return none
	}
	n := doc.Content[0]
	if lists[0] == "referrals" {
		lists = []string{"discovery", "referrals"}
	}
	for _, key := range lists {
		at := lang.Slot(n, key)
		if at == nil {
			return none
		}
		if n = *at; n.Kind == yaml.SequenceNode && len(n.Content) > 0 {
			n = n.Content[0]
		}
	}
	if n.Kind != yaml.MappingNode {
		return none
	}
	return n
}

// WithSize returns the file of a namespace with a new size, in bytes. ok: the file has a size.
func (m Managed) WithSize(file []byte, size int64) (changed []byte, ok bool, err error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(file, &doc); err != nil {
		return nil, false, err
	}
	storage := m.within(&doc)
	for of := lang.Slot(storage, "of"); of != nil; of = lang.Slot(storage, "of") {
		storage = *of
	}
	n := lang.Slot(storage, "size")
	if n == nil {
		return nil, false, nil
	}
	*n = number(size)
	changed, err = yaml.Marshal(&doc)
	return changed, err == nil, err
}

// only removes the keys that name the object, which must equal named, and reports foreign keys.
func (m Managed) only(given, named *yaml.Node) error {
	for i := 0; i+1 < len(given.Content); {
		name, value := given.Content[i].Value, given.Content[i+1].Value
		at := lang.Slot(named, name)
		switch {
		case m.subsystem() && (name == "hosts" || name == "namespaces"):
			return lang.BadRequest(name, "is not part of this request",
				"Create each by a PUT below the subsystem: .../"+name+"/...")
		case m.Subsystem != "" && m.Host != "":
			return lang.BadRequest(lang.Printable(name), "unknown key", "Hosts have none: send {}.")
		case at != nil && (*at).Value == value:
			given.Content = slices.Delete(given.Content, i, i+2)
			continue
		case at != nil:
			return lang.BadRequest(name, fmt.Sprintf("%s here, but %s in the path of the request",
				lang.Printable(value), lang.Printable((*at).Value)), "Delete it here.")
		}
		i += 2
	}
	return nil
}

func number[T uint32 | int64](n T) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.FormatInt(int64(n), 10)}
}

func listNode(entry *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{entry}}
}

func mappingNode(key string, value *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{lang.TextNode(key), value}}
}

// OfRequest rewrites problems for the client of an edit: a problem in the file of the edit is
// reported in the request, with the key below the object.
func OfRequest(e *Edit, ps Problems) Problems {
	ps = slices.Clone(ps)
	for i, p := range ps {
		if !p.In(e) {
			continue
		}
		_, key, _ := strings.Cut(p.Path, "]")
		if inner, ok := strings.CutPrefix(key, ".namespaces["); ok {
			_, key, _ = strings.Cut(inner, "]")
		}
		ps[i] = p.InRequest(strings.TrimPrefix(key, "."))
	}
	return ps
}
