package control

import (
	"bufio"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestRoles: each operation is for clients with its role, and for no others, with any headers. A
// refusal names the needed role and the role of the client. testdata/roles.txt has the role needed
// for each operation, as in ADR 0035.
func TestRoles(t *testing.T) {
	needs := map[string]Role{}
	for line := range strings.Lines(string(testutil.Value(os.ReadFile("testdata/roles.txt"))(t))) {
		role, op, _ := strings.Cut(strings.TrimSpace(line), " ")
		needs[op] = ParseRole(role)
	}
	a := newAuthority(t)
	a.issue("server", &x509.Certificate{})
	var roles atomic.Pointer[Roles]
	roles.Store(&Roles{Subjects: map[string]Role{
		"CN=read": Read, "CN=operate": Operate, "CN=admin": Admin,
	}})
	r := new(refusals)
	s, err := Listen(Config{
		TLS: TLS{
			Listen: netip.MustParseAddrPort("127.0.0.1:0"), Certificates: a.files("server"),
		},
		Roles: roles.Load, Refused: r.add,
	}, testSource(new(feed)), quiet)
	a.must(err)
	t.Cleanup(func() { s.Close() })
	for _, route := range s.routes() {
		testutil.True(t, needs[route.pattern] == route.role && route.role != NoRole, "%s needs %v",
			route.pattern, route.role)
	}
	ask := func(name, op string) (int, Problem) {
		t.Helper()
		c, err := NewTLSClient(s.Addr().String(), a.files(name))
		a.must(err)
		defer c.Close()
		method, path, _ := strings.Cut(op, " ")
		req, err := http.NewRequestWithContext(t.Context(), method, c.base+strings.NewReplacer(
			"{nqn}", "nqn.2026-11.a:b", "{nsid}", "7", "{host}", "h", "{key}", "tls_key",
			"{listener}", "tcp%20%5B::1%5D:4420", "{referral}", "tcp%20[::1]:8009", "{group}", "7",
			"{port}", "7", "{cntlid}", "7").Replace(path), nil)
		a.must(err)
		for _, h := range []string{
			"X-HTTP-Method-Override: GET", "X-Role: admin", "X-Forwarded-For: 127.0.0.1",
			"X-SSL-Client-S-DN: CN=admin", "X-Remote-User: root", "Authorization: Bearer admin",
		} {
			key, value, _ := strings.Cut(h, ": ")
			req.Header.Set(key, value)
		}
		answer, err := c.http.Do(req)
		a.must(err)
		defer answer.Body.Close()
		var p Problem
		_ = json.NewDecoder(answer.Body).Decode(&p)
		return answer.StatusCode, p
	}
	for i, name := range []string{"stranger", "read", "operate", "admin"} {
		a.issue(name, &x509.Certificate{})
		for op, needed := range needs {
			status, p := ask(name, op)
			if has := Role(i); (status == http.StatusForbidden) != (has < needed) {
				t.Errorf("%s for %s: %d %v", op, name, status, p)
			} else if has < needed && op != "HEAD /v1/status" && (p.Hint == "" ||
				!strings.Contains(p.Detail, fmt.Sprintf("needs the role %v", needed)) ||
				!strings.HasSuffix(p.Detail, fmt.Sprintf(`"CN=%s" has %v`, name, has))) {
				t.Errorf("%s for %s: %v", op, name, p)
			}
		}
	}
	r.await(t, "control request refused: [certificate CN=read request POST /v1/reload "+
		"expected operate received read]")

	roles.Store(&Roles{Subjects: map[string]Role{"CN=read": Operate}})
	status, _ := ask("read", "POST /v1/reload")
	testutil.True(t, status == http.StatusOK, "a role that was given: %d", status)
	status, _ = ask("admin", "GET /v1/status")
	testutil.True(t, status == http.StatusForbidden, "a role that was taken: %d", status)
	roles.Store(nil)
	status, _ = ask("stranger", "DELETE /v1/subsystems/{nqn}")
	testutil.True(t, status == http.StatusOK, "without roles: %d", status)
}

// TestRoleEndsFollowing: a client that loses its role while it follows events gets no more of them.
func TestRoleEndsFollowing(t *testing.T) {
	a, f := newAuthority(t), new(feed)
	s, _ := serveTLS(t, a, f, quiet)
	var roles atomic.Pointer[Roles]
	s.config.Roles = roles.Load
	client, err := NewTLSClient(s.Addr().String(), a.files("client"))
	a.must(err)
	defer client.Close()
	f.add(observed.Event{})
	n := 0
	_ = client.Follow(t.Context(), func(observed.Event) error {
		n++
		roles.Store(&Roles{})
		f.add(observed.Event{})
		return nil
	})
	testutil.Equal(t, n, 1, "events")
}

// TestSubject: a subject is compared as a whole, and no part of it can pretend to be another one.
func TestSubject(t *testing.T) {
	for want, name := range map[string]pkix.RDNSequence{
		"CN=admin,O=a": {
			{{Type: asn1.ObjectIdentifier{2, 5, 4, 10}, Value: "a"}}, cn("admin"),
		},
		"CN=b,CN=admin":         {cn("admin"), cn("b")},
		`CN=admin\,O=a`:         {cn("admin,O=a")},
		`CN=\#admin\ `:          {cn("#admin ")},
		"CN=a+CN=b":             {append(cn("a"), cn("b")...)},
		"1.2.3=#0c056d61696c40": {{{Type: asn1.ObjectIdentifier{1, 2, 3}, Value: "mail@"}}},
	} {
		der := testutil.Value(asn1.Marshal(name))(t)
		testutil.Equal(t, subject(&x509.Certificate{RawSubject: der}), want, "")
	}
}

func cn(name string) pkix.RelativeDistinguishedNameSET {
	return pkix.RelativeDistinguishedNameSET{
		{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: name},
	}
}

// dialAs connects to a socket as another user, with these groups.
func dialAs(t *testing.T, path string, uid, gid uint32, groups ...uint32) net.Conn {
	t.Helper()
	type result struct {
		c   net.Conn
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlock it: the thread ends with the goroutine
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			done <- result{nil, err}
			return
		}
		list := append(groups, 0)
		_, _, e1 := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)),
			reflect.ValueOf(list).Pointer(), 0)
		runtime.KeepAlive(list)
		_, _, e2 := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid))
		_, _, e3 := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err == nil && e1+e2+e3 != 0 {
			err = unix.EPERM
		}
		f := os.NewFile(uintptr(fd), path)
		defer f.Close()
		if err != nil {
			done <- result{nil, err}
			return
		}
		c, err := net.FileConn(f)
		done <- result{c, err}
	}()
	r := testutil.Receive(t, "the connection", done)
	testutil.Must(t, r.err)
	t.Cleanup(func() { r.c.Close() })
	_ = r.c.SetDeadline(time.Now().Add(testutil.Patience))
	return r.c
}

