package app

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/backend/rbd"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/group"
	grouprados "github.com/nvmf-target/nvmf-target/internal/group/rados"
	"github.com/nvmf-target/nvmf-target/internal/listeners"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/rados"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// groups has the ANA groups that this target shares with other gateways.
type groups struct {
	pool      string // with their state
	kept      *promises
	told      *notifications
	gates     map[uint32]*rbd.Gate
	mu        sync.Mutex // guards the list, away and fsid
	list      map[uint32]*group.Group
	away      map[uint32]bool      // groups that are given away by hand
	fsid      string               // of the cluster with their state; "": not known yet
	described map[uint32]described // for countHosts, as offers
	offers    offered
	// stopCounting ends the count of hosts; nil if it has not begun.
	stopCounting func()
	balance      *group.Balance
	shared       *group.Shared // nil: there is no configuration of the group
	cntlids      cntlids
}

// offered has the ports of this gateway as they were found at a generation of the discovery log.
type offered struct {
	ports      []group.Port
	generation uint64
	at         time.Time
}

// described has the published facts of a group, of this gateway and of others.
type described struct {
	config   *config.Config // they are of
	sizes    string         // of the images, here
	hosts    string         // a hash of the ones that are connected here
	holder   string         // the same at the gateway that serves them
	away     bool           // the group is given away here
	ports    []group.Port   // of this gateway
	at       time.Time
	notified [2]uint64 // the numbers of the first and the last notification of this gateway

	version    uint64 // of the record with the following
	elsewhere  []group.Port
	generation uint64
}

// countEvery is the time between two counts of hosts.
const countEvery = time.Second

// newGroups returns the groups of the configuration, which are not running.
func newGroups(c *config.Group) *groups {
	g := &groups{
		pool: c.Pool, gates: map[uint32]*rbd.Gate{}, list: map[uint32]*group.Group{},
		away: map[uint32]bool{}, described: map[uint32]described{},
		balance: group.NewBalance(c.Name, c.BalanceAfter), told: newNotifications(),
	}
	for _, id := range c.ANAGroups {
		g.gates[id] = &rbd.Gate{}
	}
	g.kept = newPromises(g, c)
	return g
}

// shared gives hosts access to the images of a group.
type shared struct {
	id        uint32
	name      string // of the group, for its images
	gateway   string
	gate      *rbd.Gate
	listeners *listeners.Listeners
}

// Open implements group.Images.
func (s *shared) Open(_ context.Context, e group.Engine) error {
	instance, _ := e.Instance()
	cluster := e.(*grouprados.Engine).Cluster()
	err := s.gate.Open(&rbd.Holder{
		Cluster: cluster, Group: s.name, Instance: s.gateway + "/" + instance,
	})
	if err != nil && cluster.Retired() {
		err = fmt.Errorf("%w: %w", group.ErrFenced, err)
	}
	return err
}

// Close implements group.Images.
func (s *shared) Close() { s.gate.Close() }

// Access implements group.Images.
func (s *shared) Access(a group.Access) {
	if a == group.Inaccessible { // without a drain the group is lost
		s.gate.Lose()
	}
	s.listeners.ShareANA(s.id, map[group.Access]nvme.ANAState{
		group.Inaccessible: nvme.ANAStateInaccessible,
		group.Change:       nvme.ANAStateChange,
		group.Optimized:    nvme.ANAStateOptimized,
	}[a])
}

// hide makes the groups inaccessible, before hosts can connect.
func (g *groups) hide(ls *listeners.Listeners) {
	for id := range g.gates {
		ls.ShareANA(id, nvme.ANAStateInaccessible)
	}
}

// startGroups starts the groups.
func (s *Server) startGroups() error {
	c := &s.atStart.Group
	place := func(id uint32, shared grouprados.Shared) *grouprados.Config {
		return &grouprados.Config{
			Access: rados.Access{Conf: c.Conf, User: c.User, Keyring: c.Keyring},
			Pool:   c.Pool, Group: id, Shared: shared,
		}
	}
	connect := func(id uint32, shared grouprados.Shared) func() (group.Engine, error) {
		return func() (group.Engine, error) {
			e, err := grouprados.Connect(*place(id, shared))
			if err != nil {
				return nil, err // and not a nil engine
			}
			s.groups.mu.Lock()
			defer s.groups.mu.Unlock()
			s.groups.fsid = e.Cluster().FSID()
			return e, nil
		}
	}
	for id, gate := range s.groups.gates {
		cfg := group.Default(c.Name, s.home(), c.Lease)
		cfg.Prefers = slices.Contains(c.Prefers, id)
		s.groups.add(id, group.Start(cfg, connect(id, ""), &shared{
			id: id, name: c.Pool + "/" + place(id, "").Object(), gateway: c.Name, gate: gate,
			listeners: s.listeners,
		}, s.log.With("ana_group", id)))
	}
	if len(s.groups.list) > 0 {
		s.groups.stopCounting = watch(countEvery, s.countHosts)
	}
	return s.startSharing(connect)
}

