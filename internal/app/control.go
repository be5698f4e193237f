package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// startControl serves the control interface if a socket is configured. A target that chooses the
// socket itself also runs without it.
func (s *Server) startControl() error {
	c := s.current()
	at := control.Config{
		Socket: controlSocket(c, s.opts.ControlSocket),
		Mode:   c.Control.Mode, Group: c.Control.Group,
		TLS: control.TLS{
			Listen:       c.Control.Listen,
			Certificates: check.ControlCertificates(c),
		},
		Roles: s.roles.Load,
		Refused: func(k *event.Kind, remote netip.AddrPort, args []any) {
			s.peers.Peer(remote).Report(k, args...)
		},
	}
	auto := c.Control.Socket == config.AutoSocket
	if at.Socket == "" && !at.TLS.Listen.IsValid() {
		return nil
	}
	release := s.engine.Hold() // an early client may reload
	var served *control.Server
	err := s.patiently(func() (err error) {
		served, err = control.Listen(at, s.controlSource(), s.log)
		return err
	})
	if err == nil {
		s.control.Store(served)
	}
	release()
	file, certificate := errors.AsType[*httpd.FileError](err)
	op, _ := errors.AsType[*net.OpError](err)
	switch {
	case certificate:
		return check.CertificateProblem(c, c, file)
	case op != nil && strings.HasPrefix(op.Net, "tcp"):
		return c.Problem("control.listen", err.Error(), "Is it an address of this machine?")
	case err != nil && auto && !at.TLS.Listen.IsValid():
		s.log.Warn("the control interface is not served", "err", err)
		return nil
	case err != nil:
		return c.Problem("control.socket", err.Error(), "")
	}
	s.log.Info("the control interface is served", "path", at.Socket)
	if addr := served.Addr(); addr.IsValid() {
		s.log.Info("the control interface is served on TCP", "local", addr)
	}
	return nil
}

// controlSocket returns the control socket: automatic if the configuration does not name it.
func controlSocket(c *config.Config, automatic string) string {
	if c.Control.Socket == config.AutoSocket {
		return automatic
	}
	return c.Control.Socket
}

// source has the facts for clients and for the page.
func (s *Server) source() observed.Source {
	return observed.Source{
		Status: s.status, Listeners: s.listeners.States, Subsystems: s.subsystemStates,
		Namespaces: s.namespaceStates, Hosts: s.target.Controllers, Connections: s.connections,
		Latency: s.latencyStates(latencyState), Reactors: s.workers.States, Disks: s.disks,
		Refusals: s.recorder.Refusals, Events: s.recorder.Events, PortCounters: s.portCounters,
		Groups: s.groups.states,
	}
}

func (s *Server) controlSource() control.Source {
	return control.Source{
		Source: s.source(), Trace: s.target.Trace,
		Plan: s.engine.PlanOfReload, Reload: s.engine.ReloadFor,
		Objects: s.engine.Objects, Configured: s.engine.Object, Referrals: s.engine.Referrals,
		Put: s.put, Delete: s.remove, Create: s.create,
		Disconnect: s.target.DisconnectHost, Drain: s.engine.Drain, ANA: s.listeners.ANA,
		SetANA:     s.listeners.SetANA,
		DrainGroup: s.drainGroup, Forget: s.groups.forget, Fence: s.fence,
		GroupVersions: s.groups.versions, ChangeGroup: s.changeGroup,
		Resize: s.engine.Resize, Restart: s.opts.Restart,
		Pause: func(id control.NamespaceID, pause bool) error {
			if pause {
				return s.target.PauseNamespace(id.Subsystem, id.NSID)
			}
			return s.target.ResumeNamespace(id.Subsystem, id.NSID)
		},
	}
}

func (s *Server) status() observed.Status {
	c, up := s.current(), s.target.Ports()
	_, waiting := s.listeners.Addrs()
	return observed.Status{
		Version: s.opts.Version, PID: os.Getpid(), Started: s.started,
		UptimeSeconds: time.Since(s.started).Seconds(), Listeners: len(up),
		WaitingListeners: len(waiting), DrainedListeners: s.listeners.CountDrained(),
		RDMAStacks: s.listeners.RDMAStacks(), Subsystems: len(c.Subsystems),
		Namespaces: len(s.target.Stats()), PendingNamespaces: len(s.engine.Volumes.Pending()),
		Pending: s.pending(), Controllers: len(s.target.Controllers()),
		Connections: s.target.Sessions(), Shares: s.shares(),
	}
}

// mostPending is how many pending namespaces the status has.
const mostPending = 16

