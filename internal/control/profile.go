package control

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"net/url"
	"slices"
	"strconv"
	"time"
)

// MaxProfile is the maximum duration of a profile, in seconds.
const MaxProfile = 60

// Profiles are the CPU profile, an execution trace, and the profiles of package runtime/pprof.
var Profiles = []string{
	"profile", "trace", "heap", "allocs", "goroutine", "threadcreate", "block", "mutex",
}

// profile serves the profiles of package net/http/pprof, one at a time, because they cost time.
// They have functions, sizes and times, but no keys, and nothing about hosts or their data.
func (s *Server) profile(w http.ResponseWriter, r *http.Request) {
	err := checkProfile(r)
	if err == nil {
		select {
		case s.profiling <- struct{}{}:
			defer func() { <-s.profiling }()
		default:
			err = NewProblem(http.StatusServiceUnavailable, "another profile is being taken",
				fmt.Sprintf("Try again: one takes at most %d seconds.", MaxProfile))
		}
	}
	s.logWrite(r, err)
	if err != nil {
		answer(w, nil, err)
		return
	}
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Time{}) // reads only detect that the client has gone
	_ = c.SetWriteDeadline(time.Now().Add(MaxProfile*time.Second + writeTimeout))
	switch name := r.PathValue("profile"); name {
	case "profile":
		pprof.Profile(w, r)
	case "trace":
		pprof.Trace(w, r)
	default:
		pprof.Handler(name).ServeHTTP(w, r)
	}
}

func checkProfile(r *http.Request) error {
	name := r.PathValue("profile")
	if !slices.Contains(Profiles, name) {
		return NewProblem(http.StatusNotFound, "there is no profile "+strconv.Quote(name),
			fmt.Sprintf("There are %q.", Profiles))
	}
	text := r.URL.Query().Get("seconds")
	n, err := strconv.Atoi(text)
	if text != "" && (err != nil || n < 1 || n > MaxProfile) {
		return NewProblem(http.StatusBadRequest, strconv.Quote(text)+" is not a number of seconds",
			fmt.Sprintf("1 to %d.", MaxProfile)).At("parameter seconds")
	}
	return nil
}

// Profile takes a profile for some seconds, 0 for the default, and writes it to w.
func (c *Client) Profile(ctx context.Context, name string, seconds int, w io.Writer) error {
	path := "GET /v1/debug/pprof/" + url.PathEscape(name)
	if seconds > 0 {
		path += "?seconds=" + strconv.Itoa(seconds)
	}
	body, err := c.do(ctx, path, nil)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	_, err = io.Copy(w, body)
	return err
}