// home identifies the state directory, which only one process uses at a time; "": there is none.
func (s *Server) home() string {
	machine, err := os.ReadFile("/etc/machine-id")
	dir, err2 := filepath.Abs(s.state.Dir())
	if s.state.Dir() == "" || errors.Join(err, err2) != nil {
		return ""
	}
	return strings.TrimSpace(string(machine)) + dir
}

// countHosts tells the groups of the hosts that are connected.
func (s *Server) countHosts() {
	connected := hostsOf(s.target.Controllers())
	used, sizes := map[uint32]map[string]string{}, map[uint32]hash.Hash64{}
	hosts := map[uint32]string{} // a hash of the ones that use a group, "" for none
	for _, n := range s.target.Stats() {
		if sizes[n.ANAGroup] == nil {
			used[n.ANAGroup], sizes[n.ANAGroup] = map[string]string{}, fnv.New64a()
		}
		if nqn := n.Subsystem; connected[nqn] != "" {
			used[n.ANAGroup][nqn] = connected[nqn]
		}
		_, _ = fmt.Fprintln(sizes[n.ANAGroup], n.Subsystem, n.NSID, n.SizeBytes)
	}
	c, generation, changed := s.current(), s.target.Generation(), false
	offers := &s.groups.offers
	if generation != offers.generation || time.Since(offers.at) >= DescribeEvery {
		*offers = offered{s.offered(), generation, time.Now()}
	}
	for id, g := range s.groups.list {
		if len(used[id]) > 0 {
			hosts[id] = hashed(used[id])
		}
		g.Hosts(hosts[id] != "")
		status, last := g.Status(), s.groups.described[id]
		now := last
		now.config, now.sizes, now.ports, now.holder = c, "", offers.ports, status.Sizes()
		now.away = status.Drained
		if h := sizes[id]; h != nil {
			now.sizes = fmt.Sprintf("%x", h.Sum64())
		}
		changed = changed || status.Version != last.version || last.config != c
		if status.Version != last.version {
			now.version = status.Version
			now.elsewhere, now.generation = status.Elsewhere(s.atStart.Group.Name)
			s.groups.told.receive(id, s.atStart.Group.Name, &status, s.groups.kept.pass)
		}
		recent := s.groups.told.recent(id)
		if now.notified = [2]uint64{}; len(recent) > 0 {
			now.notified = [2]uint64{recent[0].Number, recent[len(recent)-1].Number}
		}
		late := (generation > now.generation || hosts[id] != last.hosts) &&
			time.Since(last.at) >= DescribeEvery
		if last.config != c || last.sizes != now.sizes || late || last.away != now.away ||
			last.notified != now.notified || !slices.Equal(last.ports, now.ports) {
			f := s.facts(c, id)
			f.Sizes, f.Ports, f.Generation, f.Drained = now.sizes, now.ports, generation, now.away
			f.Connected, f.Prefers = hosts[id], slices.Contains(s.atStart.Group.Prefers, id)
			f.Notifications, f.Process = recent, s.groups.told.process
			g.Describe(f)
			now.at, now.hosts = time.Now(), hosts[id]
		}
		if now.holder != last.holder {
			s.groups.gates[id].Describe()
		}
		s.groups.described[id] = now
	}
	if changed {
		s.listGateways(c)
	}
	s.groups.balance.Look(s.groups.list, hosts)
}

// hostsOf returns a hash of the hosts of each subsystem.
func hostsOf(controllers []observed.Host) map[string]string {
	lists, hashes := map[string][]string{}, map[string]string{}
	for i := range controllers {
		c := &controllers[i]
		lists[c.Subsystem] = append(lists[c.Subsystem], c.NQN)
	}
	for nqn, list := range lists {
		slices.Sort(list)
		hashes[nqn] = hashed(slices.Compact(list))
	}
	return hashes
}

