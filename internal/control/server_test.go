package control

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestMain gives clients so much time that only tests with shorter limits reach them.
func TestMain(m *testing.M) {
	for _, limit := range []*time.Duration{
		&readTimeout, &writeTimeout, &idleTimeout, &handshakeTimeout,
	} {
		*limit = time.Hour
	}
	testutil.Main(m)
}

var (
	quiet = slog.New(slog.DiscardHandler)
	began = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
)

// feed is a source of events.
type feed struct {
	mu      sync.Mutex
	list    []observed.Event
	changed chan struct{}
}

func (f *feed) add(e observed.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e.ID = uint64(len(f.list) + 1)
	f.list = append(f.list, e)
	if f.changed != nil {
		close(f.changed)
	}
	f.changed = make(chan struct{})
}

func (f *feed) events(since uint64) ([]observed.Event, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.list[min(since, uint64(len(f.list))):], f.changed
}

// filled sets every field of a value, so that nothing is omitted from its JSON.
func filled[T any]() (v T) {
	fill(reflect.ValueOf(&v).Elem(), 0)
	return v
}

func fill(v reflect.Value, depth int) {
	switch {
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(began))
	case v.Type() == reflect.TypeFor[netip.AddrPort]():
		v.Set(reflect.ValueOf(netip.MustParseAddrPort("[fd00::1]:4420")))
	case v.Type() == reflect.TypeFor[netip.AddrPort]():
		v.Set(reflect.ValueOf(netip.MustParseAddrPort("[fd00::1]:4420")))
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Tag.Get("json") != "-" {
				fill(v.Field(i), depth+1)
			}
		}
	case v.Kind() == reflect.Slice && depth < 4:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth+1)
	case v.Type() == reflect.TypeFor[observed.Keys]():
		v.Set(reflect.ValueOf(observed.Keys{"backend": "ram"}))
	case v.Kind() == reflect.Map:
		v.Set(reflect.ValueOf(map[string]uint64{"io": 1}))
	case v.Kind() == reflect.String:
		v.SetString("text")
	case v.CanInt():
		v.SetInt(7)
	case v.CanUint():
		v.SetUint(7)
	case v.CanFloat():
		v.SetFloat(1.5)
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	}
}

// testObject returns the object with the name used by testSource.
func testObject(o Object) Object {
	for _, name := range []*string{&o.Subsystem, &o.Host, &o.Listener, &o.Referral} {
		if *name != "" {
			*name = "text"
		}
	}
	if o.NSID != 0 {
		o.NSID = 7
	}
	return o
}

func testSource(f *feed) Source {
	return Source{
		Source: observed.Source{
			Status:     filled[observed.Status],
			Listeners:  filled[[]observed.Listener],
			Subsystems: filled[[]observed.Subsystem],
			Namespaces: filled[[]observed.Namespace],
			Hosts:      filled[[]observed.Host],
			Refusals:   filled[[]observed.Refusal],
			Groups:     filled[[]observed.Group],
			Connections: func(context.Context) ([]observed.Connection, error) {
				return filled[[]observed.Connection](), nil
			},
			Latency: func(context.Context) ([]observed.Latency, error) {
				return filled[[]observed.Latency](), nil
			},
			Disks: func(context.Context) ([]observed.Disk, error) {
				return filled[[]observed.Disk](), nil
			},
			Reactors: func(context.Context) ([]observed.Reactor, error) {
				return filled[[]observed.Reactor](), nil
			},
			PortCounters: filled[[]observed.PortCounter],
			Events:       f.events,
		},
		Trace: func(ctx context.Context, q observed.TraceQuery,
			fn func(observed.TraceQueue) error,
		) error {
			err := fn(filled[observed.TraceQueue]())
			if q.Follow {
				<-ctx.Done()
			}
			return err
		},
		Plan:      func(context.Context) (Plan, error) { return filled[Plan](), nil },
		Reload:    func(context.Context) (Plan, error) { return Plan{}, nil },
		Objects:   filled[[]observed.Configured],
		Referrals: filled[[]Referral],
		Configured: func(o Object) (Object, observed.Configured, error) {
			return testObject(o), filled[observed.Configured](), nil
		},
		Put: func(_ context.Context, o Object, body []byte, _ bool) (Plan, error) {
			if o.Key != "" && !bytes.Contains(body, []byte(`"key"`)) {
				return Plan{}, NewProblem(http.StatusUnprocessableEntity, "key is missing", "")
			}
			return filled[Plan](), nil
		},
		Create: func(context.Context, string, []byte) (NamespaceID, error) {
			return filled[NamespaceID](), nil
		},
		Delete:     func(context.Context, Object, bool, bool) (Plan, error) { return Plan{}, nil },
		Disconnect: func(host, _ string) int { return len(host) },
		Drain: func(ListenerID, bool) ([]observed.Listener, error) {
			return filled[[]observed.Listener](), nil
		},
		ANA:    filled[[]ANA],
		SetANA: func(ANASet) ([]ANA, error) { return filled[[]ANA](), nil },
		GroupVersions: func(context.Context) ([]GroupVersion, error) {
			return filled[[]GroupVersion](), nil
		},
		ChangeGroup: func(context.Context, GroupChange) (Plan, error) { return Plan{}, nil },
		DrainGroup:  func(GroupDrain) error { return nil },
		Forget:      func(string) error { return nil },
		Fence:       func(string) error { return nil },
		Resize:      func(Resize) error { return nil },
		Restart: func(context.Context) (*Succession, func(), error) {
			return &Succession{}, func() {}, nil
		},
		Pause: func(NamespaceID, bool) error { return nil },
	}
}

