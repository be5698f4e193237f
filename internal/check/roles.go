package check

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/flight"
)

// Roles returns the roles of a configuration, nil for none. Names unknown to this machine cause
// warnings and get no role; the target runs without them.
func Roles(c *config.Config) (r *control.Roles, ps config.Problems) {
	if len(c.Control.Roles) == 0 {
		return nil, nil
	}
	r = &control.Roles{
		Subjects: map[string]control.Role{}, Users: map[uint32]control.Role{},
		Groups: map[uint32]control.Role{},
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), lookupTime, errLookup)
	defer cancel()
	for i, given := range c.Control.Roles {
		role := control.ParseRole(given.Role)
		if given.Subject != "" {
			r.Subjects[given.Subject] = role
			continue
		}
		ids, find := r.Users, control.LookupUser
		if given.Group != "" {
			ids, find = r.Groups, control.LookupGroup
		}
		id, err := within(ctx, func() (int, error) {
			return find(cmp.Or(given.User, given.Group))
		})
		if err != nil {
			ps = append(ps, c.Warning(fmt.Sprintf("control.roles[%d]", i), err.Error(),
				"Nobody has this role until it exists and the configuration is reloaded."))
			continue
		}
		ids[uint32(id)] = max(ids[uint32(id)], role)
	}
	return r, ps
}

// lookupTime bounds the look-up of users and groups, for which starts and reloads wait.
const lookupTime = 5 * time.Second

var errLookup = fmt.Errorf("users and groups were not looked up within %v", lookupTime)

// within returns the result of find, unless ctx ends first. In that case find continues by itself.
func within(ctx context.Context, find func() (int, error)) (int, error) {
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	look := flight.Question[int]{Ask: find}
	return look.Answer(ctx)
}
