package config

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// quoteVariables escapes text so that expand returns it unchanged.
func quoteVariables(text string) string { return strings.ReplaceAll(text, "${", "$${") }

// expand returns the value of a node. In text it replaces each ${NAME} by the environment variable.
func (d *decoder) expand(n *yaml.Node) (text, what, hint string) {
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
			return "", "the environment variable " + printable(name) + " is not set",
				"Set it, or write $${ for the characters ${."
		case d.expanded > maxFile:
			return "", fmt.Sprintf("the values of variables are larger than %v", Size(maxFile)),
				"Use shorter ones."
		}
		b.WriteString(value)
		s = after
	}
}