func serve(t *testing.T, src Source, log *slog.Logger) *Server {
	t.Helper()
	s := testutil.Value(Listen(Config{Socket: filepath.Join(t.TempDir(), "run", "c.sock")}, src,
		log))(t)
	t.Cleanup(func() {
		testutil.Check(t, s.Close())
	})
	return s
}

func newTestClient(t *testing.T, s *Server) *Client {
	t.Helper()
	c := NewClient(s.socket)
	t.Cleanup(c.Close)
	return c
}

// equal compares the answer for the client with the value of the source.
func equal[T any](t *testing.T, c *Client, g Get[T]) {
	t.Helper()
	got, err := g.From(t.Context(), c)
	if want := filled[T](); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// TestClient: the client gets the values of the source.
func TestClient(t *testing.T) {
	f, log := new(feed), new(testutil.Log)
	s := serve(t, testSource(f), log.Logger())
	c := newTestClient(t, s)
	equal(t, c, GetStatus)
	equal(t, c, GetListeners)
	equal(t, c, GetSubsystems)
	equal(t, c, GetNamespaces)
	equal(t, c, GetHosts)
	equal(t, c, GetConnections)
	equal(t, c, GetLatency)
	equal(t, c, GetRefusals)
	equal(t, c, GetCounters)
	equal(t, c, GetGroups)
	g, err := Get[observed.Group]{path: "/v1/groups/7"}.From(t.Context(), c)
	group := filled[[]observed.Group]()[0]
	testutil.True(t, err == nil && reflect.DeepEqual(g, group), "%+v, %v", g, err)
	_, err = Get[observed.Group]{path: "/v1/groups/8"}.From(t.Context(), c)
	testutil.Fails(t, err, "group 8", "")
	equal(t, c, GetPlan)
	if p, err := c.Reload(t.Context()); err != nil || p.Changes == nil || len(p.Changes) != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	d, err := PostDisconnect.To(t.Context(), c, Disconnect{Host: "four"})
	testutil.True(t, err == nil && d.Controllers == 4, "%+v, %v", d, err)
	for _, want := range []string{`request="POST /v1/reload" uid=`, "/hosts/disconnect"} {
		testutil.True(t, strings.Contains(log.String(), want), "no %q in the log:\n%s", want, log)
	}
	testutil.True(t, !strings.Contains(log.String(), "GET"), "reads are logged:\n%s", log)
}

// TestProblems: errors describe the problem, its place, and a fix.
func TestProblems(t *testing.T) {
	src, log := testSource(new(feed)), new(testutil.Log)
	src.Plan = func(context.Context) (Plan, error) {
		p := NewProblem(422, "unknown key", "Delete it.")
		p.Place = "a.yaml:1:2"
		p.More = []Problem{{Detail: "another", Place: "a.yaml:3:4"}}
		return Plan{}, p
	}
	src.Reload = func(context.Context) (Plan, error) { return Plan{}, errors.New("broken") }
	src.Connections = func(ctx context.Context) ([]observed.Connection, error) {
		return nil, context.DeadlineExceeded
	}
	c := newTestClient(t, serve(t, src, log.Logger()))
	_, err := GetPlan.From(t.Context(), c)
	want := "a.yaml:1:2: unknown key. Delete it.\na.yaml:3:4: another"
	testutil.True(t, err != nil && err.Error() == want, "got %v, want %s", err, want)
	_, err = c.Reload(t.Context())
	testutil.True(t, err != nil && err.Error() == "broken", "%v", err)
	testutil.True(t, strings.Contains(log.String(), "err=broken"), "the log does not say why:\n%s",
		log)
	_, err = GetConnections.From(t.Context(), c)
	testutil.True(t, err != nil && strings.Contains(err.Error(), "busy"), "%v", err)
	_, err = PostDisconnect.To(t.Context(), c, Disconnect{})
	testutil.Fails(t, err, "host: no host is given. ", "")
	_, err = PostFence.To(t.Context(), c, GatewayID{})
	testutil.Fails(t, err, "gateway: no gateway is given. ", "")
}

// TestFollow: events come as they happen, and the end of the target is an error.
func TestFollow(t *testing.T) {
	f := new(feed)
	f.add(observed.Event{Message: "first"})
	s := serve(t, testSource(f), quiet)
	c := newTestClient(t, s)
	if list, err := GetEvents.From(t.Context(), c); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	var got []uint64
	err := c.Follow(t.Context(), func(e observed.Event) error {
		got = append(got, e.ID)
		if e.ID < 3 {
			f.add(observed.Event{Message: "next"})
			return nil
		}
		go func() { _ = s.Close() }()
		return nil
	})
	testutil.True(t, errors.Is(err, io.ErrUnexpectedEOF) && reflect.DeepEqual(got,
		[]uint64{1, 2, 3}), "got %v, %v", got, err)
}

func TestClientErrors(t *testing.T) {
	dir := t.TempDir()
	c := NewClient(filepath.Join(dir, "none"))
	_, err := GetStatus.From(t.Context(), c)
	testutil.True(t, err != nil && strings.Contains(err.Error(), "--socket"), "%v", err)
	l := testutil.Value(net.Listen("unix", filepath.Join(dir, "stale")))(t)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	c = NewClient(filepath.Join(dir, "stale"))
	_, err = GetStatus.From(t.Context(), c)
	testutil.True(t, err != nil && strings.Contains(err.Error(), "--socket"), "%v", err)
}

// TestSocket: its mode with any umask, a stale socket, and the socket of another process.
func TestSocket(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "dir", "c.sock")
	mode := func(path string) os.FileMode {
		info := testutil.Value(os.Stat(path))(t)
		return info.Mode().Perm()
	}
	s, err := Listen(Config{Socket: path}, testSource(new(feed)), quiet)
	testutil.Must(t, err)
	testutil.True(t, mode(path) == 0o600 && mode(filepath.Dir(path)) == 0o755, "modes %o and %o",
		mode(path), mode(filepath.Dir(path)))
	_, err = Listen(Config{Socket: path}, Source{}, quiet)
	testutil.True(t, err != nil && strings.Contains(err.Error(), "process "), "a second server: %v",
		err)
	testutil.Check(t, s.Close())
	testutil.Is(t, testutil.Err(os.Lstat(path)), os.ErrNotExist, "the socket is left")

	stale, err := net.Listen("unix", path)
	testutil.Must(t, err)
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	stale.Close()
	s, err = Listen(Config{Socket: path, Mode: 0o660, Group: "0"}, testSource(new(feed)), quiet)
	testutil.Must(t, err)
	testutil.Equal(t, mode(path), 0o660, "mode")
	if err := os.Rename(path, path+".moved"); err != nil { // as if another server had replaced it
		t.Fatal(err)
	}
	testutil.Must(t, os.WriteFile(path, nil, 0o600))
	testutil.Check(t, s.Close())
	_, err = Listen(Config{Socket: path}, Source{}, quiet)
	testutil.True(t, err != nil && strings.Contains(err.Error(), "is not a socket"),
		"a file in its place: %v", err)
	_, err = Listen(Config{Socket: path, Group: "no such group"}, Source{}, quiet)
	testutil.True(t, err != nil && strings.Contains(err.Error(), "there is no group"),
		"a group: %v", err)
}

