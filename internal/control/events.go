package control

import (
	"bytes"
	"net/http"
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
				strconv.Quote(text)+" is no event ID", "").At("parameter since"))
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
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Time{}) // reads only detect that the client has gone
	w.Header().Set("Content-Type", eventsType)
	for {
		list, changed := s.src.Events(since)
		if s.trusts(r) != nil || s.roles().of(clientOf(r.Context())) < Read {
			return
		}
		var lines bytes.Buffer
		for _, e := range list {
			line, err := encodeAnswer(e)
			if err != nil {
				return
			}
			lines.Write(line)
			since = e.ID
		}
		_ = c.SetWriteDeadline(time.Now().Add(writeTimeout))
		_, err := w.Write(lines.Bytes())
		if err == nil {
			err = c.Flush()
		}
		if err != nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
