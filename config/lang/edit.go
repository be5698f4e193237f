package lang

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/nvmf-target/nvmf-target/internal/sys"
	"go.yaml.in/yaml/v3"
)

// maxDepth is the nesting depth of the body of a request. The file made from it is indented.
const maxDepth = 32

// Edit is a pending change of a directory of DirectoryKey: the file Path gets Content. If Content
// is nil, Path and everything below it is deleted.
type Edit struct {
	Path    string
	Content []byte
}

func (e Edit) apply(d *Decoder) { d.edits = append(d.edits, e) }

func (e *Edit) covers(file string) bool {
	return file == e.Path || strings.HasPrefix(file, e.Path+"/")
}

// ParseBody returns the mapping that a client has sent as JSON, as YAML. It may have no keys that
// name files or programs but files.
func ParseBody(body []byte, files ...string) (*yaml.Node, error) {
	if len(body) == 0 {
		body = []byte("{}")
	}
	err := json.Unmarshal(body, new(json.RawMessage)) // one value without errors
	if err == nil && !utf8.Valid(body) {
		err = errors.New("the text is not UTF-8")
	}
	if err != nil {
		return nil, BadRequest("", "not valid JSON: "+err.Error(), "")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	given, err := literal(d, maxDepth, files)
	if err == nil && given.Kind != yaml.MappingNode {
		err = BadRequest("", "must be a JSON object, not "+KindName(given),
			"It has the keys of the configuration file.")
	}
	return given, err
}

// literal reads a JSON value as a YAML node, up to a depth of left. The JSON is valid.
func literal(d *json.Decoder, left int, files []string) (*yaml.Node, error) {
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
			n = TextNode(text)
			n.Style = yaml.DoubleQuotedStyle
		}
	}
	if n.Kind == yaml.ScalarNode {
		return n, nil
	}
	if left == 0 {
		return nil, BadRequest("", fmt.Sprintf("more than %d values in one another", maxDepth), "")
	}
	given := map[string]bool{}
	for d.More() {
		if n.Kind == yaml.MappingNode {
			token, _ := d.Token()
			key := token.(string)
			if given[key] {
				return nil, BadRequest(Printable(key), "given twice", "Delete one of the two.")
			}
			given[key] = true
			if (strings.HasSuffix(key, FileSuffix) || strings.HasSuffix(key, commandSuffix)) &&
				!slices.Contains(files, key) {
				return nil, BadRequest(Printable(key), "a request cannot name a file to read, or "+
					"a program", "Send the value itself.")
			}
			n.Content = append(n.Content,
				&yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key})
		}
		value, err := literal(d, left-1, files)
		if err != nil {
			return nil, err
		}
		n.Content = append(n.Content, value)
	}
	_, err = d.Token()
	return n, err
}

// filesOf lists the files that the directory of the key has after the edits.
func (d *Decoder) filesOf(key string) (files []string) {
	entries, err := os.ReadDir(d.directory)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // it is made later
	} else if err == nil {
		err = private(d.directory)
	}
	if err != nil {
		d.Add(key, err.Error(), "Name a directory to which only its owner writes.")
		return nil
	}
	for _, e := range entries {
		dir := filepath.Join(d.directory, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		inner, err := os.ReadDir(dir)
		if err != nil {
			d.Add(key, err.Error(), "Delete it, unless a program made it.")
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
		d.Add(key, fmt.Sprintf("%d files are too many", len(files)),
			fmt.Sprintf("At most %d.", maxManaged))
		return nil
	}
	return files
}

// content returns the content that a file has after the edits.
func (d *Decoder) content(name string, most int) ([]byte, error) {
	for _, e := range d.edits {
		if e.covers(name) {
			return e.Content, nil
		}
	}
	return sys.ReadFile(name, most, false)
}

// private returns an error if users other than root and the current user can write to a directory.
// Root may use the directory of another user, because root checks the configuration for that user.
func private(directory string) error {
	info, err := os.Stat(directory)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("others may write to %s, which has mode %04o", Quoted(directory),
			info.Mode().Perm())
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if user := os.Geteuid(); ok && st.Uid != 0 && int(st.Uid) != user && user != 0 {
		return fmt.Errorf("%s belongs to the user %d", Quoted(directory), st.Uid)
	}
	return nil
}

// TextNode returns text as a value that Decode reads unchanged.
func TextNode(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: quoteVariables(text)}
}
