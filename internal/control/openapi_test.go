package control

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

//go:generate go test -run TestOpenAPI -update .

type object = map[string]any

// schemas returns the schemas of the types of api.go and package observed, made from their fields
// and comments.
func schemas(t *testing.T) object {
	t.Helper()
	all, decls := object{}, []ast.Decl{}
	for _, name := range []string{
		"api.go", "../observed/state.go", "../observed/activity.go", "../observed/groups.go",
	} {
		f := testutil.Value(parser.ParseFile(token.NewFileSet(), name, nil,
			parser.ParseComments))(t)
		decls = append(decls, f.Decls...)
	}
	for _, d := range decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		spec := g.Specs[0].(*ast.TypeSpec)
		if _, ok := spec.Type.(*ast.MapType); ok {
			all[spec.Name.Name] = object{"type": "object", "description": comment(g.Doc)}
			continue
		}
		properties, required := object{}, []string{}
		fields := spec.Type.(*ast.StructType).Fields.List
		for _, field := range fields {
			name, omitted := jsonName(field)
			if name == "-" {
				continue
			}
			properties[name] = schema(field.Type)
			if !omitted {
				required = append(required, name)
			}
			if text := meaning(field, fields); text != "" {
				properties[name].(object)["description"] = text
			}
		}
		all[spec.Name.Name] = object{
			"type": "object", "description": comment(g.Doc), "properties": properties,
			"required": required, "additionalProperties": false,
		}
	}
	delete(all, "Object") // the path of a request names it
	return all
}

// jsonName returns the name of a field in JSON, and whether it is omitted when it is empty.
func jsonName(field *ast.Field) (name string, omitted bool) {
	tag := reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("json")
	name, option, _ := strings.Cut(tag, ",")
	return name, option != ""
}

// meaning returns the comment of a field, or its part of the first one that explains it as well,
// with the names of fields in JSON.
func meaning(field *ast.Field, fields []*ast.Field) string {
	text, name := comment(field.Doc), field.Names[0].Name
	var names []string
	for _, f := range fields {
		names = append(names, f.Names[0].Name)
		if json, _ := jsonName(f); text == "" && json != "-" &&
			regexp.MustCompile(`\b`+name+`\b`).MatchString(f.Doc.Text()) {
			text = comment(f.Doc)
		}
	}
	begin := regexp.MustCompile(`^` + name + `(?: is| are|:) |[,.] ` + name + `(?: is)? `)
	if at := begin.FindStringIndex(text); at != nil && !strings.HasPrefix(text[at[1]:], "and ") {
		text = text[at[1]:]
	}
	end := regexp.MustCompile(`, (?:` + strings.Join(names, "|") + `) `)
	if at := end.FindStringIndex(text); at != nil && !strings.HasPrefix(text[at[1]:], "and ") {
		text = text[:at[0]] + "."
	}
	for _, f := range fields {
		if id := f.Names[0].Name; strings.ToUpper(id) != id {
			json, _ := jsonName(f)
			text = regexp.MustCompile(`\b`+id+`\b`).ReplaceAllString(text, json)
		}
	}
	return text
}

func comment(g *ast.CommentGroup) string { return strings.Join(strings.Fields(g.Text()), " ") }

// schema returns the schema of a Go type.
func schema(e ast.Expr) object {
	switch e := e.(type) {
	case *ast.StarExpr:
		return schema(e.X)
	case *ast.ArrayType:
		return object{"type": "array", "items": schema(e.Elt)}
	case *ast.MapType:
		return object{"type": "object", "additionalProperties": schema(e.Value)}
	case *ast.SelectorExpr:
		switch e.Sel.Name {
		case "Time":
			return object{"type": "string", "format": "date-time"}
		case "AddrPort":
			return object{"type": "string"}
		}
		return schema(e.Sel)
	}
	switch name := e.(*ast.Ident).Name; name {
	case "string":
		return object{"type": "string"}
	case "bool":
		return object{"type": "boolean"}
	case "float64":
		return object{"type": "number"}
	case "int", "int64", "uint16", "uint32", "uint64":
		return object{"type": "integer"}
	default:
		return object{"$ref": "#/components/schemas/" + name}
	}
}

