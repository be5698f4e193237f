package config

import (
	"bytes"
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
	// maxManaged is how many files a managed directory may have.
	maxManaged = 16 << 10
	// maxDepth is how deep the body of a request may be: its file is indented.
	maxDepth = 32
	// request is the place of what a client of the control interface has written.
	request = "request"
)

func (c *Config) managedKeys() []Key {
	return []Key{
		NewKey(managedKey, absolutePath(&c.Managed),
			"Directory where the control interface keeps the subsystems, namespaces and hosts "+
				"that programs create there, one file each, which are read after all others as "+
				"if they were included. It is made if it is missing; nobody but its owner may "+
				"write to it. With it there may be no `subsystems`, and subsystems without hosts. "+
				"No environment variable overrides this key. Set it for an orchestrator, for "+
				"instance to `/var/lib/nvmf-target/managed`.").Without("none"),
		NewKey("managed_paths", List(&c.ManagedPaths, 0, 256, func(p *string) Value {
			return Unique(absolutePath(p), "Delete one of the two.")
		}), "Directories, or single files and devices, to which the `path` of a namespace must "+
			"lead that the control interface creates, also after symbolic links; those of udev "+
			"may lead to devices elsewhere in `/dev`. What exists already stays. Set it to where "+
			"the orchestrator keeps volumes, and only trusted users can write.").
			Without("none: no paths"),
	}
}

// Managed names what the control interface keeps in a file of its own: a host that may connect to a
// subsystem, a namespace, or, without both, a subsystem.
type Managed struct {
	NQN  string
	NSID uint32
	Host string
}

// Dir is where the files of the subsystem are below the managed directory.
func (m Managed) Dir(directory string) string { return filepath.Join(directory, fileName(m.NQN)) }

// File is the file of the object below the managed directory.
func (m Managed) File(directory string) string {
	name := "subsystem"
	switch {
	case m.Host != "":
		name = "host-" + fileName(m.Host)
	case m.NSID != 0:
		name = "namespace-" + strconv.FormatUint(uint64(m.NSID), 10)
	}
	return filepath.Join(m.Dir(directory), name+".yaml")
}

// fileName is an NQN as a part of the name of a file. No two have the same.
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

// Touches reports whether a change concerns the object or something inside it. A change that waits
// for a restart concerns none, and is allowed.
func (m Managed) Touches(c Change) bool {
	live := func(k KeyChange) bool { return !k.Restart }
	if c.Op == Modify && !slices.ContainsFunc(c.Keys, live) {
		return true
	}
	if m.Host != "" {
		return c.Object == m.Object() && !slices.ContainsFunc(c.Keys, func(k KeyChange) bool {
			return !k.Restart && (k.Key != "hosts" || k.Old != m.Host && k.New != m.Host)
		})
	}
	inside := m.NSID == 0 && c.Kind == KindNamespace && c.NQN == m.NQN
	return c.Object == m.Object() || inside && c.Op != Modify
}

// Object is the object of a configuration that the managed one is, or is part of.
func (m Managed) Object() Object {
	if m.NSID != 0 {
		return Object{Kind: KindNamespace, NQN: m.NQN, NSID: m.NSID}
	}
	return Object{Kind: KindSubsystem, NQN: m.NQN}
}

// Edit is a change of a managed directory that has not been made yet: Path, a file, has Content;
// nil: Path and what is below does not exist.
type Edit struct {
	Path    string
	Content []byte
}

func (e Edit) apply(d *decoder) { d.edits = append(d.edits, e) }

func (e *Edit) covers(file string) bool {
	return file == e.Path || strings.HasPrefix(file, e.Path+"/")
}

