package controllers

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/target/association"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// This file decides which hosts may have controllers, and whether they authenticate.

// Policy returns the current policy of the host, or nil if the host has no key. It is nil also for
// a discovery controller that requires no authentication: as in nvmet, anybody may read the
// discovery log.
func (c *Controller) Policy() *auth.Policy {
	if c.Subsystem.Discovery && !c.Proof.Authenticates &&
		c.Subsystem.Settings.Load().Security&subsystems.SecurityAuth == 0 {
		return nil
	}
	return c.Target.Auth.Policy(c.HostNQN)
}

// provesKey reports whether the host had a key when it connected, which it proves or has proven.
func (c *Controller) provesKey() bool {
	return c.Proof.Authenticates || association.GeneratedPSK(c.Info) != ""
}

// Reauthenticates returns how long an authentication of the host is valid, 0: for ever. A host that
// has lost its key cannot authenticate, and one that had none when it connected does not.
func (c *Controller) Reauthenticates() int64 {
	p := c.Policy()
	if p == nil || c.Subsystem.Discovery || !c.provesKey() {
		return 0
	}
	return p.Reauthenticate.Nanoseconds()
}

// Concatenation returns the possible purpose of an exchange on a queue besides authentication.
func (t *Target) Concatenation(qid uint16, q *fabric.QueueInfo) auth.Concatenation {
	switch {
	case qid != 0 || q.Transport != nvme.TransportTCP:
	case q.TLS != nil:
		if q.TLS.Generated != "" {
			return auth.ReplacePSK
		}
	default:
		ports := t.Discovery.Load().Ports
		i := slices.IndexFunc(ports, func(p discovery.Port) bool { return p.ID == q.PortID })
		if i >= 0 && ports[i].TLS == fabric.TLSAllowed {
			return auth.NewPSK
		}
	}
	return auth.NoConcatenation
}

// Admission returns the refusal of a host that may not have a controller with an admin queue.
func (t *Target) Admission(s *Subsystem, a *subsystems.Applicant) association.Refusal {
	settings := s.Settings.Load()
	why := settings.Permits(a, t.Hosts)
	if why == nil {
		return association.Refusal{}
	}
	requires := ""
	if r := settings.Security; r != 0 {
		requires = r.String()
	}
	return association.NotPermitted(why, s.NQN, a.NQN, a.From, requires)
}

// applicant describes the host of the controller.
func (c *Controller) applicant() *subsystems.Applicant {
	return &subsystems.Applicant{
		NQN: c.HostNQN, Listener: *c.Port.Listener.Load(), From: c.Info.Remote.Addr(),
		Authenticated: c.provesKey() && c.Target.Auth.Policy(c.HostNQN) != nil,
		Encrypted:     c.Info.TLS != nil || c.MustConcatenate,
	}
}

// Admission returns the refusal of the controller.
func (c *Controller) Admission() association.Refusal {
	return c.Target.Admission(c.Subsystem, c.applicant())
}

// Permitted returns the reason why a controller may not exist, or not any longer; nil: it may.
func (c *Controller) Permitted() error {
	return c.Subsystem.Settings.Load().Permits(c.applicant(), c.Target.Hosts)
}

// MayChange reports whether a command that has waited may still change the namespace, which affects
// other hosts: its host may have lost the namespace or the subsystem meanwhile. Any goroutine.
func (c *Controller) MayChange(ns *namespaces.Namespace) bool {
	return c.Namespace(ns.ID.NSID) == ns && c.Permitted() == nil
}

// Report reports an event caused by the controller's host.
func (c *Controller) Report(k *event.Kind, args ...any) {
	all := []any{"subsystem", c.Subsystem.NQN, "cntlid", c.CNTLID, "host", c.HostNQN}
	all = append(all, args...)
	c.PeerLog().Report(k, all...)
}

// PeerLog returns the log for events caused by the controller's host.
func (c *Controller) PeerLog() ratelog.Peer {
	log := c.Target.HostLog
	if c.Subsystem.Discovery || !c.Proof.Proven.Load() {
		log = c.Target.StrangerLog
	}
	return log.Peer(c.Info.Remote)
}
