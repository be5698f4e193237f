package config

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

const (
	// managedKey is read before all files are known, as includeKey is. It has no variable.
	managedKey = "managed"
	// maxManaged is the number of files that a managed directory may have.
	maxManaged = 16 << 10
	// maxDepth is the nesting depth of the body of a request. The file made from it is indented.
	maxDepth = 32
	// request is the place of values from a client of the control interface.
	request = "request"
)

func (c *Config) managedKeys() []Key {
	return []Key{
		NewKey(managedKey, absolutePath(&c.Managed),
			"Directory where the control interface keeps the listeners, hosts, subsystems and "+
				"other objects that programs create there, one file each, which are read after "+
				"all others as if they were included. It is created if it is missing; nobody but "+
				"its owner may write to it. It allows a configuration without `listeners`, "+
				"without `subsystems`, and with subsystems without hosts. "+
				"No environment variable overrides this key. Set it for an orchestrator, for "+
				"instance to `/var/lib/nvmf-target/managed`.").Without("none"),
		NewKey("managed_paths", List(&c.ManagedPaths, 0, 256, func(p *string) Value {
			return Unique(absolutePath(p), "Delete one of the two.")
		}), "Directories, or single files and devices, for the `path` of namespaces that the "+
			"control interface creates. Symbolic links must stay inside, except links of udev, "+
			"which may lead to devices elsewhere in `/dev`. Existing namespaces stay. Set it to "+
			"the place of the orchestrator's volumes, where only trusted users can write.").
			Without("none: no paths"),
	}
}

// Managed names an object that the control interface keeps in a file of its own. The fields that
// are set give its kind: a subsystem (NQN), a namespace of it (NQN, NSID), a host that may connect
// to it (NQN, Host), the settings of a host for all subsystems (Host), one of the secrets of a host
// (Host, Key), a listener, or a referral.
type Managed struct {
	NQN  string
	NSID uint32
	Host string
	// Key is the name of a key that is a secret, such as dhchap_key. It is in the file of the host.
	Key string
	// Listener is the label of a listener, or a name as in Listener.Name, with a port.
	Listener string
	// Referral is a name as in Referral.Name.
	Referral string
}

// subsystem reports whether m names a subsystem.
func (m Managed) subsystem() bool { return m == Managed{NQN: m.NQN} }

// Dir is the directory of the files of the subsystem, or of all objects of the kind, below the
// managed directory. No directory of an NQN has a comma in its name.
func (m Managed) Dir(directory string) string {
	name := fileName(m.NQN)
	switch {
	case m.Listener != "":
		name = ",listeners"
	case m.Referral != "":
		name = ",referrals"
	case m.NQN == "":
		name = ",hosts"
	}
	return filepath.Join(directory, name)
}

// File is the file of the object below the managed directory.
func (m Managed) File(directory string) string {
	name := "subsystem"
	switch {
	case m.NSID != 0:
		name = "namespace-" + strconv.FormatUint(uint64(m.NSID), 10)
	case m.NQN == "":
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
		return !slices.ContainsFunc(c.Keys, func(k KeyChange) bool {
			return !k.Restart && (k.Key != list || !slices.Contains(names, cmp.Or(k.Old, k.New)))
		})
	}
	switch {
	case c.Op == Modify && only(""):
		return true
	case m.NQN != "" && m.Host != "":
		return c.Object == is && only("hosts", m.Host)
	case c.Object == was || c.Object == is:
		return true
	case m.Listener != "": // subsystems refer to it by its address, which may have changed
		return c.Kind == KindSubsystem && c.Op == Modify &&
			only("listeners", was.Listener, is.Listener)
	}
	return m.subsystem() && c.Kind == KindNamespace && c.NQN == m.NQN && c.Op != Modify
}

// Object returns the object of a configuration that corresponds to m or contains it, even if the
// configuration has no such object.
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
		return Object{Kind: KindNamespace, NQN: m.NQN, NSID: m.NSID}
	case m.NQN == "":
		return Object{Kind: KindHost, NQN: m.Host}
	}
	return Object{Kind: KindSubsystem, NQN: m.NQN}
}

// Variable is the environment variable, without EnvPrefix, that replaces the list with the object.
func (m Managed) Variable() string {
	lists, _ := m.entry()
	if lists[0] == "referrals" {
		return "DISCOVERY_REFERRALS"
	}
	return strings.ToUpper(lists[0])
}