// Content makes the file of the object from what a client says of it: a JSON object with the keys
// of the configuration file, less those that name the object. It checks only that; variables and
// files are not read for clients.
func (m Managed) Content(body []byte) ([]byte, error) {
	given, err := parseBody(body)
	if err != nil {
		return nil, err
	}
	entry := mappingNode("nqn", textNode(m.NQN))
	switch {
	case m.Host != "":
		err = m.only(given, "", "")
		entry.Content = append(entry.Content, textNode("hosts"), listNode(textNode(m.Host)))
	case m.NSID != 0:
		id := strconv.FormatUint(uint64(m.NSID), 10)
		err = m.only(given, "nsid", id)
		n := mappingNode("nsid", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: id})
		n.Content = append(n.Content, given.Content...)
		entry.Content = append(entry.Content, textNode("namespaces"), listNode(n))
	default:
		err = m.only(given, "nqn", m.NQN)
		entry.Content = append(entry.Content, given.Content...)
	}
	if err != nil {
		return nil, err
	}
	return yaml.Marshal(mappingNode("subsystems", listNode(entry)))
}

// WithSize returns the file of a namespace with another size of its storage, in bytes. It reports
// whether the file has a size.
func (m Managed) WithSize(file []byte, size int64) (changed []byte, ok bool, err error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(file, &doc); err != nil {
		return nil, false, err
	}
	value := func(n *yaml.Node, key string) *yaml.Node {
		if n == nil || n.Kind != yaml.MappingNode {
			return nil
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				return n.Content[i+1]
			}
		}
		return nil
	}
	first := func(n *yaml.Node) *yaml.Node {
		if n == nil || n.Kind != yaml.SequenceNode && n.Kind != yaml.DocumentNode ||
			len(n.Content) == 0 {
			return nil
		}
		return n.Content[0]
	}
	storage := first(value(first(value(first(&doc), "subsystems")), "namespaces"))
	for of := storage; of != nil; of = value(of, "of") {
		storage = of
	}
	n := value(storage, "size")
	if n == nil {
		return nil, false, nil
	}
	*n = yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.FormatInt(size, 10)}
	changed, err = yaml.Marshal(&doc)
	return changed, err == nil, err
}

// parseBody returns the mapping that a client has sent.
func parseBody(body []byte) (*yaml.Node, error) {
	if len(body) == 0 {
		body = []byte("{}")
	}
	err := json.Unmarshal(body, new(json.RawMessage)) // which is one value without errors
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
			"Its keys are those of the configuration file.")
	}
	return given, err
}

// literal reads a value as a node of a file, with a depth of at most left. The JSON is valid.
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
	for d.More() {
		if n.Kind == yaml.MappingNode {
			token, _ := d.Token()
			key := token.(string)
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

// only removes the key that names the object, which must have this value, and reports keys that
// belong elsewhere.
func (m Managed) only(given *yaml.Node, key, value string) error {
	for i := 0; i+1 < len(given.Content); {
		switch name := given.Content[i].Value; {
		case name == key && given.Content[i+1].Value == quoteVariables(value):
			given.Content = slices.Delete(given.Content, i, i+2)
			continue
		case name == key:
			return badRequest(key, fmt.Sprintf("%s here, but %s in the path of the request",
				printable(given.Content[i+1].Value), printable(value)), "Delete it here.")
		case m.Host != "":
			return badRequest(printable(name), "unknown key", "Hosts have none: send {}.")
		case m.NSID == 0 && (name == "hosts" || name == "namespaces"):
			return badRequest(name, "is not part of this request",
				"Create each by a PUT below the subsystem: .../"+name+"/...")
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

func listNode(entry *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{entry}}
}

func mappingNode(key string, value *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{textNode(key), value}}
}

// OfRequest returns problems for the client whose edit has led to them: those in its file are in
// the request, with the key below the object.
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

// managedFiles lists the files of the managed directory as they are after the edits.
func (d *decoder) managedFiles(directory string) (files []string) {
	entries, err := os.ReadDir(directory)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // it is made when the target starts
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
			d.add(managedKey, err.Error(), "Delete what is not a directory of the target.")
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

// read returns the content of a file as it is after the edits.
func (d *decoder) read(name string, most int) ([]byte, error) {
	for _, e := range d.edits {
		if e.covers(name) {
			return e.Content, nil
		}
	}
	return readRegular(name, most)
}

// private says what is wrong if others than root and this user can write to a directory. Root may
// look at that of another user, for whom it checks the configuration.
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
