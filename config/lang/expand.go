package lang

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// quoteVariables escapes text so that expand returns it unchanged.
func quoteVariables(text string) string { return strings.ReplaceAll(text, "${", "$${") }

// Unquoted returns text of a file with "$${" replaced by the "${" that it means.
func Unquoted(text string) string { return strings.ReplaceAll(text, "$${", "${") }

// Text returns the text of a key of a mapping, or "".
func (d *Decoder) Text(mapping *yaml.Node, key string) string {
	at := Slot(mapping, key)
	if at == nil {
		return ""
	}
	text, _, _ := d.expand(resolved(*at))
	return text
}

// expand returns the value of a node. In text it replaces each ${NAME} by the environment variable.
func (d *Decoder) expand(n *yaml.Node) (text, what, hint string) {
	s := n.Value
	if n.Tag != "!!str" {
		return s, "", ""
	}
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(s, "${")
		if literal, ok := strings.CutSuffix(before, "$"); ok && found {
			b.WriteString(literal + "${")
			s = rest
			continue
		}
		b.WriteString(before)
		if !found {
			return b.String(), "", ""
		}
		name, after, closed := strings.Cut(rest, "}")
		value, set := d.environ[name]
		d.expanded += len(value)
		switch {
		case !closed:
			return "", "${ without }", "Write ${NAME}, or $${ for the characters ${."
		case !set:
			return "", "the environment variable " + Printable(name) + " is not set",
				"Set it, or write $${ for the characters ${."
		case d.expanded > maxFile:
			return "", fmt.Sprintf("the values of variables are larger than %v", Size(maxFile)),
				"Use shorter ones."
		}
		b.WriteString(value)
		s = after
	}
}