// content describes the content of a request or an answer.
func content(mediaType string, v any) object {
	t := reflect.TypeOf(v)
	s := object{"$ref": "#/components/schemas/" + t.Name()}
	if t.Kind() == reflect.Slice {
		s = object{"type": "array", "items": object{"$ref": "#/components/schemas/" +
			t.Elem().Name()}}
	}
	return object{mediaType: object{"schema": s}}
}

// query describes a parameter of a query.
func query(name, kind, text string) object {
	return object{
		"name": name, "in": "query", "schema": object{"type": kind}, "description": text,
	}
}

// eventParameters are the parameters of GET /v1/events.
var eventParameters = []object{
	query("since", "integer", "Only events with a higher ID."),
	query("follow", "boolean", "Keep the connection and send one object per line, as they happen."),
}

// traceParameters are the parameters of GET /v1/trace.
var traceParameters = []object{
	query("host", "string", "Only queues of this host."),
	query("subsystem", "string", "Only queues of this subsystem."),
	{
		"name": "queue", "in": "query",
		"schema":      object{"type": "integer", "minimum": 0, "maximum": 65535},
		"description": "Only queues with this ID.",
	},
	query("follow", "boolean", "Keep the connection and send commands as they are completed."),
	query("dumps", "boolean", "Commands kept of queues that failed, or had a slow command."),
}

// profileParameters are the parameters of GET /v1/debug/pprof/{profile}.
var profileParameters = []object{
	{
		"name": "profile", "in": "path", "required": true,
		"schema": object{"type": "string", "enum": Profiles}, "example": "heap",
		"description": "One of " + strings.Join(Profiles, ", ") + ". profile is that of the CPU.",
	},
	{
		"name": "seconds", "in": "query",
		"schema":      object{"type": "integer", "minimum": 1, "maximum": MaxProfile},
		"description": "The duration of a profile of the CPU, or of a trace.",
	},
}

// operationID returns the path without placeholders, with the method if it is not obvious.
func operationID(method, path string) string {
	var words []string
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "/v1/"), "/") {
		if !strings.HasPrefix(part, "{") {
			words = append(words, part)
		}
	}
	if method != http.MethodGet && strings.Contains(path, "{") ||
		strings.HasSuffix(path, "}") && !strings.HasSuffix(profileRoute, path) {
		words = append(words, strings.ToLower(method))
	}
	return strings.Join(words, "_")
}

// pathParameters returns the parameters of an operation on an object.
func pathParameters(method, path string) (list []object) {
	for _, p := range []struct {
		name, kind, text string
		example          any
	}{
		{"nqn", "string", "The NQN of the subsystem.", exampleNQN},
		{"nsid", "integer", "The ID of the namespace.", 1},
		{"host", "string", "The NQN of the host.", exampleHost},
		{
			"key", "string", "dhchap_key, dhchap_ctrl_key, tls_key, or one that rotation sets, " +
				"dhchap_old_key or tls_old_key.", "dhchap_key",
		},
		{
			"listener", "string", "The name that the configuration gives the listener, or its " +
				"transport, address and port: tcp 10.0.0.1:4420, rdma [fd00::1]:4420.", "storage",
		},
		{
			"referral", "string", "The transport and the address with the port: " +
				"tcp 10.0.0.9:8009. If the discovery service has an NQN of its own, that follows " +
				"after a blank.", "tcp 10.0.0.9:8009",
		},
		{"cntlid", "integer", "The controller ID.", 1},
		{"port", "integer", "The port ID.", 1},
		{"group", "integer", "The ANA group.", 1},
	} {
		if strings.Contains(path, "{"+p.name+"}") {
			list = append(list, object{
				"name": p.name, "in": "path", "required": true, "description": p.text,
				"schema": object{"type": p.kind}, "example": p.example,
			})
		}
	}
	if strings.HasPrefix(path, "/v1/ana/") {
		return list
	}
	if method == http.MethodPut || method == http.MethodDelete {
		list = append(list, query("dry_run", "boolean",
			"Nothing is changed. The answer has the connected hosts that the changes concern."))
	}
	if method == http.MethodDelete && path == "/v1/subsystems/{nqn}" {
		list = append(list, object{
			"name": "recursive", "in": "query", "schema": object{"type": "boolean"},
			"example":     true,
			"description": "With all namespaces and hosts that were created in it.",
		})
	}
	return list
}

