package config

import (
	"bytes"
	"encoding/json"
	"maps"
)

// schema is a JSON Schema, draft 2020-12.
type schema map[string]any

// Schema returns the JSON Schema of a file with these backends. It covers types, words and limits
// of numbers. It does not cover checks across several values, the limits of sizes and durations
// with a unit, and values from environment variables or other files. Keys with "x-restart" need a
// restart when they change.
func Schema(backends []Backend) ([]byte, error) {
	s := Mapping(new(Config).keys()).schema(backends)
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "Configuration of nvmf-target"
	s["$defs"] = schema{
		"storage":  (&storageValue{}).schema(backends),
		"variable": schema{"type": "string", "pattern": `\$\{`},
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(s)
	return b.Bytes(), err
}

// orVariable allows text with variables in addition to rules.
func orVariable(rules schema) schema {
	return schema{"anyOf": []schema{rules, {"$ref": "#/$defs/variable"}}}
}

// textSchema is text that follows rules; nil means any text.
func textSchema(rules schema) schema {
	text := schema{"type": "string"}
	if rules == nil {
		return text
	}
	maps.Copy(text, rules)
	return orVariable(text)
}

func (k *Key) schema(backends []Backend) schema {
	s := k.Value.schema(backends)
	if k.Doc != "" {
		s["description"] = k.Doc
	}
	if k.Restart {
		s["x-restart"] = true
		if section, ok := s["properties"].(schema); ok {
			for _, inner := range section {
				inner.(schema)["x-restart"] = true
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

// schema implements Value. Lists of mappings are not required, since they may be in another file.
func (m Mapping) schema(backends []Backend) schema {
	properties, required, either := schema{}, []string{}, []schema{}
	for _, k := range m {
		properties[k.Name] = k.schema(backends)
		if k.File {
			properties[k.Name+fileSuffix] = schema{
				"type": "string", "description": "A file with the value of " + k.Name + ".",
			}
			if k.Secret {
				properties[k.Name+commandSuffix] = schema{
					"type": "array", "items": schema{"type": "string"}, "minItems": 1,
					"description": "A program that prints the value of " + k.Name +
						", and its arguments.",
				}
			}
			if k.Required != "" {
				either = append(either, schema{"anyOf": []schema{
					{"required": []string{k.Name}}, {"required": []string{k.Name + fileSuffix}},
				}})
				continue
			}
		}
		if _, ok := k.Value.(interface{ decoded() []Value }); k.Required != "" && !ok {
			required = append(required, k.Name)
		}
	}
	s := schema{
		"type": "object", "properties": properties, "required": required,
		"additionalProperties": false,
	}
	if len(either) > 0 {
		s["allOf"] = either
	}
	return s
}

func (s *scalar) schema([]Backend) schema { return maps.Clone(s.rules) }

func (l *list[T]) schema(backends []Backend) schema {
	entry := l.entry()
	s := schema{
		"type": "array", "minItems": l.least, "maxItems": l.most,
		"items": entry.schema(backends),
	}
	if _, ok := entry.(unique); ok {
		s["uniqueItems"] = true
	}
	return s
}

// schema implements Value: the keys of a storage depend on its backend.
func (v *storageValue) schema(backends []Backend) schema {
	var name string
	common := append(Mapping(v.common[:len(v.common):len(v.common)]), backendKey(&name, backends))
	s := common.schema(backends)
	delete(s, "additionalProperties")
	var kinds []schema
	for _, b := range backends {
		keys := Mapping(b.New().Keys())
		if b.Volatile {
			for i := range keys {
				keys[i].Restart = true
			}
		}
		kind := keys.schema(backends)
		properties := kind["properties"].(schema)
		for _, k := range common {
			properties[k.Name] = true
		}
		if b.Wrapper {
			properties["of"] = schema{"$ref": "#/$defs/storage"}
			kind["required"] = append(kind["required"].([]string), "of")
		}
		kinds = append(kinds, schema{
			"if": schema{
				"properties": schema{"backend": schema{"const": b.Name}},
				"required":   []string{"backend"},
			},
			"then": kind,
		})
	}
	s["allOf"] = kinds
	return s
}