// pending describes the first of the pending namespaces.
func (s *Server) pending() (list []observed.PendingNamespace) {
	pending := s.engine.Volumes.Pending()
	for _, n := range pending[:min(len(pending), mostPending)] {
		list = append(list, observed.PendingNamespace{
			Subsystem: n.NQN, NSID: n.NSID, Reason: s.engine.Volumes.Reason(n.Name()),
		})
	}
	return list
}

// taken returns the fraction of a share in use, of the resource that is used most.
func taken(s *observed.Share) float64 {
	part := func(n, most int64) float64 { return float64(n) / float64(max(most, 1)) }
	return max(part(s.Connections, s.MostConnections), part(s.QueueMemory, s.MostQueueMemory),
		part(s.DataMemory, s.MostDataMemory))
}

// mostShares is the number of shares of each transport in the status.
const mostShares = 16

// shares lists hosts and networks, nearest to their share first.
func (s *Server) shares() (list []observed.Share) {
	ctx, cancel := context.WithTimeout(context.Background(), s.usageTimeout)
	defer cancel()
	data, _ := s.target.DataShares(ctx) // left out if a reactor does not answer
	for name, t := range s.transports {
		var of []observed.Share
		for _, u := range t.Shares() {
			d := data[u.Owner]
			out := observed.Share{
				Transport: name.String(), Host: u.NQN, Proven: u.Proven,
				Connections: u.Connections, MostConnections: u.MostConnections,
				QueueMemory: u.Memory, MostQueueMemory: u.MostMemory,
				DataMemory: int64(d.Used), MostDataMemory: int64(d.Most),
			}
			if u.NQN == "" {
				out.Network = subnet.Text(u.Network)
			}
			of = append(of, out)
		}
		slices.SortFunc(of, func(a, b observed.Share) int {
			return cmp.Or(cmp.Compare(taken(&b), taken(&a)), strings.Compare(a.Host, b.Host),
				strings.Compare(a.Network, b.Network))
		})
		list = append(list, of[:min(len(of), mostShares)]...)
	}
	slices.SortStableFunc(list, func(a, b observed.Share) int {
		return strings.Compare(a.Transport, b.Transport)
	})
	return list
}

func (s *Server) subsystemStates() (list []observed.Subsystem) {
	served, pending, hosts := map[string]int{}, map[string]int{}, map[string]int{}
	for _, n := range s.target.Stats() {
		served[n.Subsystem]++
	}
	for _, n := range s.engine.Volumes.Pending() {
		pending[n.NQN]++
	}
	for _, c := range s.target.Controllers() {
		hosts[c.Subsystem]++
	}
	limits := map[qos.Object]*observed.Limits{}
	for _, l := range s.target.Limits() {
		limits[l.Object] = &l.Limits
	}
	for _, sub := range s.current().Subsystems {
		sub.SetDefaults()
		list = append(list, observed.Subsystem{
			NQN: sub.NQN, AllowAnyHost: sub.AllowAnyHost, Hosts: append([]string{}, sub.Hosts...),
			Security: sub.Security.String(), Serial: sub.Serial, Model: sub.Model,
			Namespaces:        served[sub.NQN],
			PendingNamespaces: pending[sub.NQN], Controllers: hosts[sub.NQN],
			Limits: limits[qos.Object{SubNQN: sub.NQN}],
		})
	}
	return list
}

// namespaceStates lists the namespaces for clients, without error counters that are 0.
func (s *Server) namespaceStates() []observed.Namespace {
	list := s.namespaces()
	for i := range list {
		maps.DeleteFunc(list[i].Errors, func(_ string, n uint64) bool { return n == 0 })
	}
	return list
}

// namespaces lists the namespaces in the order of the configuration.
func (s *Server) namespaces() (list []observed.Namespace) {
	served := map[control.NamespaceID]observed.Namespace{}
	for _, n := range s.target.Stats() {
		served[control.NamespaceID{Subsystem: n.Subsystem, NSID: n.NSID}] = n
	}
	for _, n := range volumes.All(s.current()) {
		if now := s.engine.Volumes.Get(n.Name()); now != nil {
			n = now // its storage may wait for a restart
		}
		out, ok := served[control.NamespaceID{Subsystem: n.NQN, NSID: n.NSID}]
		if !ok {
			out = observed.Namespace{Subsystem: n.NQN, NSID: n.NSID, State: "pending"}
		}
		if out.State == "not ready" && s.groups.waits(n.Namespace) {
			out.State = "standby"
		}
		out.Backend, out.Path, out.Reason = n.Backend, n.Place(), s.engine.Volumes.Reason(n.Name())
		out.ConfiguredBytes = n.ConfiguredSize()
		list = append(list, out)
	}
	return list
}

func (s *Server) connections(ctx context.Context) ([]observed.Connection, error) {
	list, err := s.target.Connections(ctx)
	if err != nil {
		return nil, fmt.Errorf("a reactor does not answer: %w", err)
	}
	return list, nil
}