// hashed returns a hash of a list or a map of texts. Hosts choose some, so it resists collisions.
func hashed(texts any) string {
	return fmt.Sprintf("%.16x", sha256.Sum256(fmt.Appendf(nil, "%q", texts)))
}

// facts returns the settings of a group for other gateways. Identifiers that are not configured
// follow from others.
func (s *Server) facts(c *config.Config, id uint32) *group.Facts {
	f := &group.Facts{
		Same: map[string]string{
			"version": s.opts.Version, "lease": s.atStart.Group.Lease.String(),
			"balance_after": s.atStart.Group.BalanceAfter.String(),
		},
		Ranges: map[string][2]uint16{},
	}
	for i := range c.Listeners {
		if l := &c.Listeners[i]; l.Address.IP.IsGlobalUnicast() {
			f.Own = append(f.Own, "listener "+l.Name)
		}
	}
	for _, n := range volumes.All(c) {
		if n.ANAGroup == id {
			f.Same[fmt.Sprintf("namespace %d of %s", n.NSID, n.NQN)] = n.Facts()
			i := slices.IndexFunc(c.Subsystems, func(s config.Subsystem) bool {
				return s.NQN == n.NQN
			})
			sub := c.Subsystems[i].Config
			sub.SetDefaults()
			f.Same["subsystem "+n.NQN] = fmt.Sprintf("serial %s, model %s, security %v, any "+
				"host %v, hosts %q", sub.Serial, sub.Model, sub.Security, sub.AllowAnyHost,
				slices.Sorted(slices.Values(sub.Hosts)))
			f.Ranges["controller IDs of "+n.NQN] = [2]uint16{sub.CNTLIDMin, sub.CNTLIDMax}
		}
	}
	return f
}

// add adds a group that has just been started.
func (g *groups) add(id uint32, one *group.Group) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list[id] = one
	if g.away[id] { // before the start
		one.Drain(true)
	}
}

// drain gives a group away, or lets this target take it again, also before it is started.
func (g *groups) drain(id uint32, away bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.away[id] = away
	if one := g.list[id]; one != nil {
		one.Drain(away)
	}
}

// changePatience is the time for changes of records.
const changePatience = 15 * time.Second

// forget removes a gateway from the records of all groups.
func (g *groups) forget(gateway string) error {
	g.mu.Lock()
	list := maps.Clone(g.list)
	g.mu.Unlock()
	known := func(in group.Instance) bool { return in.Gateway == gateway }
	found := false
	for id, one := range list {
		s := one.Status()
		if s.Holder == gateway {
			return control.NewProblem(http.StatusConflict, fmt.Sprintf("gateway %q holds group %d",
				gateway, id), "Wait until another one has taken the group over.")
		}
		found = found || slices.ContainsFunc(s.Instances, known) ||
			slices.ContainsFunc(s.Fenced, known)
	}
	if !found {
		return control.NotThere(fmt.Sprintf("gateway %q", gateway), "/v1/groups")
	}
	return ask(list, func(ctx context.Context, _ uint32, one *group.Group) error {
		return one.Forget(ctx, gateway)
	})
}

