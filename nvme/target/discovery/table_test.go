package discovery

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

type subsystem struct {
	name      string
	listeners map[string]bool
}

func (s *subsystem) Name() string { return s.name }

func (s *subsystem) ServedBy() map[string]bool { return s.listeners }

// TestTableIsContinued: a change of one subsystem costs nothing for the ports of others.
func TestTableIsContinued(t *testing.T) {
	service := &subsystem{name: "service"}
	one := &subsystem{"one", map[string]bool{"a": true}}
	ports := []Port{{ID: 1, Listener: "a"}}
	next := func(last *Table, ports []Port, subs ...Subsystem) *Table {
		table := &Table{Ports: ports}
		table.Fill(service, subs, last)
		return table
	}
	first := next(nil, ports, one)
	second := next(first, ports, &subsystem{name: "two"}, one)
	testutil.True(t, &second.subs[1].ports[0] == &first.subs[1].ports[0],
		"the ports of a subsystem were looked up again")
	third := next(second, []Port{{ID: 1, Listener: "b"}}, one)
	testutil.Equal(t, len(third.subs[1].ports), 0, "ports after they have changed")
}
