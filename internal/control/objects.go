package control

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// This file has the requests for single objects. PUT and DELETE can be repeated.

// objectRoutes are the requests that create, change, show and delete objects.
func (s *Server) objectRoutes() []route {
	const subsystem, host = "/v1/subsystems/{nqn}", "/v1/hosts/{host}"
	return slices.Concat(
		kind(s, subsystem, "a subsystem", "Create or change a subsystem", s.subsystem),
		kind(s, subsystem+"/namespaces/{nsid}", "a namespace", "Create or change a namespace",
			s.namespace),
		kind(s, subsystem+"/hosts/{host}", "a host of a subsystem",
			"Let a host connect to a subsystem", s.host),
		kind(s, host, "a host", "Create or change the settings of a host for all "+
			"subsystems; secrets that are not given stay", s.host),
		s.writes(host+"/keys/{key}", "a secret of a host",
			"Set or rotate a secret of a host; none can be read", HostKey{}),
		kind(s, "/v1/listeners/{listener}", "a listener", "Create or change a listener",
			s.listener),
		kind(s, "/v1/referrals/{referral}", "a referral", "Create or change a referral",
			s.referral),
		[]route{
			{
				"POST " + subsystem + "/namespaces",
				"Create a namespace with an NSID that is free, or change the one with this uuid",
				Admin,
				observed.Keys{},
				NamespaceID{},
				s.create,
			},
			one(s, subsystem+"/namespaces", "The namespaces of a subsystem", s.namespaces),
			Get[observed.Host]{subsystem + "/controllers/{cntlid}", "Look at an association"}.
				route(s.controller),
			Get[observed.Listener]{"/v1/ports/{port}", "Look at an address where hosts connect"}.
				route(s.port),
			Get[observed.Group]{"/v1/groups/{group}", "Look at an ANA group shared by gateways"}.
				route(s.group),
			lists(GetObjects, s.src.Objects),
			lists(Get[[]Referral]{"/v1/referrals", "The referrals"}, s.src.Referrals),
		})
}

// kind has the requests for a kind of object.
func kind[T any](s *Server, path, name, create string,
	find func(Object, *observed.Configured) (T, bool),
) []route {
	return append(s.writes(path, name, create, observed.Keys{}),
		one(s, path, "Look at "+name, find))
}

// writes has the requests that create, change and delete an object.
func (s *Server) writes(path, name, create string, body any) []route {
	return []route{
		{"PUT " + path, create, Admin, body, Plan{}, s.put},
		{"DELETE " + path, "Delete " + name, Admin, nil, Plan{}, s.remove},
	}
}

// one looks at an object of the configuration.
func one[T any](s *Server, path, summary string, find func(Object, *observed.Configured) (T, bool),
) route {
	return Get[T]{path, summary}.route(func(r *http.Request) (any, error) {
		o, err := target(r)
		if err != nil {
			return nil, err
		}
		o, c, err := s.src.Configured(o)
		if err != nil {
			return nil, err
		}
		if v, ok := find(o, &c); ok {
			return v, nil
		}
		return nil, NotThere(r.URL.Path, "/v1/objects") // it was deleted meanwhile
	})
}

// NotThere is the problem of a request for something missing. list is the path of the others.
func NotThere(what, list string) *Problem {
	return NewProblem(http.StatusNotFound, "there is no "+what, "GET "+list+" lists all.")
}

// find returns the first entry of a list for which is returns true.
func find[T any](list []T, is func(*T) bool) (v T, ok bool) {
	for i := range list {
		if is(&list[i]) {
			return list[i], true
		}
	}
	return v, false
}

// those returns the entries of a list for which are returns true.
func those[T any](list []T, are func(*T) bool) []T {
	some := []T{}
	for i := range list {
		if are(&list[i]) {
			some = append(some, list[i])
		}
	}
	return some
}

func (s *Server) subsystem(o Object, c *observed.Configured) (observed.Subsystem, bool) {
	v, ok := find(s.src.Subsystems(),
		func(v *observed.Subsystem) bool { return v.NQN == o.Subsystem })
	v.Configured = c
	return v, ok
}

func (s *Server) namespaces(o Object, _ *observed.Configured) ([]observed.Namespace, bool) {
	return those(s.src.Namespaces(),
		func(n *observed.Namespace) bool { return n.Subsystem == o.Subsystem }), true
}

func (s *Server) namespace(o Object, c *observed.Configured) (observed.Namespace, bool) {
	v, ok := find(s.src.Namespaces(), NamespaceID{o.Subsystem, o.NSID}.is)
	v.Configured = c
	return v, ok
}

func (id NamespaceID) is(n *observed.Namespace) bool {
	return n.Subsystem == id.Subsystem && n.NSID == id.NSID
}

// host returns a host with its associations, with all subsystems or with one.
func (s *Server) host(o Object, c *observed.Configured) (HostEntry, bool) {
	meant := func(subsystem string) bool { return o.Subsystem == "" || o.Subsystem == subsystem }
	v := HostEntry{NQN: o.Host, Subsystems: []string{}, Configured: c}
	for _, sub := range s.src.Subsystems() {
		if meant(sub.NQN) && slices.Contains(sub.Hosts, o.Host) {
			v.Subsystems = append(v.Subsystems, sub.NQN)
		}
	}
	v.Controllers = those(s.src.Hosts(),
		func(h *observed.Host) bool { return h.NQN == o.Host && meant(h.Subsystem) })
	return v, true
}

