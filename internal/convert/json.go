package convert

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
)

const (
	// MaxFile is the size limit of a file, in bytes: the size for 10,000 namespaces.
	MaxFile = 16 << 20
	// maxDepth bounds the nesting of values; both formats have seven levels.
	maxDepth = 16
	// maxValues bounds the number of values in a file.
	maxValues = 1 << 20
)

// value is a value of a JSON text, with the offset of its beginning.
type value struct {
	offset int
	// scalar is nil, or a bool, a string or a json.Number.
	scalar any
	items  []*value
	// names are the names of items in an object.
	names []string
	kind  byte // '{', '[' or 0
	// used has the members of an object that were asked for.
	used map[string]bool
}

// parser makes values from a JSON text, and allows each name of an object once.
type parser struct {
	text  []byte
	d     *json.Decoder
	count int
}

// parse reads a complete text. The offset is the place of an error.
func parse(text []byte) (*value, int, error) {
	p := parser{text: text, d: json.NewDecoder(bytes.NewReader(text))}
	p.d.UseNumber()
	v, err := p.value(0)
	if err == nil {
		if _, after := p.d.Token(); !errors.Is(after, io.EOF) {
			err = errors.New("more text follows the end")
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the text ends too early")
	}
	return v, p.next(), err
}

// next returns the offset of the next token.
func (p *parser) next() int {
	offset := int(p.d.InputOffset())
	return offset + len(p.text[offset:]) - len(bytes.TrimLeft(p.text[offset:], " \t\r\n,:"))
}

func (p *parser) value(depth int) (*value, error) {
	offset := p.next()
	t, err := p.d.Token()
	if err != nil {
		return nil, err
	}
	if p.count++; p.count > maxValues {
		return nil, fmt.Errorf("there are more than %d values", maxValues)
	}
	v := &value{offset: offset}
	delim, ok := t.(json.Delim)
	if !ok {
		v.scalar = t
		return v, nil
	}
	if depth == maxDepth {
		return nil, fmt.Errorf("values are nested more than %d deep", maxDepth)
	}
	v.kind = byte(delim)
	if v.kind == '{' {
		v.used = map[string]bool{}
	}
	for p.d.More() {
		if err := p.item(v, depth); err != nil {
			return nil, err
		}
	}
	_, err = p.d.Token() // the end
	return v, err
}

func (p *parser) item(v *value, depth int) error {
	if v.kind == '{' {
		t, err := p.d.Token()
		if err != nil {
			return err
		}
		name, _ := t.(string) // always a string here
		if _, twice := v.used[name]; twice {
			return fmt.Errorf("%q appears twice", short(name))
		}
		v.used[name] = false
		v.names = append(v.names, name)
	}
	item, err := p.value(depth + 1)
	v.items = append(v.items, item)
	return err
}

// member returns a member of an object, nil if it is missing or null.
func (v *value) member(name string) *value {
	if _, ok := v.used[name]; !ok {
		return nil
	}
	v.used[name] = true
	for i, n := range v.names {
		if n == name && (v.items[i].kind != 0 || v.items[i].scalar != nil) {
			return v.items[i]
		}
	}
	return nil
}

// text returns a member for messages, "" if it is missing.
func (v *value) text(name string) string {
	m := v.member(name)
	if m == nil || m.kind != 0 {
		return ""
	}
	return short(fmt.Sprint(m.scalar))
}

// ignore marks all members as used.
func (v *value) ignore() {
	for _, n := range v.names {
		v.used[n] = true
	}
}

// what names the kind of a value, for errors.
func (v *value) what() string {
	switch {
	case v.kind == '{':
		return "an object"
	case v.kind == '[':
		return "a list"
	case v.scalar == nil:
		return "null"
	}
	return `"` + short(fmt.Sprint(v.scalar)) + `"`
}

// short bounds text quoted in a message, and makes it one line.
func short(s string) string {
	const most = 100 // an NQN with a UUID has 68
	end := ""
	if len(s) > most {
		s, end = s[:most], "…"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return '?'
		}
		return r
	}, s) + end
}

// blankComments replaces a byte order mark and the comments of SPDK by as many blanks.
func blankComments(text []byte) []byte {
	text = bytes.Clone(text)
	blank := func(from, to int) int {
		for i := from; i < to; i++ {
			if text[i] != '\n' {
				text[i] = ' '
			}
		}
		return to - 1
	}
	end := func(from int, mark string) int {
		if n := bytes.Index(text[from:], []byte(mark)); n >= 0 {
			return from + n + len(mark)
		}
		return len(text)
	}
	if bytes.HasPrefix(text, []byte("\ufeff")) {
		blank(0, len("\ufeff"))
	}
	inText := false
	for i := 0; i < len(text); i++ {
		switch {
		case inText && text[i] == '\\':
			i++
		case text[i] == '"':
			inText = !inText
		case inText:
		case bytes.HasPrefix(text[i:], []byte("//")):
			i = blank(i, end(i, "\n"))
		case bytes.HasPrefix(text[i:], []byte("/*")):
			i = blank(i, end(i+2, "*/"))
		}
	}
	return text
}
