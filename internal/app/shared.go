package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/engine"
	"github.com/nvmf-target/nvmf-target/internal/group"
	"github.com/nvmf-target/nvmf-target/internal/group/rados"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// This file has the configuration that gateways share.

// cntlids finds the controller IDs of this gateway.
type cntlids struct {
	mu      sync.Mutex
	connect func() (group.Engine, error) // to the numbers of gateways
	group   *config.Group                // with the controller IDs; nil: they are not known yet
}

// numberPatience is the time that the cluster has to answer.
const numberPatience = 10 * time.Second

// get returns the settings of this gateway with its controller IDs. If the IDs are not configured,
// it asks the cluster once.
func (r *cntlids) get(c config.Group) (*config.Group, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.group == nil && c.CNTLIDMin == 0 {
		e, err := r.connect()
		if err != nil {
			return nil, err
		}
		defer e.Close()
		ctx, cancel := context.WithTimeout(context.Background(), numberPatience)
		defer cancel()
		n, err := group.Number(ctx, e, c.Name)
		if err != nil {
			return nil, fmt.Errorf("%w. Set group.cntlid_min and cntlid_max at all gateways to do "+
				"without", err)
		}
		const each = int(nvme.CNTLIDMax) / group.MaxNumbers
		c.CNTLIDMin, c.CNTLIDMax = uint16(n*each+subsystems.MinCNTLID), uint16((n+1)*each)
	}
	if r.group == nil {
		r.group = &c
	}
	return r.group, nil
}

// startSharing follows the configuration of the group, if this gateway shares one.
func (s *Server) startSharing(connect func(uint32, rados.Shared) func() (group.Engine, error),
) error {
	c := &s.atStart.Group
	if !c.SharesConfiguration {
		return nil
	}
	s.groups.cntlids.connect = connect(0, rados.Controllers)
	file, err := os.ReadFile(config.GroupFile.File(s.atStart.Managed))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	shared := group.Share(c.Name, connect(0, rados.Configuration), config.GroupVersion(file),
		func(v *group.Version) error {
			_, err := s.applyVersion(v, false, "gateway", v.Gateway)
			return err
		}, s.log)
	s.groups.mu.Lock()
	defer s.groups.mu.Unlock()
	s.groups.shared = shared
	return nil
}

// applyVersion applies a version of the configuration, or only plans that.
func (s *Server) applyVersion(v *group.Version, dry bool, by ...any) (control.Plan, error) {
	own, err := s.groups.cntlids.get(s.atStart.Group)
	if err != nil {
		return control.Plan{}, control.NewProblem(http.StatusServiceUnavailable,
			"this gateway has no controller IDs: "+err.Error(), "")
	}
	file, err := own.File(v.Text, v.ID())
	if err != nil {
		return control.Plan{}, engine.ForClients(err)
	}
	return s.engine.ApplyGroup(file, dry, by...)
}

// sharing returns the configuration of the group, or an error if this gateway shares none.
func (g *groups) sharing() (*group.Shared, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shared == nil {
		return nil, control.NewProblem(http.StatusConflict,
			"this target does not share its configuration with other gateways",
			"Set group.shares_configuration, and restart it.")
	}
	return g.shared, nil
}

// versions lists the versions of the configuration.
func (g *groups) versions(ctx context.Context) (out []control.GroupVersion, err error) {
	shared, err := g.sharing()
	if err != nil {
		return nil, err
	}
	list, err := shared.Versions(ctx)
	applied, problem := shared.State()
	if errors.Is(err, context.DeadlineExceeded) && problem != nil {
		err = control.NewProblem(http.StatusServiceUnavailable, problem.Error(), "")
	}
	for i := range list {
		v := &list[i]
		out = append(out, control.GroupVersion{
			Version: v.Number, Applied: v.Number == applied, Time: v.Time, Gateway: v.Gateway,
			Of: v.Of, Configuration: v.Text,
		})
	}
	return out, err
}

// changeGroup stores another version of the configuration, if this gateway can apply it, or only
// plans that.
func (s *Server) changeGroup(ctx context.Context, change control.GroupChange) (plan control.Plan,
	err error,
) {
	shared, err := s.groups.sharing()
	if err != nil {
		return plan, err
	}
	next := group.Version{Text: change.Configuration, Of: change.Rollback}
	if change.Rollback != 0 {
		list, err := shared.Versions(ctx)
		i := slices.IndexFunc(list, func(v group.Version) bool {
			return v.Number == change.Rollback
		})
		if err == nil && i < 0 {
			err = control.NotThere(fmt.Sprintf("version %d", change.Rollback),
				"/v1/groups/configuration")
		}
		if err != nil {
			return plan, err
		}
		next.Text = list[i].Text
	}
	plan, err = s.store(ctx, shared, next, change.Base, change.DryRun)
	if errors.Is(err, group.ErrConflict) {
		err = control.NewProblem(http.StatusConflict, err.Error(),
			"GET /v1/groups/configuration has it: repeat the change from there.")
	}
	return plan, err
}