// Edit is a pending change of a managed directory: the file Path gets Content. If Content is nil,
// Path and everything below it is deleted.
type Edit struct {
	Path    string
	Content []byte
}

func (e Edit) apply(d *decoder) { d.edits = append(d.edits, e) }

func (e *Edit) covers(file string) bool {
	return file == e.Path || strings.HasPrefix(file, e.Path+"/")
}

// Content makes the file of the object from the JSON object of a client. The JSON has the keys of
// the configuration file, without the keys that name the object. Content checks only these keys; it
// does not read variables and files for clients. before is the current file, nil if there is none.
// Secrets of a host that the client omits stay, since nobody can read them back.
func (m Managed) Content(body, before []byte) ([]byte, error) {
	given, err := parseBody(body)
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
	if m.NQN == "" && m.Host != "" {
		keepKeys(given, m.found(before))
	}
	entry.Content = append(entry.Content, given.Content...)
	for _, list := range slices.Backward(lists) {
		entry = mappingNode(list, listNode(entry))
		switch list {
		case "namespaces":
			entry.Content = append(mappingNode("nqn", textNode(m.NQN)).Content, entry.Content...)
		case "referrals":
			entry = mappingNode("discovery", entry)
		}
	}
	return yaml.Marshal(entry)
}

// entry returns the keys that name the object, as an entry of the last of lists. Each list is
// inside the entry of the one before.
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
	case m.NQN == "":
		return []string{"hosts"}, mappingNode("nqn", textNode(m.Host))
	}
	entry = mappingNode("nqn", textNode(m.NQN))
	if m.Host != "" {
		entry.Content = append(entry.Content, textNode("hosts"), listNode(textNode(m.Host)))
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
		at := slot(n, key)
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

// WithSize returns the file of a namespace with a new size of its storage, in bytes. It reports
// whether the file has a size.
func (m Managed) WithSize(file []byte, size int64) (changed []byte, ok bool, err error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(file, &doc); err != nil {
		return nil, false, err
	}
	storage := m.within(&doc)
	for of := slot(storage, "of"); of != nil; of = slot(storage, "of") {
		storage = *of
	}
	n := slot(storage, "size")
	if n == nil {
		return nil, false, nil
	}
	*n = number(size)
	changed, err = yaml.Marshal(&doc)
	return changed, err == nil, err
}

// parseBody returns the mapping that a client has sent.
func parseBody(body []byte) (*yaml.Node, error) {
	if len(body) == 0 {
		body = []byte("{}")
	}
	err := json.Unmarshal(body, new(json.RawMessage)) // one value without errors
	if err == nil && !utf8.Valid(body) {
		err = errors.New("the text is not UTF-8")
	}
	if err != nil {
		return nil, badRequest("", "not valid JSON: "+err.Error(), "")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	given, err := literal(d, maxDepth)
	if err == nil && given.Kind != yaml.MappingNode {
		err = badRequest("", "must be a JSON object, not "+kindName(given),
			"It has the keys of the configuration file.")
	}
	return given, err
}

// literal reads a JSON value as a YAML node, up to a depth of left. The JSON is valid.
func literal(d *json.Decoder, left int) (*yaml.Node, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: fmt.Sprint(token)}
	switch token {
	case nil:
		n.Value, n.Tag = "null", "!!null"
	case true, false:
		n.Tag = "!!bool"
	case json.Delim('{'):
		n = &yaml.Node{Kind: yaml.MappingNode}
	case json.Delim('['):
		n = &yaml.Node{Kind: yaml.SequenceNode}
	default:
		if text, ok := token.(string); ok {
			n = textNode(text)
			n.Style = yaml.DoubleQuotedStyle
		}
	}
	if n.Kind == yaml.ScalarNode {
		return n, nil
	}
	if left == 0 {
		return nil, badRequest("", fmt.Sprintf("more than %d values in one another", maxDepth), "")
	}
	given := map[string]bool{}
	for d.More() {
		if n.Kind == yaml.MappingNode {
			token, _ := d.Token()
			key := token.(string)
			if given[key] {
				return nil, badRequest(printable(key), "given twice", "Delete one of the two.")
			}
			given[key] = true
			if strings.HasSuffix(key, fileSuffix) || strings.HasSuffix(key, commandSuffix) {
				return nil, badRequest(printable(key), "a request cannot name a file to read, or "+
					"a program", "Send the value itself.")
			}
			n.Content = append(n.Content,
				&yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key})
		}
		value, err := literal(d, left-1)
		if err != nil {
			return nil, err
		}
		n.Content = append(n.Content, value)
	}
	_, err = d.Token()
	return n, err
}