// asksAt makes a request on a connection.
func asksAt(t *testing.T, c net.Conn, op string) (int, string) {
	t.Helper()
	if _, err := io.WriteString(c, op+" HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		return 0, err.Error()
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(b)
}

// TestSocketRoles: at the socket, users and groups have roles, including supplementary groups, and
// root is always an admin.
func TestSocketRoles(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to connect as others")
	}
	roles := &Roles{
		Users: map[uint32]Role{2001: Read, 2002: Operate}, Groups: map[uint32]Role{3001: Operate},
	}
	s, r := serveRoles(t, func() *Roles { return roles })
	many := make([]uint32, 300) // more than the first system call has room for
	for i := range many {
		many[i] = uint32(4000 + i)
	}
	for _, test := range []struct {
		uid, gid uint32
		groups   []uint32
		role     Role
	}{
		{0, 0, nil, Admin},
		{2000, 2000, nil, NoRole},
		{2001, 2000, nil, Read},
		{2001, 3001, nil, Operate},
		{2000, 3001, nil, Operate},
		{2000, 2000, []uint32{5, 3001}, Operate},
		{2002, 2000, []uint32{5}, Operate},
		{2000, 2000, append(many, 3001), Operate},
		{2000, 0, many, NoRole},
	} {
		for op, needed := range map[string]Role{
			"GET /v1/status": Read, "POST /v1/reload": Operate, "PUT /v1/subsystems/a": Admin,
		} {
			c := dialAs(t, s.socket, test.uid, test.gid, test.groups...)
			status, body := asksAt(t, c, op)
			testutil.True(t, (status == http.StatusOK) == (test.role >= needed) &&
				(status == http.StatusForbidden) == (test.role < needed), "%+v: %s: %d %s", test,
				op, status, body)
			c.Close()
		}
	}
	r.await(t, "control request refused: [uid 2000 pid ")
}

func serveRoles(t *testing.T, roles func() *Roles) (*Server, *refusals) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "roles") // which other users can enter
	testutil.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := new(refusals)
	s, err := Listen(Config{
		Socket: filepath.Join(dir, "c.sock"), Mode: 0o666, Roles: roles, Refused: r.add,
	}, testSource(new(feed)), quiet)
	testutil.Must(t, err)
	testutil.Must(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { s.Close() })
	return s, r
}

// TestOthersLeaveConnections: clients that are not admins keep no admin out, whatever connections
// they hold.
func TestOthersLeaveConnections(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to connect as others")
	}
	s, _ := serveRoles(t, func() *Roles { return &Roles{Users: map[uint32]Role{2001: Read}} })
	for range 3 * maxConnections {
		c := dialAs(t, s.socket, 2001, 2001)
		_, _ = io.WriteString(c, "GET /v1/status HTTP/1.1\r\nHost: a\r\n\r\n")
	}
	c := newTestClient(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	testutil.Check(t, testutil.Err(GetStatus.From(ctx, c)))
	testutil.Check(t, testutil.Err(c.Reload(ctx)))
}
