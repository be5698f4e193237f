package control

import (
	"context"
	_ "embed"
	"errors"
	"net/http"

	"github.com/nvmf-target/nvmf-target/internal/observed"
)

func (s *Server) routes() []route {
	src := s.src
	return append(s.objectRoutes(),
		route{
			"GET /v1/status", "The target as a whole", Read, nil,
			observed.Status{},
			now(src.Status),
		},
		lists("/v1/listeners", "The addresses where hosts connect", src.Listeners),
		lists("/v1/subsystems", "The subsystems", src.Subsystems),
		lists("/v1/namespaces", "The namespaces", src.Namespaces),
		lists("/v1/hosts", "The associations with hosts", src.Hosts),
		queries("/v1/connections", "The connections, which are queues", src.Connections),
		queries("/v1/latency", "The latency of commands, by stage", src.Latency),
		queries("/v1/reactors", "The reactors", src.Reactors),
		queries("/v1/disks", "The disks of the machine", src.Disks),
		lists("/v1/refusals", "Recent refusals of peers", src.Refusals),
		route{
			"GET /v1/plan", "The changes that a reload would make", Read, nil,
			Plan{},
			s.changes(s.planning, src.Plan),
		},
		route{
			"POST /v1/reload", "Apply the configuration file", Operate, nil,
			Plan{},
			s.changes(s.changing, src.Reload),
		},
		posts("/v1/listeners/drain", "Take listeners out of service and end their connections",
			Operate, []observed.Listener{}, s.drain(true)),
		posts("/v1/listeners/undrain", "Put listeners into service again", Operate,
			[]observed.Listener{}, s.drain(false)),
		lists("/v1/ana", "The asymmetric namespace access states", src.ANA),
		route{"GET /v1/ana/{group}", "The states of an ANA group", Read, nil, []ANA{}, s.ana},
		route{
			"GET /v1/ana/{group}/listeners/{listener}",
			"The state of an ANA group at a listener", Read, nil,
			[]ANA{},
			s.ana,
		},
		route{
			"PUT /v1/ana/{group}", "Set the state of an ANA group at all listeners until a restart",
			Operate,
			ANAState{},
			[]ANA{},
			s.putANA,
		},
		route{
			"PUT /v1/ana/{group}/listeners/{listener}",
			"Set the state of an ANA group at a listener until a restart", Operate,
			ANAState{},
			[]ANA{},
			s.putANA,
		},
		route{
			"DELETE /v1/ana/{group}", "Return an ANA group to its configured states", Operate, nil,
			[]ANA{},
			s.deleteANA,
		},
		route{
			"DELETE /v1/ana/{group}/listeners/{listener}",
			"Return an ANA group to its configured state at a listener", Operate, nil,
			[]ANA{},
			s.deleteANA,
		},
		posts("/v1/ana/set", "Set asymmetric namespace access states until a restart", Operate,
			[]ANA{}, s.setANA),
		posts("/v1/hosts/disconnect", "End the associations of a host", Operate, Disconnected{},
			s.disconnect),
		posts("/v1/namespaces/pause", "Make the commands for a namespace wait", Operate,
			observed.Namespace{}, s.pause(true)),
		posts("/v1/namespaces/resume", "End a pause of a namespace", Operate, observed.Namespace{},
			s.pause(false)),
		posts("/v1/namespaces/resize", "Change the size of a namespace in a file",
			Admin, // a smaller one loses data
			observed.Namespace{}, s.resize),
	)
}

// lists is the route of a request for a list.
func lists[T any](path, summary string, get func() []T) route {
	return route{
		"GET " + path, summary, Read, nil,
		[]T{},
		func(*http.Request) (any, error) { return append([]T{}, get()...), nil },
	}
}

// queries is the route of a request for a list that is not known at once.
func queries[T any](path, summary string, get func(context.Context) ([]T, error)) route {
	return route{
		"GET " + path, summary, Read, nil,
		[]T{},
		func(r *http.Request) (any, error) {
			ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
			defer cancel()
			list, err := get(ctx)
			if errors.Is(err, context.DeadlineExceeded) {
				err = NewProblem(http.StatusServiceUnavailable, "the target is too busy to answer",
					"Try again.")
			}
			return append([]T{}, list...), err
		},
	}
}

// posts is the route of a request whose body is of type T.
func posts[T any](path, summary string, role Role, answer any, do func(T) (any, error)) route {
	var body T
	return route{
		"POST " + path, summary, role,
		body,
		answer,
		func(r *http.Request) (any, error) {
			var body T
			if err := read(r, &body); err != nil {
				return nil, err
			}
			return do(body)
		},
	}
}

func now[T any](get func() T) func(*http.Request) (any, error) {
	return func(*http.Request) (any, error) { return get(), nil }
}

// change calls fn without a time limit: a reload waits for hosts and storage, and other changes
// wait for it.
func (s *Server) change(fn func() (any, error)) (any, error) {
	return s.within(s.changing, fn)
}

// within calls fn if there is a place.
func (s *Server) within(places chan struct{}, fn func() (any, error)) (any, error) {
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
	default:
		return nil, NewProblem(http.StatusServiceUnavailable,
			"too many clients wait for a plan or a reload",
			"Try again when the reload has ended.")
	}
	return fn()
}

func (s *Server) changes(places chan struct{}, get func(context.Context) (Plan, error),
) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		return s.within(places, func() (any, error) {
			return listed(get(s.on(r)))
		})
	}
}

//go:embed openapi.json
var openAPI []byte
