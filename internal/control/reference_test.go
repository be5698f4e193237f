package control

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// bodies are the examples of the bodies of requests, by operation ID.
var bodies = map[string]object{
	"ana_set":           {"group": 1, "state": "non-optimized"},
	"ana_put":           {"state": "inaccessible"},
	"ana_listeners_put": {"state": "non-optimized"},
	"groups_apply":      {"rollback": 1, "dry_run": true},
	"groups_drain":      {"group": 1},
	"groups_fence":      {"gateway": "gateway-b"},
	"groups_forget":     {"gateway": "gateway-b"},
	"hosts_disconnect":  {"host": exampleHost},
	"hosts_put":         {"limits": object{"bandwidth": "1GiB"}},
	"hosts_keys_put": {
		"key":            "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
		"old_keys_until": "2200-01-31",
	},
	"listeners_drain":      {"listener": "127.0.0.1:4420"},
	"listeners_undrain":    {"all": true},
	"listeners_put":        {"transport": "tcp", "address": "127.0.0.1", "port": 4420},
	"namespaces_pause":     {"subsystem": exampleNQN, "nsid": 1},
	"namespaces_resume":    {"subsystem": exampleNQN, "nsid": 1},
	"namespaces_resize":    {"subsystem": exampleNQN, "nsid": 1, "size": "2GiB"},
	"referrals_put":        {"hosts": []string{exampleHost}},
	"subsystems_put":       {"serial": "volume-1"},
	"subsystems_hosts_put": {},
	"subsystems_namespaces_post": {
		"backend": "file", "path": "/srv/volumes/2", "size": "1GiB",
		"uuid": "11111111-1111-1111-1111-111111111112",
	},
	"subsystems_namespaces_put": {"backend": "file", "path": "/srv/volumes/1", "size": "1GiB"},
}

const (
	exampleNQN  = "nqn.2026-11.com.example:volume-1"
	exampleHost = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111"
)

// sections are the sections of docs/configuration.md with the keys of the objects of a path.
var sections = map[string]string{
	"/v1/subsystems/{nqn}":                   "subsystems[]",
	"/v1/subsystems/{nqn}/namespaces":        "subsystems[].namespaces[]",
	"/v1/subsystems/{nqn}/namespaces/{nsid}": "subsystems[].namespaces[]",
	"/v1/hosts/{host}":                       "hosts[]",
	"/v1/listeners/{listener}":               "listeners[]",
	"/v1/referrals/{referral}":               "discovery.referrals[]",
}

// typeOf returns the type of a schema, as text.
func typeOf(schema object) string {
	if ref, ok := schema["$ref"].(string); ok {
		name := path.Base(ref)
		return "[" + name + "](#" + strings.ToLower(name) + ")"
	}
	switch schema["type"] {
	case "array":
		return "list of " + typeOf(schema["items"].(object))
	case "object":
		return "object"
	case "boolean":
		return "true or false"
	case "string":
		return "text"
	}
	return schema["type"].(string)
}

// parameters returns the parameters of an operation in its path or its query.
func parameters(op object, in string) (list []object) {
	all, _ := op["parameters"].([]any)
	for _, p := range all {
		if p := p.(object); p["in"] == in {
			list = append(list, p)
		}
	}
	return list
}

// curl returns a command line for an operation.
func curl(method, path string, op object) string {
	line := "curl -sS --unix-socket $S"
	if method != "get" {
		line += " -X " + strings.ToUpper(method)
	}
	for _, p := range parameters(op, "path") {
		value := url.PathEscape(fmt.Sprint(p["example"]))
		path = strings.ReplaceAll(path, "{"+p["name"].(string)+"}", value)
	}
	address := "http://target" + path
	for _, p := range parameters(op, "query") {
		if example, ok := p["example"]; ok {
			address = fmt.Sprintf("'%s?%s=%v'", address, p["name"], example)
		}
	}
	line += " " + address
	if op["operationId"] == "debug_pprof" {
		line += " -o heap.pprof"
	}
	if body, ok := op["requestBody"].(object); ok {
		example := body["content"].(object)["application/json"].(object)["example"]
		if b, _ := json.Marshal(example); string(b) != "{}" {
			line += " \\\n      -d '" + string(b) + "'"
		}
	}
	return line
}

// page returns docs/api.md, which is made from the document.
func page(t *testing.T) string {
	t.Helper()
	var doc object
	testutil.Must(t, json.Unmarshal(openAPI, &doc))
	var b strings.Builder
	testutil.Must(t, template.Must(template.New("api.md.tmpl").Funcs(template.FuncMap{
		"methods": func() []string { return []string{"get", "put", "post", "delete"} },
		"content": func(o object) string {
			if c, ok := o["content"].(object)["application/json"].(object); ok {
				return typeOf(c["schema"].(object))
			}
			return o["description"].(string)
		},
		"keys":   func(path string) string { return sections[path] },
		"anchor": strings.NewReplacer(".", "", "[]", "").Replace,
		"pathParameters": func(paths object) (list []object) {
			for _, path := range slices.Sorted(maps.Keys(paths)) {
				for _, operation := range paths[path].(object) {
					for _, p := range parameters(operation.(object), "path") {
						if !slices.ContainsFunc(list, func(o object) bool {
							return o["name"] == p["name"]
						}) {
							list = append(list, p)
						}
					}
				}
			}
			return list
		},
		"queryParameters": func(o object) []object { return parameters(o, "query") },
		"curl":            curl, "type": typeOf,
		"optional": func(o object, field string) bool {
			return !slices.Contains(o["required"].([]any), any(field))
		},
	}).ParseFiles("testdata/api.md.tmpl")).Execute(&b, doc))
	return b.String()
}
