package web

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// network has targets by address, in a bubble of synctest.
type network struct {
	mu    sync.Mutex
	at    map[string]chan net.Conn
	dials map[string]int // number of dials by address
	open  map[string]int // connections of each address
}

func newNetwork() *network {
	return &network{
		at: map[string]chan net.Conn{}, dials: map[string]int{}, open: map[string]int{},
	}
}

func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	n.dials[address]++
	to := n.at[address]
	n.mu.Unlock()
	here, there := net.Pipe()
	select {
	case to <- there:
		n.mu.Lock()
		defer n.mu.Unlock()
		n.open[address]++
		return &pipe{here, sync.OnceFunc(func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.open[address]--
		})}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	default:
		if to != nil {
			_ = there.Close() // the server is busy
		}
		return nil, errors.New("nobody is there")
	}
}

func (n *network) counts(address string) (dials, open int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials[address], n.open[address]
}

type pipe struct {
	net.Conn
	closed func()
}

func (c *pipe) Close() error {
	c.closed()
	return c.Conn.Close()
}

// listener is a listener of a network.
type listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   func()
}

func (n *network) listen(address string) *listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &listener{conns: make(chan net.Conn, 64), closed: make(chan struct{})}
	l.once = sync.OnceFunc(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		close(l.closed)
		n.at[address] = nil
	})
	n.at[address] = l.conns
	return l
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error   { l.once(); return nil }
func (l *listener) Addr() net.Addr { return &net.TCPAddr{} }

// serve serves handler at an address until the returned function is called.
func (n *network) serve(address string, handler http.HandlerFunc) (stop func()) {
	s := &http.Server{Handler: handler, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	l, done := n.listen(address), make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	return func() {
		_ = s.Close()
		<-done
	}
}

// page is a Server at an address of the network.
func (n *network) page(t *testing.T, address string, src Source, targets ...Target) *Server {
	s := testutil.Value(newServer(httpd.Endpoint{}, src, targets, slog.New(slog.DiscardHandler)))(t)
	for _, o := range s.others.Load().list {
		o.dial = n.dial
	}
	s.Serve(n.listen(address))
	return s
}

// get sends a request like a browser.
func (n *network) get(t *testing.T, url string) *http.Response {
	client := http.Client{Transport: &http.Transport{
		DialContext: n.dial, DisableKeepAlives: true,
	}}
	return testutil.Value(client.Get(url))(t)
}

const (
	token    = "0123456789abcdefABCDEF"
	away     = "http://10.0.0.2"
	addressB = "10.0.0.2:80"
)

// aState has a CR and the token.
var aState = `data: {"summary":{"ready":3,"namespaces":4,"hosts":5,"read":1.5},` + "\r" +
	`"events":["` + token + strings.Repeat("x", 64<<10) + `"]}` + "\n\n"

func one(n *network) (*others, *other) {
	target := Target{Name: "b", URL: away + "/", Token: func() string { return token }}
	safe := sampler{log: slog.New(slog.DiscardHandler)}
	o := newOthers([]Target{target}, safe.safely)
	o.list[0].dial = n.dial
	return o, o.list[0]
}

// TestOtherTargetIsBounded: a target that sends too much, too slowly, or nothing, redirects to
// another, or is not a target, costs a bounded amount of memory, time and connections while a page
// is open. The overview gives the reason why it is not shown. Its token goes to no other target,
// and is not shown.
func TestOtherTargetIsBounded(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://10.0.0.9:3128")
	var sent atomic.Int64
	endless := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			sent.Store(0)
			for {
				n, err := io.WriteString(w, text)
				if sent.Add(int64(n)); err != nil {
					return
				}
			}
		}
	}
	for what, tc := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"a line without end":   {endless("data: " + strings.Repeat("x", 64<<10)), "sent 4 MiB"},
		"lines without states": {endless(strings.Repeat(": x\n", 16<<10)), "sent 4 MiB"},
		"silence": {func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "no state within 10s"},
		"no answer": {func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		}, "no state within 10s"},
		"a word each 5 s": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, ": x\n")
				_ = http.NewResponseController(w).Flush()
				pause(r.Context(), 5*time.Second)
			}
		}, "no state within 10s"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://10.0.0.3/events", http.StatusTemporaryRedirect)
		}, "307 Temporary Redirect: redirects are not followed"},
		"a token in the answer": {func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "not "+r.Header.Get("Authorization")+strings.Repeat(".", 1000),
				http.StatusUnauthorized)
		}, "401 Unauthorized: not Bearer (hidden)..."},
		"an error without end": {func(w http.ResponseWriter, _ *http.Request) {
			sent.Store(0)
			w.WriteHeader(http.StatusForbidden)
			for range 128 {
				n, _ := io.WriteString(w, strings.Repeat("x", 64<<10))
				sent.Add(int64(n))
			}
		}, "403 Forbidden: xxx"},
		"a long status": {func(w http.ResponseWriter, _ *http.Request) {
			c, _, _ := http.NewResponseController(w).Hijack()
			_, _ = io.WriteString(c, "HTTP/1.1 400 "+strings.Repeat("y", 6000)+"\r\n\r\n")
			_ = c.Close()
		}, "it answers 400 yyy"},
		"another service": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "data: {\"a\": 1}\n\n")
		}, "it sends no states"},
		"no server": {nil, "nobody is there"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				if tc.handler != nil {
					defer n.serve(addressB, tc.handler)()
				}
				o, b := one(n)
				defer o.close()
				time.Sleep(time.Hour)
				if dials, _ := n.counts(addressB); dials != 0 {
					t.Error("it is asked without a page")
				}
				b.join()
				time.Sleep(silence + time.Second)
				got := b.summary("b")
				testutil.True(t, strings.Contains(got.Error, tc.want) &&
					!strings.Contains(got.Error, token) && len(got.Error) <= 2*maxReason &&
					got.Time.IsZero(), "the overview says %+v", got)
				if n := sent.Load(); n > maxAnswer+1<<18 {
					t.Errorf("%d bytes were taken", n)
				}
				time.Sleep(109 * time.Second)
				dials, _ := n.counts(addressB)
				testutil.True(t, dials >= 5 && dials <= 12, "%d connections in two minutes", dials)
				b.leave()
				time.Sleep(silence + late + time.Second)
				before, _ := n.counts(addressB)
				time.Sleep(time.Hour)
				if dials, open := n.counts(addressB); dials != before || open != 0 {
					t.Errorf("%d connections without a page, and %d are open", dials-before, open)
				}
				for _, other := range []string{"10.0.0.3:80", "10.0.0.9:3128"} {
					if dials, _ := n.counts(other); dials != 0 {
						t.Errorf("%s was asked", other)
					}
				}
			})
		})
	}
}

