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

	"github.com/nvmf-target/nvmf-target/internal/httpd"
)

// Role is what a client may do; each may do what those before it may.
type Role uint8

// The roles.
const (
	// NoRole may do nothing.
	NoRole Role = iota
	// Read may ask.
	Read
	// Operate may change what is running, but not what the configuration says.
	Operate
	// Admin may create and delete objects, and content.
	Admin
)

var roleNames = []string{"no role", "read", "operate", "admin"}

// String is the name of the role, as the configuration has it.
func (r Role) String() string { return roleNames[r] }

// ParseRole returns the role with a name, NoRole if there is none.
func ParseRole(name string) Role { return Role(max(0, slices.Index(roleNames, name))) }

// Roles are the roles of clients, those of certificates by subject, those of the unix socket by
// user and group ID. It does not change. With nil all are Admin. Otherwise a client that is not in
// it has NoRole, but for root and the user of this process at the socket, which are Admin.
type Roles struct {
	Subjects      map[string]Role
	Users, Groups map[uint32]Role
}

// of is the highest role that a client has.
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

// roles are those of now.
func (s *Server) roles() *Roles {
	if s.config.Roles == nil {
		return nil
	}
	return s.config.Roles()
}

// client is who has sent a request.
type client struct {
	name         []any               // as log lines say it
	remote       netip.AddrPort      // of certificates
	certificates []*x509.Certificate // nil: the following are those of a process
	subject      string              // of certificates[0]
	uid          uint32
	groups       []uint32
}

type clientKey struct{}

func clientOf(ctx context.Context) *client { return ctx.Value(clientKey{}).(*client) }

// By says who has sent the request that a context is of, as keys and values of log lines.
func By(ctx context.Context) []any {
	who := clientOf(ctx)
	if who.certificates != nil {
		return append([]any{"remote", who.remote}, who.name...)
	}
	return slices.Clip(who.name)
}

// on returns the context of the server for a request, which then outlives its client.
func (s *Server) on(r *http.Request) context.Context {
	return context.WithValue(s.ctx, clientKey{}, clientOf(r.Context()))
}

const (
	// maxName is how many bytes of a subject or of a path a log line has.
	maxName = 512
	// maxOthers is how many of the connections clients may have that are not Admin.
	maxOthers = maxConnections / 3 * 2
)

// enter notes who a client is. It closes the connection if those that are not Admin have too many,
// so that there are always some for others.
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

// subject is that of a certificate, as RFC 2253 writes it: with all attributes, in their order.
// Subject.String has them in another order, and only one common name.
func subject(c *x509.Certificate) string {
	var s pkix.RDNSequence
	if _, err := asn1.Unmarshal(c.RawSubject, &s); err != nil {
		return "" // x509 has parsed it before
	}
	return s.String()
}

func capped(text string) string { return text[:min(len(text), maxName)] }

// forbids says why a client may not make a request that needs a role, and tells the log.
func (s *Server) forbids(r *http.Request, needed Role) error {
	who, needed := clientOf(r.Context()), cmp.Or(needed, Admin)
	has := s.roles().of(who)
	if has >= needed {
		return nil
	}
	p := NewProblem(http.StatusForbidden, fmt.Sprintf("this needs the role %v, and %s has %v",
		needed, who, has), "An administrator gives roles to clients with control.roles.")
	s.refused("control request refused", who.remote, append(slices.Clip(who.name), "request",
		operation(r), "expected", needed.String(), "received", has.String())...)
	return p
}

// refused tells the log that a client is refused.
func (s *Server) refused(message string, remote netip.AddrPort, args ...any) {
	if s.config.Refused != nil {
		s.config.Refused(message, remote, args)
	}
}

// String is the client as problems name it.
func (c *client) String() string {
	if c.certificates != nil {
		return fmt.Sprintf("the certificate %q", capped(c.subject))
	}
	return fmt.Sprintf("the user %d", c.uid)
}

// trusts says why a client that came with a certificate would not be let in now: since then it may
// have expired, or its CA may have been replaced.
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