// document describes the operations of the server.
func document(t *testing.T) []byte {
	t.Helper()
	s := &Server{src: testSource(new(feed))}
	paths := object{}
	operations := append(s.routes(),
		route{eventsRoute, "The last lines of the log", Read, nil, []observed.Event{}, nil},
		route{
			traceRoute, "The last commands of each queue", Operate, nil,
			[]observed.TraceQueue{},
			nil,
		},
		route{profileRoute, "A profile of the target", Admin, nil, []byte{}, nil})
	for _, r := range operations {
		method, path, _ := strings.Cut(r.pattern, " ")
		answer := object{
			"description": "What was asked for", "content": content("application/json", r.answer),
		}
		id := operationID(method, path)
		op := object{
			"summary": r.summary, "operationId": id,
			"description": "Role: " + r.role.String() + ".", "responses": object{
				"200": answer,
				"default": object{
					"description": "An error", "content": content(problemType, Problem{}),
				},
			},
		}
		if r.body != nil {
			body := content("application/json", r.body)
			body["application/json"].(object)["example"] = bodies[id]
			op["requestBody"] = object{"required": method != http.MethodPut, "content": body}
		}
		text := object{"schema": object{"type": "string"}}
		switch id {
		case "events":
			op["parameters"] = eventParameters
			answer["content"].(object)[eventsType] = text
		case "trace":
			op["parameters"] = traceParameters
			answer["description"] = "Lines of JSON, each a TraceQueue"
			answer["content"] = object{eventsType: text}
		case "debug_pprof":
			op["parameters"] = profileParameters
			answer["description"] = "A file for go tool pprof or, for trace, go tool trace"
			answer["content"] = object{"application/octet-stream": text}
		}
		if parameters := pathParameters(method, path); len(parameters) > 0 {
			op["parameters"] = parameters
		}
		if paths[path] == nil {
			paths[path] = object{}
		}
		paths[path].(object)[strings.ToLower(method)] = op
	}
	b, err := json.MarshalIndent(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "nvmf-target", "version": "1",
			"description": "The control interface of a target. Requests that create and " +
				"delete can be repeated. An error is a Problem. 400: a parameter, or the form of " +
				"the body, is wrong. 403: the client does not have the role, or a path is " +
				"outside managed_paths. 404: there is no such object, or no subsystem to create " +
				"it in. 405: the header Allow has the possible methods. 409: the configuration, " +
				"or the state of the target, forbids it. 413: the body is too large. 415: the " +
				"body is not JSON. 422: the body has errors. 503: repeat the request a second " +
				"later.",
		},
		"paths": paths, "components": object{"schemas": schemas(t)},
	}, "", " ")
	testutil.Must(t, err)
	return append(b, '\n')
}

// TestOpenAPI: the document is valid and agrees with the code, and docs/api.md agrees with both.
func TestOpenAPI(t *testing.T) {
	got := document(t)
	if *testutil.Update {
		testutil.Must(t, os.WriteFile("openapi.json", got, 0o644))
		openAPI = got
	}
	testutil.True(t, bytes.Equal(got, openAPI),
		"openapi.json is not what the code says: go generate ./internal/control")
	load(t)
	testutil.Golden(t, "../../docs/api.md", page(t))
}

func load(t *testing.T) routers.Router {
	t.Helper()
	doc := testutil.Value(openapi3.NewLoader().LoadFromData(openAPI))(t)
	testutil.Must(t, doc.Validate(t.Context()))
	r := testutil.Value(gorillamux.NewRouter(doc))(t)
	return r
}

