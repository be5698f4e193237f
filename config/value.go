package config

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// Value decodes the value of a key into a variable and checks it against its limits.
type Value interface {
	// Type says what may be written, for the documentation: "whole number, 32 to 1024".
	Type() string
	// String is what the variable holds, as it would be written.
	String() string
	// decode reports what is wrong at path; the variable then keeps its default.
	decode(d *decoder, n *yaml.Node, path string)
}

// scalar is a Value of one word.
type scalar[T any] struct {
	p *T
	// name is what must be written, with its article, and doc the same for the documentation.
	name, doc string
	// parse is the value of a node, or what is wrong with it: unfit if it is of another type.
	parse  func(n *yaml.Node) (v T, what, hint string)
	format func(T) string
	// check says what is wrong with a value; nil accepts all.
	check func(T) (what, hint string)
}

// unfit has scalar say which type a value has and which it must have.
const unfit = "unfit"

func (s *scalar[T]) decode(d *decoder, n *yaml.Node, path string) {
	if n.Kind != yaml.ScalarNode {
		d.add(path, "must be "+s.name+", not "+kindName(n), "Write one value.")
		return
	}
	v, what, hint := s.parse(n)
	switch {
	case what == unfit && n.Tag == "!!null" && n.Value == "":
		what, hint = "has no value", "Give it one, or delete the key."
	case what == unfit:
		what = "must be " + s.name + ", not " + kindName(n)
	case what == "" && s.check != nil:
		what, hint = s.check(v)
	}
	if what != "" {
		d.add(path, what, hint)
		return
	}
	*s.p = v
}

// Type implements Value.
func (s *scalar[T]) Type() string { return s.doc }

// String implements Value.
func (s *scalar[T]) String() string { return s.format(*s.p) }

// between adds limits.
func between[T cmp.Ordered](s *scalar[T], least, most T) *scalar[T] {
	s.doc += ", " + s.format(least) + " to " + s.format(most)
	s.check = func(v T) (what, hint string) { return outside(v, least, most, s.format) }
	return s
}

// outside says whether a value is too small or too large.
func outside[T cmp.Ordered](v, least, most T, format func(T) string) (what, hint string) {
	switch {
	case v < least:
		return format(v) + " is too small", "At least " + format(least) + "."
	case v > most:
		return format(v) + " is too large", "At most " + format(most) + "."
	}
	return "", ""
}

// Bool is true or false.
func Bool(p *bool) Value { return boolean(p, true) }

// boolean is true or false for a variable that is then yes or its opposite.
func boolean(p *bool, yes bool) Value {
	return &scalar[bool]{
		p: p, name: "true or false", doc: "true or false",
		format: func(v bool) string { return strconv.FormatBool(v == yes) },
		parse: func(n *yaml.Node) (v bool, what, hint string) {
			b, err := strconv.ParseBool(n.Value)
			if n.Tag != "!!bool" || err != nil {
				return false, unfit, "Write true or false."
			}
			return b == yes, "", ""
		},
	}
}

// Int is a whole number.
func Int[T ~int | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64](p *T, least, most int) Value {
	return &scalar[T]{
		p: p, name: "a whole number", doc: fmt.Sprintf("number, %d to %d", least, most),
		format: func(v T) string { return fmt.Sprint(v) },
		parse: func(n *yaml.Node) (v T, what, hint string) {
			if n.Tag != "!!int" {
				return 0, unfit, "Write a whole number without quotes or unit."
			}
			i, err := strconv.ParseInt(n.Value, 0, strconv.IntSize)
			if err != nil {
				return 0, printable(n.Value) + " is out of range",
					fmt.Sprintf("Write a number from %d to %d.", least, most)
			}
			what, hint = outside(int(i), least, most, strconv.Itoa)
			return T(i), what, hint
		},
	}
}

const (
	// NoLimit is more bytes than any storage has.
	NoLimit = math.MaxInt64
	// AnySize and PowerOfTwo are units of Bytes.
	AnySize, PowerOfTwo = 1, 0
)

// Bytes is a number of bytes, a multiple of unit or a power of two; most may be NoLimit.
func Bytes[T ~int | ~int64](p *T, least, most, unit Size) Value {
	doc := "size"
	switch {
	case most != NoLimit:
		doc += fmt.Sprintf(", %v to %v", least, most)
	case least > 0:
		doc += fmt.Sprintf(", at least %v", least)
	}
	if unit == PowerOfTwo {
		doc += ", a power of two"
	} else if unit > 1 {
		doc += fmt.Sprintf(", a multiple of %d", unit)
	}
	return &scalar[T]{
		p: p, name: "a size in bytes", doc: doc, format: func(v T) string { return Size(v).String() },
		parse: func(n *yaml.Node) (v T, what, hint string) {
			hint = "Write a whole number with a unit, such as 10GiB; units: " + sizeUnits + "."
			if n.Tag != "!!str" && n.Tag != "!!int" {
				return 0, unfit, hint
			}
			size, err := ParseSize(n.Value)
			if err != nil {
				return 0, err.Error(), hint
			}
			what, hint = outside(size, least, most, Size.String)
			switch {
			case what != "":
			case unit == PowerOfTwo && size&(size-1) != 0:
				what, hint = size.String()+" is not a power of two", "Use "+around(size)+"."
			case unit > 1 && size%unit != 0:
				what, hint = fmt.Sprintf("%v is not a multiple of %d", size, unit), "Round it."
			}
			return T(size), what, hint
		},
	}
}

