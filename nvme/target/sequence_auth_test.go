package target

import (
	"fmt"
	"strings"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// secrets are the keys of hosts and controllers in sequences.
var secrets = map[string]string{"own": hostSecret, "other": controllerSecret}

// policy sets the keys of a host, or takes them away with "none".
func (s *sequence) policy(a *arguments) string {
	if a.flag("none") {
		s.r.target.SetHostPolicy(hostNamed(a.word(0)), nil)
		return "ok"
	}
	p := &auth.Policy{
		Groups:         []auth.Group{auth.GroupNull},
		Reauthenticate: time.Duration(a.number("reauthenticate", 0)) * time.Second,
	}
	for _, name := range strings.Split(a.text("key", "own"), ",") {
		p.Keys = append(p.Keys, authKey(a.t, secrets[name]))
	}
	if name := a.text("controller-key", ""); name != "" {
		p.ControllerKey = authKey(a.t, secrets[name])
	}
	if a.flag("expired") {
		p.Until = time.Now().Add(-time.Second)
	}
	s.r.target.SetHostPolicy(hostNamed(a.word(0)), p)
	return "ok"
}

// enforceKeys ends the controllers of hosts that have no key any more where one is required.
func (s *sequence) enforceKeys(*arguments) string {
	s.r.target.EnforceKeys()
	s.r.settle()
	return "ok"
}

// authenticate runs an exchange on the admin queue of a host, or on an I/O queue, up to a message.
// The commands below it are sent before each message.
func (s *sequence) authenticate(a *arguments) string {
	h := s.host(a, 0)
	q := h.admin
	if n := a.number("queue", 0); n > 0 {
		q = h.io[n-1]
	}
	side := &auth.Host{
		HostNQN: h.args.host, SubNQN: h.args.sub, Key: authKey(a.t, secrets[a.text("key", "own")]),
	}
	if name := a.text("controller-key", ""); name != "" {
		side.ControllerKey = authKey(a.t, secrets[name])
	}
	var m []byte
	var err error
	last, out, between := a.text("until", ""), "ok", ""
	for _, message := range []struct {
		name string
		pass func()
	}{
		{"negotiate", func() { s.r.authSend(q, side.Negotiate(7)) }},
		{"challenge", func() { m, err = side.Challenged(s.r.authReceive(q)) }},
		{"reply", func() { s.r.authSend(q, m) }},
		{"success", func() { m, err = side.Succeeded(s.r.authReceive(q)) }},
		{"success2", func() { s.r.authSend(q, m) }},
	} {
		for line := range strings.Lines(a.Input) {
			line = strings.TrimSpace(line)
			between += fmt.Sprintf("before %s, %s: %s\n", message.name, line,
				s.one(a.below(line, []datadriven.CmdArg{{Key: a.word(0)}}, nil)))
		}
		if m == nil && message.name == "success2" {
			break
		}
		message.pass()
		if err != nil {
			if out = err.Error(); m != nil {
				s.r.authSend(q, m)
			}
			break
		}
		if message.name == last {
			out = "goes on"
			break
		}
	}
	s.r.w.Settle()
	return between + out
}

// authentications counts exchanges.
func (s *sequence) authentications(*arguments) string {
	n, failed := s.r.target.Authentications()
	return fmt.Sprintf("%d authentications, %d failed", n, failed)
}

// controllers lists controllers with their queues, and all connections.
func (s *sequence) controllers(*arguments) string {
	var out strings.Builder
	for _, c := range s.r.target.Controllers() {
		fmt.Fprintf(&out, "controller %d of %s: %d queues\n", c.CNTLID, nameOf(c.NQN), c.Queues)
	}
	for _, c := range s.r.connections() {
		fmt.Fprintf(&out, "connection of %q to %q: queue %d, %v\n", nameOf(c.Host),
			nameOf(c.Subsystem), c.QID, subsystems.SecurityOf(&c))
	}
	return out.String()
}

// tls is the TLS of a connection, for the names of a PSK identity.
func (a *arguments) tls() *fabric.TLS {
	host := a.text("tls-host", "")
	if host == "" {
		return nil
	}
	changed := a.flag("tls-changed") // since the handshake
	return &fabric.TLS{
		HostNQN: hostNamed(host), SubNQN: subNamed(a.text("tls-subsystem", "")),
		Cipher: "TLS_AES_128_GCM_SHA256", Counts: func() bool { return !changed },
	}
}
