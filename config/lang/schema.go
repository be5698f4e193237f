package lang

import (
	"bytes"
	"encoding/json"
	"maps"
)

// Schema is a JSON Schema, draft 2020-12.
type Schema map[string]any

// JSON returns the schema of a file. It covers types, words and limits of numbers. It does not
// cover checks across several values, the limits of sizes and durations with a unit, and values
// from environment variables or other files. Keys with "x-restart" need a restart when they change.
// defs are the schemas to which Values refer.
func (m Mapping) JSON(title string, defs Schema) ([]byte, error) {
	s := m.Schema()
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = title
	s["$defs"] = defs
	defs["variable"] = Schema{"type": "string", "pattern": `\$\{`}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(s)
	return b.Bytes(), err
}

// orVariable allows text with variables in addition to rules.
func orVariable(rules Schema) Schema {
	return Schema{"anyOf": []Schema{rules, {"$ref": "#/$defs/variable"}}}
}

// TextSchema is text that follows rules; nil means any text.
func TextSchema(rules Schema) Schema {
	text := Schema{"type": "string"}
	if rules == nil {
		return text
	}
	maps.Copy(text, rules)
	return orVariable(text)
}

// Schema returns the schema of the value of the key.
func (k *Key) Schema() Schema {
	s := k.Value.Schema()
	if k.Doc != "" {
		s["description"] = k.Doc
	}
	if k.Restart {
		s["x-restart"] = true
		if section, ok := s["properties"].(Schema); ok {
			for _, inner := range section {
				inner.(Schema)["x-restart"] = true
			}
		}
	}
	text := k.Value.String()
	if k.Required != "" || k.Default != "" || text == "" {
		return s
	}
	s["default"] = text
	if t := s["type"]; t == "boolean" || t == "integer" {
		s["default"] = json.RawMessage(text)
	}
	return s
}

// Schema implements Value. Lists of mappings are not required, since they may be in another file.
func (m Mapping) Schema() Schema {
	properties, required, either := Schema{}, []string{}, []Schema{}
	for _, k := range m {
		properties[k.Name] = k.Schema()
		if k.File {
			properties[k.Name+FileSuffix] = Schema{
				"type": "string", "description": "A file with the value of " + k.Name + ".",
			}
			if k.Secret {
				properties[k.Name+commandSuffix] = Schema{
					"type": "array", "items": Schema{"type": "string"}, "minItems": 1,
					"description": "A program that prints the value of " + k.Name +
						", and its arguments.",
				}
			}
			if k.Required != "" {
				either = append(either, Schema{"anyOf": []Schema{
					{"required": []string{k.Name}}, {"required": []string{k.Name + FileSuffix}},
				}})
				continue
			}
		}
		if _, ok := k.Value.(interface{ entries() []Value }); k.Required != "" && !ok {
			required = append(required, k.Name)
		}
	}
	s := Schema{
		"type": "object", "properties": properties, "required": required,
		"additionalProperties": false,
	}
	if len(either) > 0 {
		s["allOf"] = either
	}
	return s
}

func (s *scalar) Schema() Schema { return maps.Clone(s.rules) }

func (l *list[T]) Schema() Schema {
	entry := l.Entry()
	s := Schema{
		"type": "array", "minItems": l.least, "maxItems": l.most,
		"items": entry.Schema(),
	}
	if _, ok := entry.(unique); ok {
		s["uniqueItems"] = true
	}
	return s
}
