package lang

import (
	"cmp"
	"encoding"
	"fmt"
	"math"
	"math/bits"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Value decodes the value of a key into a variable and checks it.
type Value interface {
	// Type describes the accepted text, for the documentation: "number, 32 to 1024".
	Type() string
	// String formats the content of the variable as written in a file.
	String() string
	// Decode sets the variable. It reports errors at path; the variable then keeps its default.
	Decode(d *Decoder, n *yaml.Node, path string)
	// Flatten adds the decoded value to o if it is not the default; at is the key.
	Flatten(o *Settings, at Setting)
	// Schema returns the JSON Schema of the accepted text.
	Schema() Schema
}

// Scalar is a Value of one word. name describes the accepted text in an error, with its article;
// doc describes it in the documentation. set sets the variable or returns a problem.
func Scalar(name, doc string, rules Schema, get func() string,
	set func(n *yaml.Node) (what, hint string),
) Value {
	return &scalar{name: name, doc: doc, rules: rules, get: get, set: set}
}

// scalar is a Value of one word.
type scalar struct {
	// name describes the accepted text in errors, with its article; doc does in documentation.
	name, doc string
	rules     Schema
	get       func() string
	// set sets the variable or returns a problem: unfit if the word is of another type.
	set func(n *yaml.Node) (what, hint string)

	// decoded: a value was given; initial is the default.
	decoded bool
	initial string
}

const unfit = "unfit"

// Derived returns v with the content of its variable as a value, even if no file gives one: the
// default is known only when the whole configuration has been decoded.
func Derived(v Value) Value {
	s := v.(*scalar)
	s.decoded, s.initial = true, s.get()
	return s
}

func (s *scalar) Type() string { return s.doc }

func (s *scalar) String() string { return s.get() }

func (s *scalar) Decode(d *Decoder, n *yaml.Node, path string) {
	s.decoded, s.initial = true, s.get()
	what, hint := unfit, "Write one value."
	if n.Kind == yaml.ScalarNode {
		word := *n
		if word.Value, what, hint = d.expand(n); what == "" {
			what, hint = s.set(&word)
		}
	}
	switch {
	case what == unfit && n.Tag == "!!null" && n.Value == "":
		what, hint = "has no value", "Give it one, or delete the key."
	case what == unfit:
		what = "must be " + s.name + ", not " + KindName(n)
	}
	if what != "" {
		d.Add(path, what, hint)
	}
}

// assign sets *p unless v is outside its limits.
func assign[T any, V cmp.Ordered](p *T, v, least, most V, to func(V) T, format func(V) string,
) (what, hint string) {
	switch {
	case v < least:
		return format(v) + " is too small", "At least " + format(least) + "."
	case v > most:
		return format(v) + " is too large", "At most " + format(most) + "."
	}
	*p = to(v)
	return "", ""
}

// Bool is true or false.
func Bool(p *bool) Value { return boolean(p, true) }

// Not is true or false; the variable has the opposite.
func Not(p *bool) Value { return boolean(p, false) }

// boolean is true or false; true sets the variable to yes, false to the opposite.
func boolean(p *bool, yes bool) Value {
	return &scalar{
		name: "true or false", doc: "true or false", rules: Schema{"type": "boolean"},
		get: func() string { return strconv.FormatBool(*p == yes) },
		set: func(n *yaml.Node) (what, hint string) {
			b, err := strconv.ParseBool(n.Value)
			if n.Tag != "!!bool" || err != nil {
				return unfit, "Write true or false."
			}
			*p = b == yes
			return "", ""
		},
	}
}

// Int is a whole number.
func Int[T ~int | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64](p *T, least, most int) Value {
	return &scalar{
		name: "a whole number", doc: fmt.Sprintf("number, %d to %d", least, most),
		rules: Schema{"type": "integer", "minimum": least, "maximum": most},
		get:   func() string { return fmt.Sprint(*p) },
		set: func(n *yaml.Node) (what, hint string) {
			if n.Tag != "!!int" {
				return unfit, "Write a whole number without quotes or unit."
			}
			i, err := strconv.ParseInt(n.Value, 0, strconv.IntSize)
			if err != nil {
				return Printable(n.Value) + " is out of range",
					fmt.Sprintf("Write a number from %d to %d.", least, most)
			}
			return assign(p, int(i), least, most, func(i int) T { return T(i) }, strconv.Itoa)
		},
	}
}

const (
	// NoLimit is more bytes than any storage has.
	NoLimit = math.MaxInt64
	// AnySize is a unit of Bytes for sizes that need no alignment.
	AnySize = 1
	// PowerOfTwo instead of a unit means that the size must be a power of two.
	PowerOfTwo = 0
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
	return &scalar{
		name: "a size in bytes", doc: doc, rules: orVariable(Schema{
			"type": []string{"integer", "string"}, "minimum": least, "maximum": most,
			"pattern": `^[0-9]+(\s*([KMGTP]i?|k)?B)?$`,
		}), get: func() string { return Size(*p).String() },
		set: func(n *yaml.Node) (what, hint string) {
			hint = "Write a whole number with a unit, such as 10GiB; units: " + sizeUnits + "."
			if n.Tag != "!!str" && n.Tag != "!!int" {
				return unfit, hint
			}
			size, err := ParseSize(n.Value)
			switch above := Size(1) << bits.Len64(uint64(size)); {
			case err != nil:
				return err.Error(), cmp.Or(unitHint(n.Value), hint)
			case unit == PowerOfTwo && size&(size-1) != 0:
				return size.String() + " is not a power of two",
					fmt.Sprintf("Use %v or %v.", above/2, above)
			case unit > 1 && size%unit != 0:
				return fmt.Sprintf("%v is not a multiple of %d", size, unit), "Round it."
			}
			return assign(p, size, least, most, func(s Size) T { return T(s) }, Size.String)
		},
	}
}

// Duration is a span of time.
func Duration(p *time.Duration, least, most time.Duration) Value {
	return &scalar{
		name: "a duration", doc: "duration, " + duration(least) + " to " + duration(most),
		rules: TextSchema(Schema{
			"pattern": `^\+?(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|[uµμ]s|ms|s|m|h))+)$`,
		}),
		get: func() string { return duration(*p) },
		set: func(n *yaml.Node) (what, hint string) {
			hint = "Write a number with a unit, such as 50us, 10ms or 5s."
			if n.Tag != "!!str" {
				return unfit, hint
			}
			v, err := time.ParseDuration(n.Value)
			if err != nil {
				return Printable(strconv.Quote(n.Value)) + " is not a duration", hint
			}
			return assign(p, v, least, most, func(v time.Duration) time.Duration { return v },
				duration)
		},
	}
}

// duration formats d without the zero units that time.Duration.String adds.
func duration(d time.Duration) string {
	s := strings.Replace(d.String(), "µ", "u", 1)
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Parsed is text that set parses. doc is its Type, rules what a schema can express of the checks.
func Parsed(doc string, rules Schema, get func() string,
	set func(text string) (what, hint string),
) Value {
	return &scalar{
		name: "text", doc: doc, rules: TextSchema(rules), get: get,
		set: func(n *yaml.Node) (what, hint string) {
			if n.Tag == "!!str" {
				return set(n.Value)
			}
			if what, hint := set(n.Value); what != "" && n.Tag != "!!null" {
				return what, hint // quotes would not help
			}
			return unfit, "Put it in quotes: " + strconv.Quote(Printable(n.Value)) + "."
		},
	}
}

// Text is any text.
func Text(p *string) Value {
	return Checked(p, "text", nil, func(string) (what, hint string) { return "", "" })
}

// Checked is text with a check.
func Checked(p *string, doc string, rules Schema, check func(text string) (what, hint string),
) Value {
	return Parsed(doc, rules, func() string { return *p },
		func(text string) (what, hint string) {
			if what, hint = check(text); what == "" {
				*p = text
			}
			return what, hint
		})
}

// Unmarshaled is text for a type that parses it, with a hint for other text, and checks by check.
func Unmarshaled[T any, P interface {
	*T
	encoding.TextUnmarshaler
	fmt.Stringer
}](p P, doc string, hint func(text string) string, check func(P) (what, hint string)) Value {
	get := func() string { return p.String() }
	return Parsed(doc, nil, get, func(text string) (string, string) {
		v := P(new(T))
		if err := v.UnmarshalText([]byte(text)); err != nil {
			return fmt.Sprintf("%q is not an %s", Printable(text), doc), hint(text)
		}
		what, hint := check(v)
		if what == "" {
			*p = *v
		}
		return what, hint
	})
}

// Choice is a word and its meaning.
type Choice[T any] struct {
	Word    string
	Meaning T
}

// Choose is one of several words.
func Choose[T comparable](p *T, choices ...Choice[T]) Value {
	words := make([]string, len(choices))
	for i, c := range choices {
		words[i] = c.Word
	}
	list := strings.Join(words, ", ")
	get := func() string {
		for _, c := range choices {
			if c.Meaning == *p {
				return c.Word
			}
		}
		return ""
	}
	rules := Schema{"enum": words}
	return Parsed("one of "+list, rules, get, func(text string) (what, hint string) {
		for _, c := range choices {
			if c.Word == text {
				*p = c.Meaning
				return "", ""
			}
		}
		return fmt.Sprintf("%q is not possible here", Printable(text)), "Use one of: " + list + "."
	})
}

// OneOf is one of several words.
func OneOf(p *string, words ...string) Value {
	choices := make([]Choice[string], len(words))
	for i, w := range words {
		choices[i] = Choice[string]{w, w}
	}
	return Choose(p, choices...)
}

// Words is one of several numbers with names.
func Words[T interface {
	comparable
	fmt.Stringer
}](p *T, all []T) Value {
	choices := make([]Choice[T], len(all))
	for i, v := range all {
		choices[i] = Choice[T]{v.String(), v}
	}
	return Choose(p, choices...)
}

// Either is one of two words for a bool.
func Either(p *bool, no, yes string) Value {
	return Choose(p, Choice[bool]{no, false}, Choice[bool]{yes, true})
}

// Doubtful returns v with a warning about words that are probably a mistake; why is "" for others.
func Doubtful(v Value, why func(word string) (what, hint string)) Value { return doubtful{v, why} }

type doubtful struct {
	Value
	why func(word string) (what, hint string)
}

func (v doubtful) Decode(d *Decoder, n *yaml.Node, path string) {
	v.Value.Decode(d, n, path)
	if d.bad[path] || n.Kind != yaml.ScalarNode {
		return
	}
	if what, hint := v.why(n.Value); what != "" {
		d.AddWarning(path, what, hint)
	}
}

// bareLimit is the smallest size without a unit that is not doubtful.
const bareLimit = 1 << 20

// BareSize is a check for Doubtful: a small size without a unit is probably not meant in bytes.
func BareSize(word string) (what, hint string) {
	n, err := strconv.ParseUint(word, 10, 64)
	if err != nil || n == 0 || n >= bareLimit {
		return "", ""
	}
	return fmt.Sprintf("%d without a unit is %[1]d bytes", n),
		fmt.Sprintf("Write %dMiB or %[1]dGiB if that is meant, or %[1]dB.", n)
}

// Unique is a Value that no two entries of a list may share under the same key.
func Unique(v Value, hint string) Value { return unique{v, "", hint} }

// unique is a Value that no other key of the same kind may have; kind "" is the kind of Unique.
type unique struct {
	Value
	kind, hint string
}

func (u unique) Decode(d *Decoder, n *yaml.Node, path string) {
	u.Value.Decode(d, n, path)
	if d.bad[path] {
		return
	}
	kind, value := u.kind, u.String()
	switch i, j := strings.LastIndex(path, "["), strings.LastIndex(path, "]"); kind {
	case "":
		kind = path[:i] + path[j:]
	case pathKind:
		value = filepath.Clean(value)
	}
	d.Once(kind, value, path, u.hint)
}

const pathKind = "path"

// UniqueAs is a Value that no other key of the same kind may share.
func UniqueAs(kind string, v Value, hint string) Value { return unique{v, kind, hint} }

// UniquePath is a Path that no other UniquePath may share, however it is written.
func UniquePath(p *string, hint string) Value { return unique{Path(p), pathKind, hint} }

// Path is an absolute path.
func Path(p *string) Value {
	return Checked(p, "absolute path", Schema{"pattern": "^/"}, func(s string) (what, hint string) {
		if !filepath.IsAbs(s) {
			return fmt.Sprintf("%q is not an absolute path", Printable(s)), "Begin it with /."
		}
		return "", ""
	})
}
