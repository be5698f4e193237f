package control

import (
	"context"
	_ "embed"
	"errors"
	"net/http"

	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// Get is a request for facts of type T.
type Get[T any] struct{ path, summary string }

// From sends the request.
func (g Get[T]) From(ctx context.Context, c *Client) (T, error) {
	return call[T](ctx, c, "GET "+g.path, nil)
}

// Into sends the request and sets a variable to the answer, unless it returns an error.
func (g Get[T]) Into(ctx context.Context, c *Client, v *T) (err error) {
	*v, err = g.From(ctx, c)
	return err
}

// Post is a request for a change that B describes. The answer has the type T.
type Post[B, T any] struct {
	path, summary string
	role          Role // required role
}

// To sends the request.
func (p Post[B, T]) To(ctx context.Context, c *Client, body B) (T, error) {
	return call[T](ctx, c, "POST "+p.path, body)
}

// The requests of clients that have no method of Client.
var (
	GetStatus     = Get[observed.Status]{"/v1/status", "The target as a whole"}
	GetListeners  = Get[[]observed.Listener]{"/v1/listeners", "The addresses where hosts connect"}
	GetSubsystems = Get[[]observed.Subsystem]{"/v1/subsystems", "The subsystems"}
	GetNamespaces = Get[[]observed.Namespace]{"/v1/namespaces", "The namespaces"}
	GetHosts      = Get[[]observed.Host]{"/v1/hosts", "The associations with hosts"}

	GetCounters = Get[[]observed.PortCounter]{
		"/v1/port-counters", "The counters of the ports of RDMA devices",
	}
	GetConnections = Get[[]observed.Connection]{
		"/v1/connections", "The connections, which are queues",
	}
	GetLatency  = Get[[]observed.Latency]{"/v1/latency", "The latency of commands, by stage"}
	GetReactors = Get[[]observed.Reactor]{"/v1/reactors", "The reactors"}
	GetDisks    = Get[[]observed.Disk]{"/v1/disks", "The disks of the machine"}
	GetRefusals = Get[[]observed.Refusal]{"/v1/refusals", "Recent refusals of peers"}
	GetEvents   = Get[[]observed.Event]{path: "/v1/events"} // see eventsRoute
	GetObjects  = Get[[]observed.Configured]{"/v1/objects", "The configuration"}
	GetGroups   = Get[[]observed.Group]{"/v1/groups", "The ANA groups shared by gateways"}
	GetPlan     = Get[Plan]{"/v1/plan", "The changes that a reload would make"}
	GetANA      = Get[[]ANA]{"/v1/ana", "The asymmetric namespace access states"}

	PostDrain = Post[ListenerID, []observed.Listener]{
		"/v1/listeners/drain", "Take listeners out of service and end their connections", Operate,
	}
	PostUndrain = Post[ListenerID, []observed.Listener]{
		"/v1/listeners/undrain", "Put listeners into service again", Operate,
	}
	PostANA = Post[ANASet, []ANA]{
		"/v1/ana/set", "Set asymmetric namespace access states until a restart", Operate,
	}
	GetGroupVersions = Get[[]GroupVersion]{
		"/v1/groups/configuration", "The versions of the configuration that gateways share",
	}
	PostGroupChange = Post[GroupChange, Plan]{
		"/v1/groups/apply", "Change the configuration that gateways share", Admin,
	}
	PostGroupDrain = Post[GroupDrain, []observed.Group]{
		"/v1/groups/drain", "Give ANA groups to other gateways, or take them again", Operate,
	}
	PostForget = Post[GatewayID, []observed.Group]{
		"/v1/groups/forget", "Forget a gateway that is gone for good", Operate,
	}
	PostFence = Post[GatewayID, []observed.Group]{
		"/v1/groups/fence", "Fence a gateway, and take over the groups that it holds", Operate,
	}
	PostDisconnect = Post[Disconnect, Disconnected]{
		"/v1/hosts/disconnect", "End the associations of a host", Operate,
	}
	PostPause = Post[NamespaceID, observed.Namespace]{
		"/v1/namespaces/pause", "Make the commands for a namespace wait", Operate,
	}
	PostResume = Post[NamespaceID, observed.Namespace]{
		"/v1/namespaces/resume", "End a pause of a namespace", Operate,
	}
	PostResize = Post[Resize, observed.Namespace]{
		"/v1/namespaces/resize", "Change the size of a namespace in a file",
		Admin, // a smaller one loses data
	}
)

func (s *Server) routes() []route {
	src := s.src
	const group, at = "/v1/ana/{group}", "/v1/ana/{group}/listeners/{listener}"
	ana := func(operation, summary string, role Role, body any,
		handle func(*http.Request) (any, error),
	) route {
		return route{operation, summary, role, body, []ANA{}, handle}
	}
	return append(s.objectRoutes(),
		GetStatus.route(func(*http.Request) (any, error) { return src.Status(), nil }),
		lists(GetListeners, src.Listeners), lists(GetSubsystems, src.Subsystems),
		lists(GetNamespaces, src.Namespaces), lists(GetHosts, src.Hosts),
		queries(GetConnections, src.Connections), queries(GetLatency, src.Latency),
		queries(GetReactors, src.Reactors), queries(GetDisks, src.Disks),
		lists(GetCounters, src.PortCounters),
		lists(GetRefusals, src.Refusals), lists(GetGroups, src.Groups),
		GetPlan.route(s.changes(s.planning, src.Plan)),
		route{
			"POST /v1/reload", "Apply the configuration file", Operate, nil,
			Plan{},
			s.changes(s.changing, src.Reload),
		},
		route{
			"POST /v1/restart", "Replace the process by a successor", Operate, nil,
			Succession{},
			s.restart,
		},
		queries(GetGroupVersions, src.GroupVersions),
		route{
			"POST " + PostGroupChange.path, PostGroupChange.summary, PostGroupChange.role,
			GroupChange{},
			Plan{},
			s.changeGroup,
		},
		PostDrain.route(s.drain(true)), PostUndrain.route(s.drain(false)),
		lists(GetANA, src.ANA),
		ana("GET "+group, "The states of an ANA group", Read, nil, s.ana),
		ana("GET "+at, "The state of an ANA group at a listener", Read, nil, s.ana),
		ana("PUT "+group, "Set the state of an ANA group at all listeners until a restart",
			Operate, ANAState{}, s.putANA),
		ana("PUT "+at, "Set the state of an ANA group at a listener until a restart", Operate,
			ANAState{}, s.putANA),
		ana("DELETE "+group, "Return an ANA group to its configured states", Operate, nil,
			s.deleteANA),
		ana("DELETE "+at, "Return an ANA group to its configured state at a listener", Operate,
			nil, s.deleteANA),
		PostANA.route(s.setANA), PostDisconnect.route(s.disconnect),
		PostGroupDrain.route(s.drainGroup),
		PostForget.route(s.gateway(src.Forget)), PostFence.route(s.gateway(src.Fence)),
		PostPause.route(s.pause(true)), PostResume.route(s.pause(false)),
		PostResize.route(s.resize),
	)
}

func (g Get[T]) route(handle func(*http.Request) (any, error)) route {
	var answer T
	return route{"GET " + g.path, g.summary, Read, nil, answer, handle}
}

// lists is the route of a request for a list.
func lists[T any](g Get[[]T], get func() []T) route {
	return g.route(func(*http.Request) (any, error) { return append([]T{}, get()...), nil })
}

// queries is the route of a request for a list that is not known at once.
func queries[T any](g Get[[]T], get func(context.Context) ([]T, error)) route {
	return g.route(func(r *http.Request) (any, error) {
		ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
		defer cancel()
		list, err := get(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			err = NewProblem(http.StatusServiceUnavailable, "the target is too busy to answer",
				"Try again.")
		}
		return append([]T{}, list...), err
	})
}

func (p Post[B, T]) route(do func(B) (any, error)) route {
	var body B
	var answer T
	return route{
		"POST " + p.path, p.summary, p.role, body, answer,
		func(r *http.Request) (any, error) {
			var body B
			if err := read(r, &body); err != nil {
				return nil, err
			}
			return do(body)
		},
	}
}

// change calls fn without a time limit: reloads wait for hosts and storage, others for them.
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