// only removes the keys that name the object, which must have the values in named. It reports keys
// that belong elsewhere.
func (m Managed) only(given, named *yaml.Node) error {
	for i := 0; i+1 < len(given.Content); {
		name, value := given.Content[i].Value, given.Content[i+1].Value
		at := slot(named, name)
		switch {
		case m.subsystem() && (name == "hosts" || name == "namespaces"):
			return badRequest(name, "is not part of this request",
				"Create each by a PUT below the subsystem: .../"+name+"/...")
		case m.NQN != "" && m.Host != "":
			return badRequest(printable(name), "unknown key", "Hosts have none: send {}.")
		case at != nil && (*at).Value == value:
			given.Content = slices.Delete(given.Content, i, i+2)
			continue
		case at != nil:
			return badRequest(name, fmt.Sprintf("%s here, but %s in the path of the request",
				printable(value), printable((*at).Value)), "Delete it here.")
		}
		i += 2
	}
	return nil
}

func badRequest(path, what, hint string) error {
	return Problems{{Place: request, Path: path, What: what, Hint: hint}}
}

func textNode(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: quoteVariables(text)}
}

func number[T uint32 | int64](n T) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.FormatInt(int64(n), 10)}
}

func listNode(entry *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{entry}}
}

func mappingNode(key string, value *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{textNode(key), value}}
}

// OfRequest rewrites problems for the client of the edit: a problem in the file of the edit is
// reported in the request, with the key below the object.
func (e *Edit) OfRequest(ps Problems) Problems {
	ps = slices.Clone(ps)
	for i, p := range ps {
		if p.file != shown(e.Path) {
			continue
		}
		ps[i].Place, ps[i].place = request, place{}
		_, key, _ := strings.Cut(p.Path, "]")
		if inner, ok := strings.CutPrefix(key, ".namespaces["); ok {
			_, key, _ = strings.Cut(inner, "]")
		}
		ps[i].Path = strings.TrimPrefix(key, ".")
	}
	return ps
}

// managedFiles lists the files that the managed directory has after the edits.
func (d *decoder) managedFiles(directory string) (files []string) {
	entries, err := os.ReadDir(directory)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // the target makes it when it starts
	} else if err == nil {
		err = private(directory)
	}
	if err != nil {
		d.add(managedKey, err.Error(), "Name a directory to which only the target writes.")
		return nil
	}
	for _, e := range entries {
		dir := filepath.Join(directory, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		inner, err := os.ReadDir(dir)
		if err != nil {
			d.add(managedKey, err.Error(), "Delete it unless it is a directory of the target.")
			return nil
		}
		for _, f := range inner {
			if !strings.HasPrefix(f.Name(), ".") {
				files = append(files, filepath.Join(dir, f.Name()))
			}
		}
	}
	for _, e := range d.edits {
		files = slices.DeleteFunc(files, e.covers)
		if e.Content != nil {
			files = append(files, e.Path)
		}
	}
	if len(files) > maxManaged {
		d.add(managedKey, fmt.Sprintf("%d files are too many", len(files)),
			fmt.Sprintf("At most %d.", maxManaged))
		return nil
	}
	return files
}

// read returns the content that a file has after the edits.
func (d *decoder) read(name string, most int) ([]byte, error) {
	for _, e := range d.edits {
		if e.covers(name) {
			return e.Content, nil
		}
	}
	return readRegular(name, most)
}

// private returns an error if users other than root and the current user can write to a directory.
// Root may use the directory of another user, because root checks the configuration for that user.
func private(directory string) error {
	info, err := os.Stat(directory)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("others may write to %s, which has mode %04o", shown(directory),
			info.Mode().Perm())
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if user := os.Geteuid(); ok && st.Uid != 0 && int(st.Uid) != user && user != 0 {
		return fmt.Errorf("%s belongs to the user %d", shown(directory), st.Uid)
	}
	return nil
}
