package control

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
)

// This file has the requests that change listeners and namespaces.

func (s *Server) drain(drain bool) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		var which ListenerID
		if err := read(r, &which); err != nil {
			return nil, err
		}
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

func (s *Server) setANA(r *http.Request) (any, error) {
	var set ANASet
	if err := read(r, &set); err != nil {
		return nil, err
	}
	return s.change(func() (any, error) {
		list, err := s.src.SetANA(set)
		return append([]ANA{}, list...), err
	})
}

func (s *Server) pause(pause bool) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		var id NamespaceID
		if err := read(r, &id); err != nil {
			return nil, err
		}
		return s.changeNamespace(id, func() error { return s.src.Pause(id, pause) })
	}
}

func (s *Server) resize(r *http.Request) (any, error) {
	var to Resize
	if err := read(r, &to); err != nil {
		return nil, err
	}
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
