package engine

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// This file shows clients the objects of the configuration.

// Objects lists the objects, with the objects of a subsystem after it.
func (e *Engine) Objects() (list []observed.Configured) {
	c := e.Current()
	add := func(o control.Object, format string, args ...any) {
		list = append(list, origin(c, config.Managed(o), fmt.Sprintf(format, args...)))
	}
	for i := range c.Listeners {
		m := listenerObject(c, &c.Listeners[i])
		add(control.Object{Listener: m.Listener}, "listeners[%d]", i)
	}
	for i := range c.Discovery.Referrals {
		add(control.Object{Referral: c.Discovery.Referrals[i].Name()}, "discovery.referrals[%d]", i)
	}
	for i := range c.Hosts {
		add(control.Object{Host: c.Hosts[i].NQN}, "hosts[%d]", i)
	}
	for i := range c.Subsystems {
		sub := &c.Subsystems[i]
		add(control.Object{Subsystem: sub.NQN}, "subsystems[%d]", i)
		for j, n := range sub.Namespaces {
			add(control.Object{Subsystem: sub.NQN, NSID: n.NSID}, "subsystems[%d].namespaces[%d]",
				i, j)
		}
		for j, h := range sub.Hosts {
			add(control.Object{Subsystem: sub.NQN, Host: h}, "subsystems[%d].hosts[%d]", i, j)
		}
	}
	return list
}

// Object returns an object of the configuration, named as in the lists.
func (e *Engine) Object(o control.Object) (control.Object, observed.Configured, error) {
	c := e.Current()
	m, err := config.Managed(o).Canonical()
	var meant []*config.Listener
	for i := range c.Listeners {
		if l := &c.Listeners[i]; o.Listener != "" && l.Is(m.Listener) {
			meant = append(meant, l)
		}
	}
	switch {
	case len(meant) == 1:
		m, err = listenerObject(c, meant[0]), nil
		o.Listener = meant[0].Name
	case len(meant) > 1:
		return o, observed.Configured{}, control.NewProblem(http.StatusConflict,
			fmt.Sprintf("%q may be %s or %s", o.Listener, meant[0].Name, meant[1].Name),
			"Use one of these names.")
	}
	key := configured(c, m)
	if err != nil || key == "" {
		return o, observed.Configured{}, control.NotThere(o.Path(), "/v1/objects")
	}
	if o.Referral != "" {
		o.Referral = m.Referral
	}
	v := origin(c, m, key)
	if v.Managed {
		if file, err := os.ReadFile(m.File(c.Managed)); err == nil {
			v.Keys = m.Keys(file)
		}
	}
	if m.Subsystem == "" && m.Host != "" {
		v.Secrets = c.SecretsOf(m.Host)
	}
	return o, v, nil
}

// listenerObject returns a listener under the name with which it was created.
func listenerObject(c *config.Config, l *config.Listener) config.Managed {
	m := config.Managed{Listener: l.Label}
	if _, err := os.Lstat(m.File(c.Managed)); l.Label == "" || err != nil {
		m.Listener = l.Name
	}
	return m
}

// origin returns the origin of an object with this key in the configuration.
func origin(c *config.Config, m config.Managed, key string) observed.Configured {
	v := observed.Configured{
		Path:  control.Object(m).Path(),
		Place: c.Problem(key, "", "").Place,
	}
	if c.Managed != "" {
		_, err := os.Lstat(m.File(c.Managed))
		if v.Managed = err == nil; v.Managed {
			v.Place = m.File(c.Managed)
		}
	}
	return v
}

// Referrals lists the referrals of the configuration.
func (e *Engine) Referrals() (list []control.Referral) {
	for _, r := range e.Current().Discovery.Referrals {
		list = append(list, control.Referral{
			Name: r.Name(), Transport: r.Transport.String(),
			Address: netip.AddrPortFrom(r.Address, r.Port).String(), NQN: r.NQN,
			Hosts: append([]string{}, r.Hosts...),
		})
	}
	return list
}