// TestAnswersAreAsDescribed: every operation accepts and answers the documented content, and there
// is no undocumented operation.
func TestAnswersAreAsDescribed(t *testing.T) {
	f := new(feed)
	f.add(filled[observed.Event]())
	s := serve(t, testSource(f), quiet)
	c := newTestClient(t, s)
	router := load(t)
	for _, mediaType := range []string{eventsType, "application/octet-stream"} {
		openapi3filter.RegisterBodyDecoder(mediaType, openapi3filter.FileBodyDecoder)
	}
	operations := []string{
		"GET /v1/events", "GET /v1/events?since=7", "GET /v1/trace", "GET /v1/trace?queue=1",
		"GET /v1/trace?queue=65536", "GET /v1/debug/pprof/heap", "GET /v1/debug/pprof/secrets",
		"GET /v1/debug/pprof/profile?seconds=1", "GET /v1/debug/pprof/trace?seconds=61",
	}
	for _, r := range s.routes() {
		operations = append(operations, r.pattern)
	}
	named := strings.NewReplacer("{nqn}", "text", "{nsid}", "7", "{key}", "dhchap_key",
		"{host}", "nqn.2014-08.org.nvmexpress:uuid:1%2F", "{cntlid}", "7", "{port}", "7",
		"{listener}", "tcp%20%5Bfd00::1%5D:4420", "{referral}", "tcp%2010.0.0.9:8009", "{group}",
		"7")
	for _, op := range append(operations, "PUT /v1/subsystems/a/namespaces/x",
		"PUT /v1/subsystems/nqn.2026-11.io.nvmf-target:a%2Fb?dry_run=true",
		"DELETE /v1/hosts/a?dry_run=7", "GET /v1/ports/x", "GET /v1/ana/x",
		"DELETE /v1/subsystems/a?recursive=maybe", "DELETE /v1/subsystems/a?recursive=true") {
		method, path, _ := strings.Cut(named.Replace(op), " ")
		for _, body := range []string{`{"host": "h"}`, `{"host": 7}`, `{"key": "k"}`} {
			validate(t, c, router, method, path, body)
		}
	}
	r, err := c.http.Get("http://target/v1/openapi.json")
	testutil.Must(t, err)
	defer r.Body.Close()
	var doc struct{ Paths map[string]any }
	testutil.Must(t, json.NewDecoder(r.Body).Decode(&doc))
	for path := range doc.Paths {
		if !slices.ContainsFunc(operations, func(o string) bool {
			method, pattern, _ := strings.Cut(profileRoute, " ")
			return strings.HasSuffix(o, " "+path) || path == pattern && method == http.MethodGet
		}) {
			t.Errorf("there is no %s", path)
		}
	}
}

func validate(t *testing.T, c *Client, router routers.Router, method, path, body string) {
	t.Helper()
	req, err := http.NewRequest(method, "http://target"+path, strings.NewReader(body))
	testutil.Must(t, err)
	req.Header.Set("Content-Type", "application/json")
	r, err := c.http.Do(req)
	testutil.Must(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	testutil.Must(t, err)
	req.URL.Host, req.URL.Scheme = "", "" // the document names no server
	req.Body = io.NopCloser(strings.NewReader(body))
	found, params, err := router.FindRoute(req)
	if err != nil {
		t.Errorf("%s %s: %v", method, path, err)
		return
	}
	in := &openapi3filter.RequestValidationInput{
		Request: req, PathParams: params, Route: found,
	}
	invalid := openapi3filter.ValidateRequest(t.Context(), in)
	testutil.True(t, (invalid != nil) == (r.StatusCode != http.StatusOK),
		"%s %s %s: %s, but the document says %v", method, path, body, r.Status, invalid)
	out := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: r.StatusCode, Header: r.Header,
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	}
	err = openapi3filter.ValidateResponse(t.Context(), out.SetBodyBytes(text))
	testutil.True(t, err == nil, "%s %s: %v\n%s", method, path, err, text)
}
