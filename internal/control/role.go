package control

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/httpd"
)

// Role is the permission of a client. Each role includes the roles before it.
type Role uint8

// The roles.
const (
	// NoRole may do nothing.
	NoRole Role = iota
	// Read may ask.
	Read
	// Operate may change the running target, but not the configuration.
	Operate
	// Admin may create and delete objects, and content.
	Admin
)

var roleNames = []string{"no role", "read", "operate", "admin"}

// String returns the name of the role, as in the configuration.
func (r Role) String() string { return roleNames[r] }

// ParseRole returns the role with a name, NoRole if there is none.
func ParseRole(name string) Role { return Role(max(0, slices.Index(roleNames, name))) }

// Roles are the roles of clients: by subject for certificates, and by user and group ID for the
// unix socket. It does not change. A nil Roles makes everybody Admin. Otherwise a client that is
// not in it has NoRole, except root and the user of this process at the socket, which are Admin.
type Roles struct {
	Subjects      map[string]Role
	Users, Groups map[uint32]Role
}

// of returns the highest role of a client.
func (r *Roles) of(c *client) Role {
	switch {
	case r == nil:
		return Admin
	case c.certificates != nil:
		return r.Subjects[c.subject]
	case c.uid == 0 || c.uid == uint32(os.Geteuid()):
		return Admin
	}
	role := r.Users[c.uid]
	for _, g := range c.groups {
		role = max(role, r.Groups[g])
	}
	return role
}

// roles returns the current roles.
func (s *Server) roles() *Roles {
	if s.config.Roles == nil {
		return nil
	}
	return s.config.Roles()
}

// client is the sender of a request.
type client struct {
	name         []any               // as in log lines
	remote       netip.AddrPort      // of certificates
	certificates []*x509.Certificate // nil: a process, described by the fields below
	subject      string              // of certificates[0]
	uid          uint32
	groups       []uint32
}

type clientKey struct{}

func clientOf(ctx context.Context) *client { return ctx.Value(clientKey{}).(*client) }

// By returns the sender of the request of a context as keys and values of log lines, or nil.
func By(ctx context.Context) []any {
	who, ok := ctx.Value(clientKey{}).(*client)
	switch {
	case !ok:
		return nil
	case who.certificates != nil:
		return append([]any{"remote", who.remote}, who.name...)
	}
	return slices.Clip(who.name)
}

// on returns the context of the server for a request, which then outlives its client.
func (s *Server) on(r *http.Request) context.Context {
	return context.WithValue(s.ctx, clientKey{}, clientOf(r.Context()))
}

const (
	// maxName is the number of bytes of a subject or of a path in a log line.
	maxName = 512
	// maxOthers is the number of connections of clients that are not Admin.
	maxOthers = maxConnections / 3 * 2
)

// enter identifies the client of a connection. It closes the connection if clients that are not
// Admin have too many, so that some are always left for others.
func (s *Server) enter(ctx context.Context, c net.Conn) context.Context {
	who := newClient(c)
	if s.roles().of(who) != Admin {
		select {
		case s.others <- struct{}{}:
			s.held.Store(c, nil)
		default:
			_ = c.Close()
		}
	}
	return context.WithValue(ctx, clientKey{}, who)
}

// leave is called when the state of a connection changes.
func (s *Server) leave(c net.Conn, state http.ConnState) {
	if state != http.StateClosed {
		return
	}
	if _, held := s.held.LoadAndDelete(c); held {
		<-s.others
	}
}

func newClient(c net.Conn) *client {
	if n, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = n.NetConn()
	}
	if t, ok := c.(*tls.Conn); ok {
		who := &client{
			remote:       httpd.Remote(c),
			certificates: t.ConnectionState().PeerCertificates,
		}
		who.subject = subject(who.certificates[0])
		who.name = []any{"certificate", capped(who.subject)}
		return who
	}
	cred, groups, err := credentials(c)
	if err != nil {
		cred = &unix.Ucred{Pid: -1, Uid: math.MaxUint32, Gid: math.MaxUint32}
	}
	return &client{
		name: []any{"uid", cred.Uid, "pid", cred.Pid}, uid: cred.Uid,
		groups: append(groups, cred.Gid),
	}
}

// subject returns the subject of a certificate as written by RFC 2253, with all attributes, in
// order. Subject.String has them in another order, and only one common name.
func subject(c *x509.Certificate) string {
	var s pkix.RDNSequence
	if _, err := asn1.Unmarshal(c.RawSubject, &s); err != nil {
		return "" // x509 has parsed it before
	}
	return s.String()
}

func capped(text string) string { return text[:min(len(text), maxName)] }

// forbids returns an error if a client may not make a request that needs a role, and logs it.
func (s *Server) forbids(r *http.Request, needed Role) error {
	who, needed := clientOf(r.Context()), cmp.Or(needed, Admin)
	has := s.roles().of(who)
	if has >= needed {
		return nil
	}
	p := NewProblem(http.StatusForbidden, fmt.Sprintf("this needs the role %v, and %s has %v",
		needed, who, has), "An administrator gives roles to clients with control.roles.")
	s.refused(event.ControlRequestRefused, who.remote, append(slices.Clip(who.name), "request",
		operation(r), "expected", needed.String(), "received", has.String())...)
	return p
}

// refused logs that a client is refused.
func (s *Server) refused(k *event.Kind, remote netip.AddrPort, args ...any) {
	if s.config.Refused != nil {
		s.config.Refused(k, remote, args)
	}
}

// String returns the client as named in problems.
func (c *client) String() string {
	if c.certificates != nil {
		return fmt.Sprintf("the certificate %q", capped(c.subject))
	}
	return fmt.Sprintf("the user %d", c.uid)
}

// trusts returns an error if a client with a certificate would no longer be accepted: the
// certificate may have expired, or its CA may have been replaced.
func (s *Server) trusts(r *http.Request) error {
	chain := clientOf(r.Context()).certificates
	if chain == nil {
		return nil
	}
	others := x509.NewCertPool()
	for _, c := range chain[1:] {
		others.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: s.tls.Load().ClientCAs, Intermediates: others,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}