func (s *Server) listener(o Object, c *observed.Configured) (ListenerEntry, bool) {
	return ListenerEntry{o.Listener, those(s.src.Listeners(),
		func(l *observed.Listener) bool { return l.Name == o.Listener }), c}, true
}

func (s *Server) referral(o Object, c *observed.Configured) (Referral, bool) {
	v, ok := find(s.src.Referrals(), func(v *Referral) bool { return v.Name == o.Referral })
	v.Configured = c
	return v, ok
}

func (s *Server) controller(r *http.Request) (any, error) {
	return numbered(r, "cntlid", "controller", "/v1/hosts", s.src.Hosts(),
		func(h *observed.Host, id uint64) bool {
			return h.Subsystem == r.PathValue("nqn") && uint64(h.CNTLID) == id
		})
}

func (s *Server) port(r *http.Request) (any, error) {
	return numbered(r, "port", "port", "/v1/listeners", s.src.Listeners(),
		func(l *observed.Listener, id uint64) bool { return uint64(l.PortID) == id })
}

func (s *Server) group(r *http.Request) (any, error) {
	return numbered(r, "group", "group", "/v1/groups", s.src.Groups(),
		func(g *observed.Group, id uint64) bool { return uint64(g.ANAGroup) == id })
}

// numbered returns the entry of a list that the number called name in the path of a request is for.
// others is the path of the list.
func numbered[T any](r *http.Request, name, what, others string, list []T,
	is func(*T, uint64) bool,
) (any, error) {
	id, err := number(r, name, 16)
	v, ok := find(list, func(v *T) bool { return is(v, id) })
	if err == nil && !ok {
		err = NotThere(what+" "+r.PathValue(name), others)
	}
	return v, err
}

// number returns a number from 1 in the path of a request.
func number(r *http.Request, name string, bits int) (uint64, error) {
	n, err := strconv.ParseUint(r.PathValue(name), 10, bits)
	if err != nil || n == 0 {
		return 0, wrongParameter(name,
			fmt.Sprintf("is not a number from 1 to %d", uint64(1)<<bits-1), "")
	}
	return n, nil
}

// target returns the object named by the path of a request.
func target(r *http.Request) (o Object, err error) {
	o = Object{
		Subsystem: r.PathValue("nqn"), Host: r.PathValue("host"), Key: r.PathValue("key"),
		Listener: r.PathValue("listener"), Referral: r.PathValue("referral"),
	}
	switch {
	case !utf8.ValidString(r.URL.Path):
		err = NewProblem(http.StatusBadRequest, "the path is not UTF-8", "")
	case o == Object{}:
		err = NotThere(r.URL.Path, "/v1/objects")
	case r.PathValue("nsid") != "":
		var n uint64
		n, err = number(r, "nsid", 32)
		o.NSID = uint32(n)
	}
	return o, err
}

func (s *Server) put(r *http.Request) (any, error) {
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	return inTurn(s, r, func(o Object, dry bool) (Plan, error) {
		return listed(s.src.Put(s.on(r), o, body, dry))
	})
}

func (s *Server) create(r *http.Request) (any, error) {
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	return inTurn(s, r, func(o Object, _ bool) (NamespaceID, error) {
		return s.src.Create(s.on(r), o.Subsystem, body)
	})
}

func (s *Server) remove(r *http.Request) (any, error) {
	recursive, err := isTrue(r, recursively)
	if err != nil {
		return nil, err
	}
	return inTurn(s, r, func(o Object, dry bool) (Plan, error) {
		return listed(s.src.Delete(s.on(r), o, recursive, dry))
	})
}

// The parameters of requests for objects.
const dryRun, recursively = "dry_run", "recursive"

// isTrue reports whether a parameter is true; it may be false or missing.
func isTrue(r *http.Request, name string) (bool, error) {
	given := r.URL.Query()
	switch given.Get(name) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	case "":
		if !given.Has(name) {
			return false, nil
		}
	}
	return false, wrongParameter(name, "is neither true nor false", "")
}

// checkQuery returns an error if a request has other parameters than these, or one of them twice.
// Ignoring an unknown parameter could ignore a misspelled dry_run.
func checkQuery(r *http.Request, known []string) error {
	given, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return wrongParameter("query", err.Error(), "Write it as in ?a=b&c=d.")
	}
	for name, values := range given {
		if !slices.Contains(known, name) {
			return wrongParameter(name, "is not a parameter of this request",
				"GET /v1/openapi.json describes them.")
		}
		if len(values) > 1 {
			return wrongParameter(name, "is given twice", "Delete one of the two.")
		}
	}
	return nil
}

func wrongParameter(name, what, hint string) error {
	return NewProblem(http.StatusBadRequest, name+" "+what, hint).At(name)
}

// listed makes the changes of a plan a list in JSON even if there are none.
func listed(p Plan, err error) (Plan, error) {
	p.Changes = append([]Change{}, p.Changes...)
	return p, err
}

// inTurn makes a change when it is its turn. With dry it only plans the change.
func inTurn[T any](s *Server, r *http.Request, change func(o Object, dry bool) (T, error)) (any,
	error,
) {
	o, err := target(r)
	dry, wrong := isTrue(r, dryRun)
	if err = errors.Join(err, wrong); err != nil {
		return nil, err
	}
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	default:
		return nil, NewProblem(http.StatusServiceUnavailable, "too many requests wait",
			"Repeat it in a second; send fewer at once.")
	}
	return change(o, dry)
}
