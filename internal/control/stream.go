package control

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// events sends the known events as a list. With ?follow=true it sends one object per line, followed
// by new events until the client leaves.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	var since uint64
	if text := query.Get("since"); text != "" {
		var err error
		if since, err = strconv.ParseUint(text, 10, 64); err != nil {
			answer(w, nil, NewProblem(http.StatusBadRequest,
				strconv.Quote(text)+" is not an event ID", "").At("parameter since"))
			return
		}
	}
	if query.Get("follow") != "true" {
		list, _ := s.src.Events(since)
		answer(w, append([]observed.Event{}, list...), nil)
		return
	}
	select {
	case s.followers <- struct{}{}:
		defer func() { <-s.followers }()
		s.follow(w, r, since)
	default:
		answer(w, nil, NewProblem(http.StatusServiceUnavailable, "too many clients follow events",
			"End one of them, or ask without follow."))
	}
}

func (s *Server) follow(w http.ResponseWriter, r *http.Request, since uint64) {
	for to := s.stream(w, r, Read); ; {
		list, changed := s.src.Events(since)
		lines := make([]any, len(list))
		for i, e := range list {
			lines[i], since = e, e.ID
		}
		if to.send(lines...) != nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// stream is an answer that goes on, one value per line.
type stream struct {
	s    *Server
	w    http.ResponseWriter
	r    *http.Request
	c    *http.ResponseController
	role Role // required all the time
}

func (s *Server) stream(w http.ResponseWriter, r *http.Request, role Role) *stream {
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Time{}) // reads only detect that the client has gone
	w.Header().Set("Content-Type", eventsType)
	return &stream{s, w, r, c, role}
}

// send sends values, unless the client has lost its role.
func (t *stream) send(values ...any) error {
	if t.s.trusts(t.r) != nil || t.s.roles().of(clientOf(t.r.Context())) < t.role {
		return errors.New("the client has lost its role")
	}
	var lines []byte
	for _, v := range values {
		line, err := encodeAnswer(v)
		if err != nil {
			return err
		}
		lines = append(lines, line...)
	}
	_ = t.c.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := t.w.Write(lines); err != nil {
		return err
	}
	return t.c.Flush()
}

func parseTraceQuery(v url.Values) (q observed.TraceQuery, err error) {
	q = observed.TraceQuery{
		Host: v.Get("host"), Subsystem: v.Get("subsystem"), Queue: -1,
		Follow: v.Get("follow") == "true", Dumps: v.Get("dumps") == "true",
	}
	if text := v.Get("queue"); text != "" {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return q, NewProblem(http.StatusBadRequest,
				strconv.Quote(text)+" is not a queue ID", "").At("parameter queue")
		}
		q.Queue = int(n)
	}
	return q, nil
}

func traceValues(q *observed.TraceQuery) url.Values {
	v := url.Values{}
	set := func(key, value string, given bool) {
		if given {
			v.Set(key, value)
		}
	}
	set("host", q.Host, q.Host != "")
	set("subsystem", q.Subsystem, q.Subsystem != "")
	set("queue", strconv.Itoa(q.Queue), q.Queue >= 0)
	set("follow", "true", q.Follow)
	set("dumps", "true", q.Dumps)
	return v
}

// trace sends the content of the flight recorder, one TraceQueue per line. The access of hosts to
// data is confidential, so the log has the sender of the request.
func (s *Server) trace(w http.ResponseWriter, r *http.Request) {
	q, err := parseTraceQuery(r.URL.Query())
	if err == nil {
		select {
		case s.tracing <- struct{}{}:
			defer func() { <-s.tracing }()
		default:
			err = NewProblem(http.StatusServiceUnavailable,
				"too many clients read the flight recorder", "Try again when one has ended.")
		}
	}
	s.logWrite(r, err)
	if err != nil {
		answer(w, nil, err)
		return
	}
	to := s.stream(w, r, Operate)
	_ = to.send() // so that the client knows that it is served
	send := func(q observed.TraceQueue) error { return to.send(q) }
	if err := s.src.Trace(r.Context(), q, send); err != nil {
		panic(http.ErrAbortHandler) // the client sees that the answer is incomplete
	}
}
