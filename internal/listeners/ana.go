package listeners

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
)

// This file sets the ANA states of ports. A state that was set by hand replaces that of the
// configuration. A reload does not change it, and a restart ends it.

// anaState is a state set by hand.
type anaState struct {
	nvme.ANAState
	stop func() // ends the timer of a transition
}

// asConfigured stands for the configured state.
const asConfigured = "configured"

// anaOf returns the states other than optimized of the groups of a listener. ls.mu is held.
func (ls *Listeners) anaOf(l *listener) map[uint32]nvme.ANAState {
	states := map[uint32]nvme.ANAState{}
	maps.Copy(states, l.ANAStates)
	for _, groups := range []map[uint32]*anaState{ls.ana[l.Name], ls.shared} {
		for group, a := range groups {
			states[group] = a.ANAState
		}
	}
	return states
}

// ShareANA sets the state of a group that several gateways share, at all listeners.
func (ls *Listeners) ShareANA(group uint32, state nvme.ANAState) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.ana == nil { // it is stopping
		return
	}
	if old := ls.shared[group]; old != nil {
		old.stop()
	}
	ls.shared[group] = ls.newANA(state)
	_ = ls.applyANA() // the state is valid
}

// applyANA gives the ports the states of their listeners. ls.mu is held.
func (ls *Listeners) applyANA() error {
	var errs []error
	for _, p := range ls.ports {
		errs = append(errs, ls.Target.SetANAStates(p.id, ls.anaOf(p.l)))
	}
	return errors.Join(errs...)
}

// SetANA sets a state by hand, or returns to the configured one, and returns the states. It does
// not wait for a change in progress: that may wait for the storage that hosts should leave.
func (ls *Listeners) SetANA(a control.ANASet) ([]control.ANA, error) {
	var state nvme.ANAState
	var words []string
	for _, s := range nvme.ANAStates {
		if words = append(words, s.String()); s.String() == a.State {
			state = s
		}
	}
	switch {
	case a.Group < 1 || a.Group > ana.MaxGroups:
		return nil, control.NewProblem(http.StatusBadRequest,
			fmt.Sprintf("there is no ANA group %d", a.Group),
			fmt.Sprintf("Use 1 to %d.", ana.MaxGroups)).At("group")
	case ls.isShared(a.Group):
		if err := ls.drainShared(&a, state); err != nil {
			return nil, err
		}
		return ls.ANA(), nil
	case state == 0 && a.State != asConfigured:
		return nil, control.NewProblem(http.StatusBadRequest,
			fmt.Sprintf("there is no ANA state %q", a.State),
			"Use one of: "+strings.Join(append(words, asConfigured), ", ")+".").At("state")
	}
	found, err := ls.setANA(a.Listener, a.Group, state)
	if !found {
		return nil, control.NewProblem(http.StatusNotFound,
			fmt.Sprintf("there is no listener %q", a.Listener),
			"`nvmf-target ana` lists them by name.").At("listener")
	}
	return ls.ANA(), err
}

// drainShared gives a group away, or lets this target take it again.
func (ls *Listeners) drainShared(a *control.ANASet, state nvme.ANAState) error {
	if a.Listener != "" || state != nvme.ANAStateInaccessible && a.State != asConfigured {
		return control.NewProblem(http.StatusConflict,
			fmt.Sprintf("ANA group %d is shared with other gateways", a.Group),
			"Use inaccessible to give it away, and configured to let this target take it again, "+
				"for all listeners.").At("state")
	}
	ls.Log.Info("a shared ANA group is set by hand", "ana_group", a.Group, "ana_state", a.State)
	ls.DrainGroup(a.Group, state == nvme.ANAStateInaccessible)
	return nil
}

func (ls *Listeners) isShared(group uint32) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.shared[group] != nil
}

// setANA sets the state of a group at a listener, or at all of them; 0 means the configured state.
// For all it also forgets states set at listeners that were removed and may come back.
func (ls *Listeners) setANA(name string, group uint32, state nvme.ANAState) (found bool,
	err error,
) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.ana == nil {
		return true, errors.New("the target is stopping")
	}
	unset := func(groups map[uint32]*anaState) {
		if old := groups[group]; old != nil {
			old.stop()
			delete(groups, group)
		}
	}
	if name == "" {
		for _, groups := range ls.ana {
			unset(groups)
		}
	}
	for _, l := range ls.list {
		if name != "" && !l.Is(name) {
			continue
		}
		found = true
		unset(ls.ana[l.Name])
		word := asConfigured
		if state != 0 {
			if ls.ana[l.Name] == nil {
				ls.ana[l.Name] = map[uint32]*anaState{}
			}
			ls.ana[l.Name][group], word = ls.newANA(state), state.String()
		}
		ls.Log.Info("ANA state is set", "listener", l.Name, "ana_group", group, "ana_state", word)
	}
	return found, ls.applyANA()
}

// newANA makes a state. A transition that lasts too long for hosts becomes inaccessible.
func (ls *Listeners) newANA(state nvme.ANAState) *anaState {
	a := &anaState{state, func() {}}
	if state == nvme.ANAStateChange {
		t := time.AfterFunc(ls.Transition, func() {
			ls.mu.Lock()
			defer ls.mu.Unlock()
			if a.ANAState = nvme.ANAStateInaccessible; ls.ana != nil {
				_ = ls.applyANA() // as before, it is valid
			}
		})
		a.stop = func() { t.Stop() }
	}
	return a
}

// stopANA ends the timers of transitions. After that, no state can be set. ls.mu is held.
func (ls *Listeners) stopANA() {
	for _, groups := range ls.ana {
		for _, a := range groups {
			a.stop()
		}
	}
	for _, a := range ls.shared {
		a.stop()
	}
	ls.ana = nil
}

// ANA lists the states of the groups that have namespaces, or that a listener names.
func (ls *Listeners) ANA() (list []control.ANA) {
	namespaces := map[uint32][]control.NamespaceID{}
	for _, n := range ls.Target.Stats() {
		namespaces[n.ANAGroup] = append(namespaces[n.ANAGroup],
			control.NamespaceID{Subsystem: n.Subsystem, NSID: n.NSID})
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.list {
		for group := range ls.anaOf(l) {
			namespaces[group] = append([]control.NamespaceID{}, namespaces[group]...)
		}
	}
	for _, group := range slices.Sorted(maps.Keys(namespaces)) {
		for _, l := range ls.list {
			list = append(list, control.ANA{
				Group: group, Listener: l.Name, State: stateOf(ls.anaOf(l), group),
				Configured: stateOf(l.ANAStates, group), Namespaces: namespaces[group],
			})
		}
	}
	return list
}

func stateOf(states map[uint32]nvme.ANAState, group uint32) string {
	return cmp.Or(states[group], nvme.ANAStateOptimized).String()
}
