package control

import (
	"context"
	_ "embed"
	"errors"
	"net/http"
)

func (s *Server) routes() []route {
	src := s.src
	return append(s.objectRoutes(), []route{
		{"GET /v1/status", "The target as a whole", Read, nil, Status{}, now(src.Status)},
		{
			"GET /v1/listeners", "The addresses where hosts connect", Read, nil,
			[]Listener{},
			list(src.Listeners),
		},
		{"GET /v1/subsystems", "The subsystems", Read, nil, []Subsystem{}, list(src.Subsystems)},
		{"GET /v1/namespaces", "The namespaces", Read, nil, []Namespace{}, list(src.Namespaces)},
		{"GET /v1/hosts", "The associations with hosts", Read, nil, []Host{}, list(src.Hosts)},
		{
			"GET /v1/connections", "The connections, which are queues", Read, nil,
			[]Connection{},
			ask(src.Connections),
		},
		{
			"GET /v1/latency", "The latency of commands, by stage", Read, nil,
			[]Latency{},
			ask(src.Latency),
		},
		{"GET /v1/reactors", "The reactors", Read, nil, []Reactor{}, ask(src.Reactors)},
		{"GET /v1/disks", "The disks of the machine", Read, nil, []Disk{}, ask(src.Disks)},
		{
			"GET /v1/refusals", "Recent refusals of peers", Read, nil,
			[]Refusal{},
			list(src.Refusals),
		},
		{
			"GET /v1/plan", "The changes that a reload would make", Read, nil,
			Plan{},
			s.changes(s.planning, src.Plan),
		},
		{
			"POST /v1/reload", "Apply the configuration file", Operate, nil,
			Plan{},
			s.changes(s.changing, src.Reload),
		},
		{
			"POST /v1/listeners/drain", "Take listeners out of service and end their connections",
			Operate,
			ListenerID{},
			[]Listener{},
			posted(s.drain(true)),
		},
		{
			"POST /v1/listeners/undrain", "Put listeners into service again", Operate,
			ListenerID{},
			[]Listener{},
			posted(s.drain(false)),
		},
		{
			"GET /v1/ana", "The asymmetric namespace access states", Read, nil,
			[]ANA{},
			list(src.ANA),
		},
		{"GET /v1/ana/{group}", "The states of an ANA group", Read, nil, []ANA{}, s.ana},
		{
			"GET /v1/ana/{group}/listeners/{listener}",
			"The state of an ANA group at a listener", Read, nil,
			[]ANA{},
			s.ana,
		},
		{
			"PUT /v1/ana/{group}", "Set the state of an ANA group at all listeners until a restart",
			Operate,
			ANAState{},
			[]ANA{},
			s.putANA,
		},
		{
			"PUT /v1/ana/{group}/listeners/{listener}",
			"Set the state of an ANA group at a listener until a restart", Operate,
			ANAState{},
			[]ANA{},
			s.putANA,
		},
		{
			"DELETE /v1/ana/{group}", "Return an ANA group to its configured states", Operate, nil,
			[]ANA{},
			s.deleteANA,
		},
		{
			"DELETE /v1/ana/{group}/listeners/{listener}",
			"Return an ANA group to its configured state at a listener", Operate, nil,
			[]ANA{},
			s.deleteANA,
		},
		{
			"POST /v1/ana/set", "Set asymmetric namespace access states until a restart", Operate,
			ANASet{},
			[]ANA{},
			posted(s.setANA),
		},
		{
			"POST /v1/hosts/disconnect", "End the associations of a host", Operate,
			Disconnect{},
			Disconnected{},
			posted(s.disconnect),
		},
		{
			"POST /v1/namespaces/pause", "Make the commands for a namespace wait", Operate,
			NamespaceID{},
			Namespace{},
			posted(s.pause(true)),
		},
		{
			"POST /v1/namespaces/resume", "End a pause of a namespace", Operate,
			NamespaceID{},
			Namespace{},
			posted(s.pause(false)),
		},
		{
			"POST /v1/namespaces/resize", "Change the size of a namespace in a file",
			Admin, // the data beyond a smaller size is lost
			Resize{},
			Namespace{},
			posted(s.resize),
		},
	}...)
}

func now[T any](get func() T) func(*http.Request) (any, error) {
	return func(*http.Request) (any, error) { return get(), nil }
}

func list[T any](get func() []T) func(*http.Request) (any, error) {
	return func(*http.Request) (any, error) { return append([]T{}, get()...), nil }
}

func ask[T any](get func(context.Context) (T, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
		defer cancel()
		v, err := get(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			err = NewProblem(http.StatusServiceUnavailable, "the target is too busy to answer",
				"Try again.")
		}
		return v, err
	}
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
