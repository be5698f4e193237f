package engine

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/internal/control"
)

// This file has plans of changes, as clients see them.

// PlanOfReload returns the changes that Reload would make.
func (e *Engine) PlanOfReload(context.Context) (control.Plan, error) {
	connections := e.connected()
	c, err := e.lockAndLoad()
	defer e.applying.Unlock()
	if err != nil {
		return plan(nil, nil, err)
	}
	changes, ps := e.plan(c)
	if ps.Failed() {
		return plan(nil, nil, ps)
	}
	p, err := plan(changes, e.affected(c, changes, connections), nil)
	for _, w := range ps {
		p.Warnings = append(p.Warnings, w.Error())
	}
	return p, err
}

// plan returns changes as clients see them, with affected hosts unless affected is nil.
func plan(changes []config.Change, affected [][]control.Affected, err error) (control.Plan, error) {
	p := control.Plan{Changes: make([]control.Change, len(changes))}
	for i, c := range changes {
		p.Changes[i] = control.Change{Text: c.String(), NeedsRestart: c.Restart()}
		if affected != nil {
			p.Changes[i].Affected = affected[i]
		}
	}
	return p, ForClients(err)
}

// ForClients gives a client the places and the hints of problems with the configuration.
func ForClients(err error) error {
	list := problemsOf(err)
	if !slices.ContainsFunc(list, func(p config.Problem) bool { return p.Place != "" }) {
		return err
	}
	all := make([]control.Problem, len(list))
	for i, p := range list {
		what := p.What
		if p.Path != "" {
			what = p.Path + ": " + what
		}
		all[i] = *control.NewProblem(http.StatusUnprocessableEntity, what, p.Hint)
		all[i].Place = p.Place
	}
	first := &all[0]
	first.More = all[1:]
	return first
}

// problemsOf lists the errors that were joined to err. An error without a place is only text.
func problemsOf(err error) (list config.Problems) {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			list = append(list, problemsOf(e)...)
		}
		return list
	}
	if ps, ok := errors.AsType[config.Problems](err); ok {
		return slices.DeleteFunc(slices.Clone(ps), func(p config.Problem) bool { return p.Warning })
	}
	if p, ok := errors.AsType[config.Problem](err); ok {
		return config.Problems{p}
	}
	return config.Problems{{What: err.Error()}}
}

// TryPlan returns the changes that Reload would make. It delays no change, not even one that
// closes the page, which waits for it. Programs that print keys end with ctx.
func (e *Engine) TryPlan(ctx context.Context) (control.Plan, error) {
	c, err := e.Load(lang.Within(ctx))
	if err != nil {
		return plan(nil, nil, err)
	}
	release, ok := e.TryHold()
	if !ok {
		return control.Plan{}, control.ErrBusy
	}
	defer release()
	changes, ps := e.plan(c)
	if ps.Failed() {
		return plan(nil, nil, ps)
	}
	return plan(changes, nil, nil)
}
