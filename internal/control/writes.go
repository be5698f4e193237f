package control

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// This file has the requests that change listeners and namespaces.

func (s *Server) drain(drain bool) func(ListenerID) (any, error) {
	return func(which ListenerID) (any, error) {
		if (which.Listener != "") == which.All {
			return nil, NewProblem(http.StatusBadRequest,
				"either a listener or all must be given", "GET /v1/listeners lists them.").
				At("listener")
		}
		return s.change(func() (any, error) {
			list, err := s.src.Drain(which, drain)
			return append([]observed.Listener{}, list...), err
		})
	}
}

// ana answers the states of a group, at a listener or at all.
func (s *Server) ana(r *http.Request) (any, error) {
	set, err := anaSet(r)
	if err != nil {
		return nil, err
	}
	return s.anaOf(set, s.src.ANA())
}

// putANA sets the state of a group, and deleteANA restores the configured one.
func (s *Server) putANA(r *http.Request) (any, error) {
	set, err := anaSet(r)
	var body ANAState
	if err == nil {
		err = read(r, &body)
	}
	if set.State = body.State; err != nil {
		return nil, err
	}
	return s.changeANA(set)
}

func (s *Server) deleteANA(r *http.Request) (any, error) {
	set, err := anaSet(r)
	if set.State = "configured"; err != nil {
		return nil, err
	}
	return s.changeANA(set)
}

// anaSet returns the group and the listener named by the path of a request.
func anaSet(r *http.Request) (ANASet, error) {
	group, err := number(r, "group", 32)
	return ANASet{Group: uint32(group), Listener: r.PathValue("listener")}, err
}

func (s *Server) changeANA(set ANASet) (any, error) {
	return s.change(func() (any, error) {
		list, err := s.src.SetANA(set)
		if err != nil {
			return nil, err
		}
		return s.anaOf(set, list)
	})
}

func (s *Server) anaOf(which ANASet, list []ANA) (any, error) {
	if which.Listener != "" {
		o, _, err := s.src.Configured(Object{Listener: which.Listener})
		if err != nil {
			return nil, err
		}
		which.Listener = o.Listener
	}
	list = those(list, func(a *ANA) bool {
		return a.Group == which.Group && (which.Listener == "" || which.Listener == a.Listener)
	})
	if len(list) == 0 && which.State == "" {
		return nil, NotThere(fmt.Sprintf("ANA group %d", which.Group), "/v1/ana")
	}
	return list, nil
}

func (s *Server) setANA(set ANASet) (any, error) {
	return s.change(func() (any, error) {
		list, err := s.src.SetANA(set)
		return append([]ANA{}, list...), err
	})
}

func (s *Server) changeGroup(r *http.Request) (any, error) {
	var change GroupChange
	if err := read(r, &change); err != nil {
		return nil, err
	}
	if (change.Configuration == "") == (change.Rollback == 0) {
		return nil, NewProblem(http.StatusBadRequest,
			"either configuration or rollback must be given",
			"GET /v1/groups/configuration lists the versions.").At("configuration")
	}
	return s.change(func() (any, error) { return listed(s.src.ChangeGroup(s.on(r), change)) })
}

func (s *Server) drainGroup(which GroupDrain) (any, error) {
	if (which.Group == 0) == (which.Gateway == "") {
		return nil, NewProblem(http.StatusBadRequest,
			"either a group or a gateway must be given", "GET /v1/groups lists them.").At("group")
	}
	return s.changeGroups(func() error { return s.src.DrainGroup(which) })
}

func (s *Server) gateway(do func(string) error) func(GatewayID) (any, error) {
	return func(which GatewayID) (any, error) {
		if which.Gateway == "" { // which is the holder of a group that nobody holds
			return nil, NewProblem(http.StatusBadRequest, "no gateway is given",
				"GET /v1/groups lists them.").At("gateway")
		}
		return s.changeGroups(func() error { return do(which.Gateway) })
	}
}

func (s *Server) changeGroups(do func() error) (any, error) {
	return s.change(func() (any, error) {
		err := do()
		return append([]observed.Group{}, s.src.Groups()...), err
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

// changeNamespace changes a namespace and answers its new state.
func (s *Server) changeNamespace(id NamespaceID, do func() error) (any, error) {
	if _, ok := find(s.src.Namespaces(), id.is); !ok {
		p := NotThere(fmt.Sprintf("namespace %d of %q", id.NSID, id.Subsystem), "/v1/namespaces")
		p.Place = "nsid"
		return nil, p
	}
	if err := do(); err != nil {
		if _, ok := errors.AsType[*Problem](err); ok {
			return nil, err
		}
		return nil, NewProblem(http.StatusConflict, err.Error(), "")
	}
	n, ok := find(s.src.Namespaces(), id.is)
	if !ok { // it was removed meanwhile
		n = observed.Namespace{Subsystem: id.Subsystem, NSID: id.NSID}
	}
	return n, nil
}

// restart ends the process when the client has the answer.
func (s *Server) restart(r *http.Request) (any, error) {
	return s.change(func() (any, error) {
		next, end, err := s.src.Restart(s.on(r))
		if err == nil {
			context.AfterFunc(r.Context(), end)
		}
		return next, err
	})
}
