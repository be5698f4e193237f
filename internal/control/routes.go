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
		{"GET /v1/status", "The target as a whole", nil, Status{}, now(src.Status)},
		{
			"GET /v1/listeners", "The addresses where hosts connect", nil,
			[]Listener{},
			list(src.Listeners),
		},
		{"GET /v1/subsystems", "The subsystems", nil, []Subsystem{}, list(src.Subsystems)},
		{"GET /v1/namespaces", "The namespaces", nil, []Namespace{}, list(src.Namespaces)},
		{"GET /v1/hosts", "The associations with hosts", nil, []Host{}, list(src.Hosts)},
		{
			"GET /v1/connections", "The connections, which are queues", nil,
			[]Connection{},
			ask(src.Connections),
		},
		{
			"GET /v1/latency", "How long commands took, and where", nil,
			[]Latency{},
			ask(src.Latency),
		},
		{"GET /v1/reactors", "The reactors", nil, []Reactor{}, ask(src.Reactors)},
		{"GET /v1/disks", "The disks of the machine", nil, []Disk{}, ask(src.Disks)},
		{
			"GET /v1/refusals", "What peers were refused lately", nil,
			[]Refusal{},
			list(src.Refusals),
		},
		{
			"GET /v1/plan", "What a reload would change", nil,
			Plan{},
			s.changes(src.Plan),
		},
		{
			"POST /v1/reload", "Apply the configuration file", nil,
			Plan{},
			s.changes(src.Reload),
		},
		{
			"POST /v1/listeners/drain", "Take listeners out of service and end their connections",
			ListenerID{},
			[]Listener{},
			posted(s.drain(true)),
		},
		{
			"POST /v1/listeners/undrain", "Put listeners into service again",
			ListenerID{},
			[]Listener{},
			posted(s.drain(false)),
		},
		{
			"GET /v1/ana", "The asymmetric namespace access states", nil,
			[]ANA{},
			list(src.ANA),
		},
		{
			"POST /v1/ana/set", "Set asymmetric namespace access states until a restart",
			ANASet{},
			[]ANA{},
			posted(s.setANA),
		},
		{
			"POST /v1/hosts/disconnect", "End the associations of a host",
			Disconnect{},
			Disconnected{},
			posted(s.disconnect),
		},
		{
			"POST /v1/namespaces/pause", "Make the commands for a namespace wait",
			NamespaceID{},
			Namespace{},
			posted(s.pause(true)),
		},
		{
			"POST /v1/namespaces/resume", "End a pause of a namespace",
			NamespaceID{},
			Namespace{},
			posted(s.pause(false)),
		},
		{
			"POST /v1/namespaces/resize", "Change the size of a namespace in a file",
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

// change calls fn without a limit of time: a reload waits for hosts and storage, and others for it.
func (s *Server) change(fn func() (any, error)) (any, error) {
	select {
	case s.changing <- struct{}{}:
		defer func() { <-s.changing }()
	default:
		return nil, NewProblem(http.StatusServiceUnavailable,
			"too many clients wait for a plan or a reload",
			"Try again when the reload has ended.")
	}
	return fn()
}

func (s *Server) changes(get func(context.Context) (Plan, error)) func(*http.Request) (any, error) {
	return func(*http.Request) (any, error) {
		return s.change(func() (any, error) {
			return listed(get(s.ctx))
		})
	}
}

//go:embed openapi.json
var openAPI []byte