// around is the powers of two around a size.
func around(s Size) string {
	above := Size(1) << bits.Len64(uint64(s))
	return fmt.Sprintf("%v or %v", above/2, above)
}

// Duration is a time.
func Duration(p *time.Duration, least, most time.Duration) Value {
	format := func(d time.Duration) string {
		s := d.String()
		if short, ok := strings.CutSuffix(s, "m0s"); ok {
			s = short + "m"
		}
		if short, ok := strings.CutSuffix(s, "h0m"); ok {
			s = short + "h"
		}
		return strings.Replace(s, "µ", "u", 1)
	}
	return between(&scalar[time.Duration]{
		p: p, name: "a duration", doc: "duration", format: format,
		parse: func(n *yaml.Node) (time.Duration, string, string) {
			what := unfit
			if n.Tag == "!!str" {
				d, err := time.ParseDuration(n.Value)
				if err == nil {
					return d, "", ""
				}
				what = printable(strconv.Quote(n.Value)) + " is not a duration"
			}
			return 0, what, "Write a number with a unit, such as 50us, 10ms or 5s."
		},
	}, least, most)
}

// Parsed is text with a meaning; parse says what is wrong with it. doc is its Type.
func Parsed[T any](p *T, doc string, format func(T) string,
	parse func(text string) (v T, what, hint string),
) Value {
	return &scalar[T]{
		p: p, name: "text", doc: doc, format: format,
		parse: func(n *yaml.Node) (v T, what, hint string) {
			if n.Tag != "!!str" {
				return v, unfit, "Put it in quotes: " + strconv.Quote(printable(n.Value)) + "."
			}
			return parse(n.Value)
		},
	}
}

// checked is text with a check.
func checked(p *string, doc string, check func(text string) (what, hint string)) Value {
	return Parsed(p, doc, func(s string) string { return s }, func(s string) (v, what, hint string) {
		what, hint = check(s)
		return s, what, hint
	})
}

// Text is any text.
func Text(p *string) Value {
	return checked(p, "text", func(string) (what, hint string) { return "", "" })
}

// Choice is a word and what it means.
type Choice[T any] struct {
	Word    string
	Meaning T
}

// Choose is one of some words.
func Choose[T comparable](p *T, choices ...Choice[T]) Value {
	words := make([]string, len(choices))
	for i, c := range choices {
		words[i] = c.Word
	}
	format := func(v T) string {
		for _, c := range choices {
			if c.Meaning == v {
				return c.Word
			}
		}
		return ""
	}
	return Parsed(p, "one of "+strings.Join(words, ", "), format,
		func(s string) (v T, what, hint string) {
			for _, c := range choices {
				if c.Word == s {
					return c.Meaning, "", ""
				}
			}
			return v, fmt.Sprintf("%q is not possible here", printable(s)),
				"Use one of: " + strings.Join(words, ", ") + "."
		})
}

// OneOf is one of some words.
func OneOf(p *string, words ...string) Value {
	choices := make([]Choice[string], len(words))
	for i, w := range words {
		choices[i] = Choice[string]{w, w}
	}
	return Choose(p, choices...)
}

// Unique is a Value that no other entry of its list may have under the same key.
func Unique(v Value, hint string) Value { return unique{v, "", hint} }

// unique is a Value that no other key of the same kind may have; kind "" is that of Unique.
type unique struct {
	Value
	kind, hint string
}

func (u unique) decode(d *decoder, n *yaml.Node, path string) {
	u.Value.decode(d, n, path)
	if d.bad[path] {
		return
	}
	kind := u.kind
	if i, j := strings.LastIndex(path, "["), strings.LastIndex(path, "]"); kind == "" {
		kind = path[:i] + path[j:]
	}
	value := u.String()
	if kind == pathKind {
		value = filepath.Clean(value)
	}
	d.once(kind, value, path, u.hint)
}

const pathKind = "path"

