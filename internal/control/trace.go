package control

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/nvmf-target/nvmf-target/internal/observed"
)

func parseTraceQuery(v url.Values) (q observed.TraceQuery, err error) {
	q = observed.TraceQuery{
		Host: v.Get("host"), Subsystem: v.Get("subsystem"), Queue: -1,
		Follow: v.Get("follow") == "true", Dumps: v.Get("dumps") == "true",
	}
	if text := v.Get("queue"); text != "" {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return q, NewProblem(http.StatusBadRequest,
				strconv.Quote(text)+" is no queue ID", "").At("parameter queue")
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
