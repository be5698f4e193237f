package target

import (
	"reflect"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

type states = map[uint32]nvme.ANAState

func anaCommand(lpo uint64, n int, rgo bool) *fabrictest.Command {
	c := logCommand(nvme.LogANA, n, lpo)
	lsp := uint8(0)
	if rgo {
		lsp = nvme.ANAGroupsOnly
	}
	c.SQE.GetLog().Set(nvme.LogANA, uint64(n), lpo, lsp, false)
	return c
}

// anaLog reads log 0Ch as Linux does, with room for all groups and namespaces.
func (h *host) anaLog(rgo bool) (changes uint64, groups []nvme.ANAGroup) {
	h.r.t.Helper()
	c := anaCommand(0, int(ana.LogSize(namespaces.MaxNSID)), rgo)
	l, groups, err := targettest.ParseANALog(h.r.ok(h.admin, c).Data)
	h.r.must(err)
	return l.CHGC, groups
}

func anaGroup(id uint32, s nvme.ANAState, changes uint64, nsids ...uint32) nvme.ANAGroup {
	return nvme.ANAGroup{
		ANADescriptor: nvme.ANADescriptor{
			AGID: id, ANAS: s, CHGC: changes, NNV: uint32(len(nsids)),
		},
		NSIDs: nsids,
	}
}

func (h *host) wantANA(changes uint64, want ...nvme.ANAGroup) {
	h.r.t.Helper()
	if n, got := h.anaLog(false); n != changes || !reflect.DeepEqual(got, want) {
		h.r.t.Errorf("log %d %+v\nwant %d %+v", n, got, changes, want)
	}
}

// anaStatuses are the statuses of commands that a state does not allow (Base section 4.2.3.4).
var anaStatuses = map[nvme.ANAState]nvme.Status{
	nvme.ANAStateInaccessible: nvme.ANAInaccessible, nvme.ANAStateChange: nvme.ANATransition,
	nvme.ANAStatePersistentLoss: nvme.ANAPersistentLoss,
}

// TestFeatureOfVanishingNamespace: a namespace may become inactive while a command is prepared.
func TestFeatureOfVanishingNamespace(t *testing.T) {
	r, h := joined(t, 1, 0, ramSubsystem(t, 1))
	r.must(r.target.SetANAStates(1, states{7: nvme.ANAStateNonOptimized}))
	sub := r.target.find(testSub)
	c := sub.lookup(h.cntlid)
	sqe := getFeature(nvme.FeatureErrorRecovery, nvme.FeatureCurrent, 0).SQE
	sqe.SetNSID(1)
	before := sub.Namespaces.Load().List
	done := make(chan struct{})
	defer func() { <-done }()
	go func() {
		defer close(done)
		for range 200_000 {
			sub.Namespaces.Store(nil)
			sub.Namespaces.Store(before)
		}
	}()
	for !closed(done) {
		c.Check(&sqe, 0)
	}
}