// Path is an absolute path of storage.
func Path(p *string) Value {
	return unique{checked(p, "absolute path", func(s string) (what, hint string) {
		if !filepath.IsAbs(s) {
			return fmt.Sprintf("%q is not an absolute path", printable(s)), "Begin it with /."
		}
		return "", ""
	}), pathKind, "Two namespaces on one would overwrite each other; give each its own."}
}

func nqn(p *string, hint string, check func(string) error) Value {
	return Unique(checked(p, "NQN", func(s string) (what, hint string) {
		if err := check(s); err != nil {
			return err.Error(), "An NQN is nqn.YYYY-MM.REVERSED.DOMAIN:NAME or " +
				"nqn.2014-08.org.nvmexpress:uuid:UUID, 223 bytes at most."
		}
		return "", ""
	}), hint)
}

func subsystemNQN(s string) error {
	if s == nvme.DiscoveryNQN {
		return errors.New("the discovery subsystem exists by itself")
	}
	return nvme.ValidateNQN(s)
}

// ascii is one of the strings of Identify Controller, of printable ASCII characters (Base sections
// 1.4.2 and 5.1.13.2.1).
func ascii(p *string, size int) Value {
	return checked(p, fmt.Sprintf("text, up to %d characters", size), func(s string) (what, hint string) {
		if len(s) > size {
			return fmt.Sprintf("%d characters, but NVMe has room for %d", len(s), size), "Shorten it."
		}
		if i := strings.IndexFunc(s, func(r rune) bool { return r < 0x20 || r > 0x7E }); i >= 0 {
			return "contains a character that is not printable ASCII: " +
				printable(s[i:min(len(s), i+4)]), "Use letters, digits, blanks and punctuation."
		}
		return "", ""
	})
}

const identifierHint = "Identifiers must be unique, or hosts ignore the namespace."

func id(p *uuid.UUID) Value {
	parse := func(s string) (id uuid.UUID, what, hint string) {
		id, err := uuid.Parse(s)
		if err != nil || len(s) != 36 || id == uuid.Nil {
			return id, fmt.Sprintf("%q is not a UUID", printable(s)),
				"Write the output of uuidgen, or delete the key: a stable one is derived."
		}
		return id, "", ""
	}
	format := func(id uuid.UUID) string {
		if id == uuid.Nil {
			return ""
		}
		return id.String()
	}
	return unique{Parsed(p, "UUID", format, parse), "uuid", identifierHint}
}

// hexadecimal is an NGUID or EUI-64.
func hexadecimal[A [8]byte | [16]byte](p *A) Value {
	digits := 2 * len(*p)
	parse := func(s string) (a A, what, hint string) {
		b, err := hex.DecodeString(s)
		if err != nil || len(s) != digits || strings.Trim(s, "0") == "" {
			return a, fmt.Sprintf("%q is not %d hexadecimal digits other than all zeroes",
				printable(s), digits), "Correct it, or delete the key: a stable one is derived."
		}
		return A(b), "", ""
	}
	format := func(a A) string {
		if a == *new(A) {
			return ""
		}
		return fmt.Sprintf("%x", a)
	}
	return unique{
		Parsed(p, fmt.Sprintf("%d hexadecimal digits", digits), format, parse),
		"identifier", identifierHint,
	}
}

// address is an IP address that can be listened on.
func address(p *netip.Addr) Value {
	return Parsed(p, "IP address", netip.Addr.String, func(s string) (netip.Addr, string, string) {
		addr, err := netip.ParseAddr(s)
		if err != nil {
			return addr, fmt.Sprintf("%q is not an IP address", printable(s)),
				"Write an IPv4 or IPv6 address, 0.0.0.0 or \"::\"; host names are not resolved."
		}
		what, hint := local(addr)
		return addr, what, hint
	})
}

// addrPort is an IP address and a port that can be listened on; "" is none.
func addrPort(p *netip.AddrPort) Value {
	return Parsed(p, "IP address and port", netip.AddrPort.String,
		func(s string) (addr netip.AddrPort, what, hint string) {
			if s == "" {
				return addr, "", ""
			}
			addr, err := netip.ParseAddrPort(s)
			if err != nil {
				return addr, fmt.Sprintf("%q is not an IP address and a port", printable(s)),
					"Write for instance 127.0.0.1:9500 or \"[::1]:9500\"; host names are not resolved."
			}
			what, hint = local(addr.Addr())
			return addr, what, hint
		})
}

// local says why an address cannot be listened on anywhere.
func local(addr netip.Addr) (what, hint string) {
	switch {
	case addr.Is6() && addr.IsLinkLocalUnicast() && addr.Zone() == "":
		return "a link-local IPv6 address needs its interface",
			fmt.Sprintf("Write \"%s%%eth0\" with the interface's name.", addr)
	case addr.IsMulticast():
		return "a multicast address cannot be listened on", "Write an address of this machine."
	}
	return "", ""
}
