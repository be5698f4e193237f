package control

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
)

// This file has the requests that change listeners and namespaces.

// posted makes the handler of requests with a body of this type.
func posted[T any](do func(T) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		var body T
		if err := read(r, &body); err != nil {
			return nil, err
		}
		return do(body)
	}
}

func (s *Server) drain(drain bool) func(ListenerID) (any, error) {
	return func(which ListenerID) (any, error) {
		if (which.Listener != "") == which.All {
			p := NewProblem(http.StatusBadRequest, "either a listener or all must be given",
				"GET /v1/listeners lists them.")
			p.Place = "listener"
			return nil, p
		}
		return s.change(func() (any, error) {
			list, err := s.src.Drain(which, drain)
			return append([]Listener{}, list...), err
		})
	}
}

func (s *Server) setANA(set ANASet) (any, error) {
	return s.change(func() (any, error) {
		list, err := s.src.SetANA(set)
		return append([]ANA{}, list...), err
	})
}

func (s *Server) pause(pause bool) func(NamespaceID) (any, error) {
	return func(id NamespaceID) (any, error) {
		return s.changeNamespace(id, func() error { return s.src.Pause(id, pause) })
	}
}

func (s *Server) resize(to Resize) (any, error) {
	return s.change(func() (any, error) {
		id := NamespaceID{to.Subsystem, to.NSID}
		return s.changeNamespace(id, func() error { return s.src.Resize(to) })
	})
}

// changeNamespace does something to a namespace and answers what it is then.
func (s *Server) changeNamespace(id NamespaceID, do func() error) (any, error) {
	same := func(n Namespace) bool { return n.Subsystem == id.Subsystem && n.NSID == id.NSID }
	if !slices.ContainsFunc(s.src.Namespaces(), same) {
		p := NewProblem(http.StatusNotFound, fmt.Sprintf("there is no namespace %d of %q",
			id.NSID, id.Subsystem), "GET /v1/namespaces lists them.")
		p.Place = "nsid"
		return nil, p
	}
	if err := do(); err != nil {
		if _, ok := errors.AsType[*Problem](err); ok {
			return nil, err
		}
		return nil, NewProblem(http.StatusConflict, err.Error(), "")
	}
	list := s.src.Namespaces()
	if i := slices.IndexFunc(list, same); i >= 0 {
		return list[i], nil
	}
	return Namespace{Subsystem: id.Subsystem, NSID: id.NSID}, nil // it was removed since
}