// TestSocketUmask: no umask removes configured permissions.
func TestSocketUmask(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.sock")
	defer syscall.Umask(syscall.Umask(0o777))
	for mode, want := range map[os.FileMode]os.FileMode{0: 0o600, 0o600: 0o600, 0o660: 0o660} {
		s, err := Listen(Config{Socket: path, Mode: mode}, testSource(new(feed)), quiet)
		testutil.Must(t, err)
		info, err := os.Lstat(path)
		testutil.True(t, err == nil && info.Mode().Perm() == want, "mode %o, want %o, %v",
			info.Mode().Perm(), want, err)
		testutil.Check(t, s.Close())
	}
}

func TestDefaultSocket(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("RUNTIME_DIRECTORY", dir)
	socket := filepath.Join(dir, "control.sock")
	testutil.Equal(t, DefaultSocket(), socket, "")
	// the directory may belong to another service: a client uses it if the socket is there
	t.Setenv("XDG_RUNTIME_DIR", "")
	testutil.Equal(t, ClientSocket(), systemSocket, "without a socket")
	testutil.Must(t, os.WriteFile(socket, nil, 0o600))
	testutil.Equal(t, ClientSocket(), systemSocket, "with a file")
	testutil.Must(t, os.Remove(socket))
	s := testutil.Value(Listen(Config{Socket: DefaultSocket(), Mode: 0o600}, testSource(new(feed)),
		quiet))(t)
	defer func() { _ = s.Close() }()
	testutil.Equal(t, ClientSocket(), socket, "with a socket")
}