// store stores a version, if this gateway can apply it, or only plans that.
func (s *Server) store(ctx context.Context, shared *group.Shared, next group.Version, base uint64,
	dry bool,
) (plan control.Plan, err error) {
	next.Text = s.atStart.Group.Seal(next.Text)
	plan, err = s.applyVersion(&next, true)
	if err != nil || dry {
		return plan, err
	}
	number, err := shared.Put(ctx, next.Text, base, next.Of)
	switch {
	case err != nil && number != 0:
		err = control.NewProblem(http.StatusConflict, "it was stored for all gateways, but "+
			err.Error(), "Repeat an earlier version with \"nvmf-target group rollback\".")
	case err == nil:
		s.log.Info("a version of the configuration of the group was stored",
			append(control.By(ctx), "changes", len(plan.Changes))...)
	}
	return plan, err
}

// edit changes an object that gateways share, or only plans that. It repeats the change if another
// version was stored meanwhile.
func (s *Server) edit(ctx context.Context, shared *group.Shared, dry bool,
	change func(config.GroupText) (config.GroupText, error),
) (plan control.Plan, err error) {
	for range 5 {
		behind := shared.Look(ctx)
		applied, _ := shared.State()
		list, err := shared.Versions(ctx)
		if err != nil {
			return plan, err
		}
		list = append(list, group.Version{Text: "{}"})
		text, err := change(config.GroupText(list[0].Text))
		next := group.Version{Text: s.atStart.Group.Seal(string(text))}
		same := s.atStart.Group.Same(next.Text, list[0].Text)
		if err == nil && behind != nil && (same || list[0].Number < applied) {
			err = control.NewProblem(http.StatusConflict, behind.Error(),
				"Store a whole one with \"nvmf-target apply FILE --group\" or \"group rollback\".")
		}
		if err != nil || same {
			return plan, engine.ForClients(err)
		}
		plan, err = s.store(ctx, shared, next, list[0].Number, dry)
		if !errors.Is(err, group.ErrConflict) {
			return plan, err
		}
	}
	return plan, control.NewProblem(http.StatusConflict, "other changes come first",
		"Repeat the request.")
}

// sharedBy returns the configuration of the group if gateways share the object, else nil.
func (s *Server) sharedBy(ctx context.Context, o control.Object) *group.Shared {
	shared, err := s.groups.sharing()
	if err != nil || o.Subsystem+o.Host == "" {
		return nil
	}
	ours, known := s.engine.Shared(o)
	if !known {
		_ = shared.Look(ctx) // this gateway may be behind
		ours, _ = s.engine.Shared(o)
	}
	if !ours {
		return nil
	}
	return shared
}

// put, remove and create change objects of this target, or for all gateways.
func (s *Server) put(ctx context.Context, o control.Object, body []byte, dry bool) (control.Plan,
	error,
) {
	shared := s.sharedBy(ctx, o)
	if shared == nil {
		return s.engine.Put(ctx, o, body, dry)
	}
	return s.edit(ctx, shared, dry, func(t config.GroupText) (config.GroupText, error) {
		return t.Put(config.Managed(o), body)
	})
}

func (s *Server) remove(ctx context.Context, o control.Object, recursive, dry bool) (control.Plan,
	error,
) {
	shared := s.sharedBy(ctx, o)
	if shared == nil {
		return s.engine.Delete(ctx, o, recursive, dry)
	}
	return s.edit(ctx, shared, dry, func(t config.GroupText) (config.GroupText, error) {
		next, err := t.Delete(config.Managed(o), recursive)
		if p, ok := errors.AsType[*control.Problem](engine.ForClients(err)); ok {
			err = control.NewProblem(http.StatusConflict, p.Detail, p.Hint)
		}
		return next, err
	})
}

func (s *Server) create(ctx context.Context, nqn string, body []byte) (control.NamespaceID, error) {
	o := control.Object{Subsystem: nqn}
	shared, id := s.sharedBy(ctx, o), engine.UUIDOf(body)
	if shared == nil || id == uuid.Nil {
		return s.engine.Create(ctx, nqn, body)
	}
	_, err := s.edit(ctx, shared, false, func(t config.GroupText) (config.GroupText, error) {
		o.NSID = t.FreeNSID(nqn, id)
		return t.Put(config.Managed(o), body)
	})
	return control.NamespaceID{Subsystem: nqn, NSID: o.NSID}, err
}
