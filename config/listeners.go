package config

import (
	"fmt"
	"strings"
)

// This file has the names of listeners, by which subsystems refer to them.

// nameListeners names the listeners by what they listen on.
func (c *Config) nameListeners() {
	free := map[string]int{}
	for i := range c.Listeners {
		l := &c.Listeners[i]
		l.Name = fmt.Sprintf("%v %s", l.Transport, l.Address.WithPort(l.Port))
		if l.Port != 0 {
			continue
		}
		if free[l.Name]++; free[l.Name] > 1 {
			l.Name += fmt.Sprintf(" #%d", free[l.Name])
		}
	}
}

// Is says whether a user means the listener: by its key name, or by its address and port, with or
// without the transport.
func (l *Listener) Is(name string) bool {
	return name == l.Name || name == l.Label && name != "" ||
		name == l.Address.WithPort(l.Port) && l.Port != 0
}

// resolveListeners replaces what subsystems call listeners by their names.
func (d *decoder) resolveListeners(c *Config) {
	for i := range c.Subsystems {
		list, used := c.Subsystems[i].Listeners, map[string]bool{}
		for j, name := range list {
			path := fmt.Sprintf("subsystems[%d].listeners[%d]", i, j)
			var meant []string
			for k := range c.Listeners {
				if c.Listeners[k].Is(name) {
					meant = append(meant, c.Listeners[k].Name)
				}
			}
			switch {
			case d.bad[path]:
			case len(meant) == 0:
				d.add(path, fmt.Sprintf("there is no listener %s", printable(name)),
					"Write the name of a listener, or its address and port as in 10.0.0.1:4420.")
			case len(meant) > 1:
				d.add(path, "may be "+strings.Join(meant, " or "),
					"Write one of these, or give the listener a name.")
			case used[meant[0]]:
				d.add(path, "is "+meant[0]+" once more", "Delete one of the two.")
			default:
				list[j] = meant[0]
				used[meant[0]] = true
			}
		}
	}
}