// TestOtherTarget: pages share a connection, which ends with the last of them. States that arrive
// too fast are received slowly. A target that has gone keeps its last state with its time, and is
// shown again when it is back. The normal end of a stream is not a failure.
func TestOtherTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		var requests, sent atomic.Int64
		handler := func(w http.ResponseWriter, r *http.Request) {
			if r.URL.String() != "/events" || r.Header.Get("Authorization") != "Bearer "+token {
				t.Errorf("asked for %v with %v", r.URL, r.Header)
			}
			requests.Add(1)
			for range 100 { // then the stream ends
				if _, err := io.WriteString(w, aState); err != nil {
					return
				}
				_ = http.NewResponseController(w).Flush()
				sent.Add(1)
			}
		}
		stop := n.serve(addressB, handler)
		o, b := one(n)
		defer o.close()
		for range maxStreams {
			b.join()
		}
		states := 0
		for range 4 * 150 {
			_, changed := b.get()
			select {
			case <-time.After(300 * time.Millisecond):
				s := b.summary("b")
				testutil.MustTrue(t, s.Error == "", "%+v", s)
				continue
			case <-changed:
				states++
			}
			state, _ := b.get()
			if s := b.summary("b"); s.Error != "" || s.Ready != 3 || s.Namespaces != 4 ||
				s.Hosts != 5 || s.Read != 1.5 || s.Time != time.Now() || s.Name != "b" ||
				!strings.Contains(string(state), `,"events":["(hidden)xxx`) {
				t.Fatalf("%+v, %.200s", s, state)
			}
		}
		testutil.True(t, states >= 140 && states <= 151 && requests.Load() == 2,
			"%d states of %d connections", states, requests.Load())
		_, open := n.counts(addressB)
		testutil.True(t, open == 1, "%d connections for %d pages", open, maxStreams)
		last := b.summary("b").Time
		stop()
		time.Sleep(time.Minute)
		state, _ := b.get()
		if s := b.summary("b"); s.Error != "nobody is there" || !s.Time.After(last.Add(-late)) ||
			s.Time.After(last.Add(late)) || s.Ready != 3 || state == nil {
			t.Errorf("away: %+v, %s", s, state)
		}
		defer n.serve(addressB, handler)()
		time.Sleep(late + time.Second)
		s := b.summary("b")
		testutil.True(t, s.Error == "", "back again: %+v", s)
		for range maxStreams {
			b.leave()
		}
		time.Sleep(silence)
		if state, _ := b.get(); state != nil || b.summary("") != (summary{}) {
			t.Errorf("without a page: %s, %+v", state, b.summary(""))
		}
		_, open = n.counts(addressB)
		testutil.True(t, open == 0, "%d connections without a page", open)
	})
}