// ask calls a function for all groups of a list at once, and waits for all calls.
func ask(list map[uint32]*group.Group,
	do func(ctx context.Context, id uint32, one *group.Group) error,
) error {
	ctx, cancel := context.WithTimeout(context.Background(), changePatience)
	defer cancel()
	errs := make(chan error, len(list))
	for id, one := range list {
		go func() {
			err := do(ctx, id, one)
			if err != nil {
				err = fmt.Errorf("group %d: %w", id, err)
			}
			errs <- err
		}()
	}
	var all []error
	for range list {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// fence takes over the groups that a gateway holds.
func (s *Server) fence(gateway string) error {
	s.groups.mu.Lock()
	list := maps.Clone(s.groups.list)
	s.groups.mu.Unlock()
	refused := func(hint, format string, args ...any) error {
		return control.NewProblem(http.StatusConflict, fmt.Sprintf(format, args...), hint)
	}
	if gateway == s.atStart.Group.Name && len(list) > 0 {
		return refused("Ask another one, or use drain.", "gateway %q is this one", gateway)
	}
	for id, one := range list {
		switch status := one.Status(); {
		case status.Holder != gateway:
			delete(list, id)
		case status.Drained:
			return refused("Ask another gateway, or let this one take it: group drain --undo.",
				"group %d was given away here", id)
		}
	}
	if len(list) == 0 {
		return refused("Only a gateway that holds a group writes to images.",
			"gateway %q holds no group, as far as this gateway knows", gateway)
	}
	s.log.Warn("a gateway is fenced by hand", "gateway", gateway)
	return ask(list, func(ctx context.Context, _ uint32, one *group.Group) error {
		return one.Fence(ctx, gateway)
	})
}

// drainGroup gives away the groups that another gateway can take, or lets this one take them again.
func (s *Server) drainGroup(which control.GroupDrain) error {
	own := s.atStart.Group.Name
	if which.Gateway != "" && which.Gateway != own {
		return control.NewProblem(http.StatusConflict, fmt.Sprintf("this is gateway %q, which "+
			"cannot drain %q", own, which.Gateway), "Ask that gateway.")
	}
	s.groups.mu.Lock()
	list := maps.Clone(s.groups.list)
	s.groups.mu.Unlock()
	maps.DeleteFunc(list, func(id uint32, _ *group.Group) bool {
		return which.Group != 0 && which.Group != id
	})
	if len(list) == 0 {
		return control.NotThere(fmt.Sprintf("shared group %d", which.Group), "/v1/groups")
	}
	if err := ask(list, func(ctx context.Context, id uint32, one *group.Group) error {
		if which.Undo {
			return nil
		}
		has, err := one.HasHeir(ctx)
		if err != nil {
			return fmt.Errorf("it is not known whether another gateway can take it: %w", err)
		}
		if !has {
			err = control.NewProblem(http.StatusConflict, fmt.Sprintf("no other gateway can take "+
				"group %d", id), "Start one that answers, or let a drained one take it: group "+
				"drain --undo. With ana set, hosts wait.")
		}
		return err
	}); err != nil {
		return err
	}
	state := map[bool]string{false: "inaccessible", true: "configured"}[which.Undo]
	for id := range list {
		s.log.Info("a shared ANA group is set by hand", "ana_group", id, "ana_state", state)
		s.groups.drain(id, !which.Undo)
	}
	return nil
}

// waits reports whether the image of a namespace is closed because another gateway may serve its
// group, and this one could take it.
func (g *groups) waits(n *config.Namespace) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gates[n.ANAGroup] == nil {
		return false
	}
	one := g.list[n.ANAGroup]
	if one == nil {
		return true
	}
	s := one.Status()
	return s.Phase != "serving" && s.Problem == ""
}

// states lists the groups by number.
func (g *groups) states() (out []observed.Group) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var version uint64
	var problem error
	if g.shared != nil {
		version, problem = g.shared.State()
	}
	for _, id := range slices.Sorted(maps.Keys(g.list)) {
		s := g.list[id].Status()
		switch {
		case errors.Is(problem, group.ErrUnread): // and no difference
			s.Problem = cmp.Or(s.Problem, problem.Error())
		case problem != nil:
			s.Differences = append([]string{problem.Error()}, s.Differences...)
		}
		if err := g.kept.problem(id); err != nil && s.Phase == "serving" {
			s.Problem = cmp.Or(s.Problem, err.Error())
		}
		out = append(out, observed.Group{
			Cluster: g.fsid, Pool: g.pool, ANAGroup: id, State: s.Phase, Holder: s.Holder,
			HolderSeconds: s.HeldFor.Seconds(), LeaseSeconds: s.Left.Seconds(),
			Drained: s.Drained, Hosts: s.Hosts, Reason: s.Reason, Problem: s.Problem,
			Differences: s.Differences,
			Gateways:    gateways(s.Instances), Fenced: gateways(s.Fenced), Configuration: version,
			FenceSeconds: s.FencedFor.Seconds(), CheckSeconds: s.Checked.Seconds(),
		})
	}
	return out
}

func gateways(list []group.Instance) []observed.Gateway {
	out := []observed.Gateway{}
	for i := range list {
		in := &list[i]
		out = append(out, observed.Gateway{
			Name: in.Gateway, Instance: in.ID, Addresses: in.Addrs, Hosts: in.Hosts,
		})
	}
	return out
}

// groupPatience bounds the time that a stop takes to give groups away.
const groupPatience = 5 * time.Second

// stop gives all groups away, if they have begun.
func (g *groups) stop() {
	if g.stopCounting != nil {
		g.stopCounting()
	}
	ctx, cancel := context.WithTimeout(context.Background(), groupPatience)
	defer cancel()
	var all sync.WaitGroup
	if g.shared != nil {
		all.Go(func() { g.shared.Stop(ctx) })
	}
	for _, one := range g.list {
		all.Go(func() { one.Stop(ctx) })
	}
	all.Wait()
}
