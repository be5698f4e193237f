package control

import (
	"net/http"
	"strconv"
	"unicode/utf8"
)

// This file has the requests that create and delete objects. All of them can be repeated.

func (s *Server) objectRoutes() []route {
	var list []route
	for _, o := range []struct{ path, name, create string }{
		{"/v1/subsystems/{nqn}", "a subsystem", "Create or change a subsystem"},
		{
			"/v1/subsystems/{nqn}/namespaces/{nsid}", "a namespace",
			"Create or change a namespace",
		},
		{
			"/v1/subsystems/{nqn}/hosts/{host}", "a host",
			"Let a host connect to a subsystem",
		},
	} {
		list = append(list,
			route{"PUT " + o.path, o.create, Admin, Keys{}, Plan{}, s.put},
			route{"DELETE " + o.path, "Delete " + o.name, Admin, nil, Plan{}, s.remove})
	}
	return append(list, route{
		"POST /v1/subsystems/{nqn}/namespaces",
		"Create a namespace with an NSID that is free, or change the one with this uuid", Admin,
		Keys{},
		NamespaceID{},
		s.create,
	})
}

// target returns what the path of a request names.
func target(r *http.Request) (Object, error) {
	o := Object{Subsystem: r.PathValue("nqn"), Host: r.PathValue("host")}
	if !utf8.ValidString(o.Subsystem + o.Host) {
		return o, NewProblem(http.StatusBadRequest, "an NQN in the path is not UTF-8", "")
	}
	if text := r.PathValue("nsid"); text != "" {
		nsid, err := strconv.ParseUint(text, 10, 32)
		if err != nil || nsid == 0 {
			p := NewProblem(http.StatusBadRequest, "the NSID is not a number from 1",
				"Write .../namespaces/1 for instance.")
			p.Place = "nsid"
			return o, p
		}
		o.NSID = uint32(nsid)
	}
	return o, nil
}

func (s *Server) put(r *http.Request) (any, error) {
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	return inTurn(s, r, func(o Object) (Plan, error) {
		return listed(s.src.Put(s.on(r), o, body))
	})
}

func (s *Server) create(r *http.Request) (any, error) {
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	return inTurn(s, r, func(o Object) (NamespaceID, error) {
		return s.src.Create(s.on(r), o.Subsystem, body)
	})
}

func (s *Server) remove(r *http.Request) (any, error) {
	recursive := r.URL.Query().Get("recursive")
	if recursive != "" && recursive != "true" && recursive != "false" {
		p := NewProblem(http.StatusBadRequest, "recursive is neither true nor false", "")
		p.Place = "recursive"
		return nil, p
	}
	return inTurn(s, r, func(o Object) (Plan, error) {
		return listed(s.src.Delete(s.on(r), o, recursive == "true"))
	})
}

// listed is a plan whose changes are a list in JSON, too, if there are none.
func listed(p Plan, err error) (Plan, error) {
	p.Changes = append([]Change{}, p.Changes...)
	return p, err
}

// inTurn makes a change when it is its turn.
func inTurn[T any](s *Server, r *http.Request, change func(Object) (T, error)) (any, error) {
	o, err := target(r)
	if err != nil {
		return nil, err
	}
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	default:
		return nil, NewProblem(http.StatusServiceUnavailable, "too many requests wait",
			"Repeat it in a second; send fewer at once.")
	}
	return change(o)
}