// TestOtherHistory: a history that is too large is refused, and other histories do not show the
// token.
func TestOtherHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		defer n.serve(addressB, func(w http.ResponseWriter, r *http.Request) {
			text := strings.Repeat(".", 6<<20)
			if r.URL.String() == "/history?of=1+of+a" {
				text = token
			}
			_, _ = io.WriteString(w, text)
		})()
		o, b := one(n)
		defer o.close()
		if text, err := b.history(t.Context(), "1 of a"); string(text) != "(hidden)" || err != nil {
			t.Errorf("%s, %v", text, err)
		}
		if text, err := b.history(t.Context(), ""); err != errTooLarge {
			t.Errorf("%d bytes, %v", len(text), err)
		}
	})
}

// TestTargetsOfEachOther: two targets that show each other keep no streams between them, except
// while a page is open at one of them, which then has the states and the history of the other one.
func TestTargetsOfEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		var asked [2]atomic.Int64
		source := func(i int) Source {
			src := source(&asked[i])
			src.Status = func() observed.Status {
				asked[i].Add(1)
				return observed.Status{Version: fmt.Sprint(i), Namespaces: i + 7}
			}
			return src
		}
		a := n.page(t, "10.0.0.1:80", source(0), Target{Name: "b", URL: away})
		defer func() { testutil.Check(t, a.Close()) }()
		b := n.page(t, addressB, source(1), Target{Name: "a", URL: "http://10.0.0.1"})
		defer func() { testutil.Check(t, b.Close()) }()

		page := n.get(t, "http://10.0.0.1/events?target=b")
		defer func() { _ = page.Body.Close() }()
		r := bufio.NewReader(page.Body)
		until := func(parts ...string) {
			t.Helper()
			for lines := 0; ; lines++ {
				line, err := r.ReadString('\n')
				testutil.MustTrue(t, err == nil && lines != 100, "no %q, %v", parts, err)
				if !slices.ContainsFunc(parts, func(p string) bool {
					return !strings.Contains(line, p)
				}) {
					return
				}
			}
		}
		until(`data: {`, `"version":"1"`)
		until(`data: [{"name":"","error":""`, `"namespaces":7`, `{"name":"b","error":""`,
			`"namespaces":8`)
		h := n.get(t, "http://10.0.0.1/history?target=b&of=")
		text := testutil.Value(io.ReadAll(h.Body))(t)
		_ = h.Body.Close()
		if h.StatusCode != http.StatusOK || !strings.HasPrefix(string(text), `[{"s":`) &&
			!strings.HasPrefix(string(text), `[{"t":`) {
			t.Errorf("the history of b: %s %s", h.Status, text)
		}
		for path, want := range map[string]int{"/history?target=c": 404} {
			got := n.get(t, "http://10.0.0.1"+path)
			_ = got.Body.Close()
			testutil.Equal(t, got.StatusCode, want, "%s", path)
		}
		time.Sleep(time.Minute)
		if dials, _ := n.counts("10.0.0.1:80"); dials != 3 { // the requests above
			t.Errorf("b has asked a: %d connections", dials)
		}
		_ = page.Body.Close()
		time.Sleep(time.Minute)
		for i := range asked {
			before := asked[i].Load()
			time.Sleep(time.Hour)
			testutil.True(t, asked[i].Load() == before, "target %d still makes states", i)
		}
		_, open := n.counts(addressB)
		testutil.True(t, open == 0, "%d connections without a page", open)
	})
}

// TestSetTargets: targets come and go while the page is open, which reconnects.
func TestSetTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		var asked atomic.Int64
		a := n.page(t, "10.0.0.1:80", source(&asked), Target{Name: "b", URL: away})
		defer func() { testutil.Check(t, a.Close()) }()
		for _, list := range [][]Target{nil, {{Name: "c", URL: away}, {Name: "d", URL: away}}} {
			page := n.get(t, "http://10.0.0.1/events?target=")
			start := time.Now()
			a.SetTargets(list)
			_, err := io.Copy(io.Discard, page.Body)
			testutil.Check(t, err)
			_ = page.Body.Close()
			testutil.Equal(t, time.Since(start), 0, "the time until the page is told")
			testutil.Equal(t, len(a.others.Load().list), len(list), "targets")
		}
		plain := n.get(t, "http://10.0.0.1/events")
		a.SetTargets(nil)
		next(t, bufio.NewReader(plain.Body)) // it goes on
		_ = plain.Body.Close()
	})
}

// TestLastStateStays: an unreachable target has its last state for the next page. A reachable
// target makes a new one.
func TestLastStateStays(t *testing.T) {
	for _, away := range []string{"", "it is away"} {
		f := newFeed()
		f.join()
		f.publish([]byte("{}"), &summary{Error: away})
		f.leave()
		testutil.True(t, !f.goesOn(t.Context()), "it goes on without a page")
		if state, _ := f.get(); (state != nil) != (away != "") {
			t.Errorf("error %q: state %q", away, state)
		}
	}
}
