//go:build invariants

package target

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/association"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/shares"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// TestManyPerTurn: however many connections, hosts and namespaces a reactor has, none of its turns
// has more steps.
func TestManyPerTurn(t *testing.T) {
	const few, many = 10, 2500 // above the 1,024 of the tag invariants
	for name, run := range map[string]func(r *harness, n int){
		"connections": manyConnections,
		"flows":       manyFlows,
		"latencies":   manyLatencies,
		"controllers": manyControllers,
		"owners":      manyOwners,
		"keep alives": manyKeepAlives,
	} {
		t.Run(name, func(t *testing.T) {
			steps := func(n int) int {
				r := newHarness(t, 1, subsystems.Config{NQN: testSub, AllowAnyHost: true})
				s := r.w.Reactors[0].Steps()
				s.Begin()
				s.Most()
				run(r, n)
				r.w.Settle()
				return s.Most()
			}
			a, b := steps(few), steps(many)
			testutil.True(t, max(a, b) <= 2*qos.LookMost, "%d steps with %d, %d with %d", a, few, b,
				many)
		})
	}
}

// manyConnections lists the connections of a port, and ends them.
func manyConnections(r *harness, n int) {
	for i := range n {
		info := fabric.QueueInfo{PortID: 7, MaxDepth: 1, Remote: netip.MustParseAddrPort(
			fmt.Sprintf("192.0.2.1:%d", 10_000+i))}
		q := testutil.Value(fabrictest.Dial(r.w.Reactors[0], r.raw[0], info))(r.t)
		r.queues = append(r.queues, q)
	}
	r.during(func() error {
		infos, err := r.target.Connections(r.t.Context())
		testutil.Equal(r.t, len(infos), n, "connections")
		return err
	})
	r.must(r.target.AddPort(discovery.Port{ID: 7}))
	r.must(r.target.RemovePort(7))
	r.w.Settle()
	for _, q := range r.queues {
		testutil.MustTrue(r.t, q.Closed(), "a connection of the port is open")
	}
}

// flowsOf makes n flows of hosts to channels: to one each, or all of them to one channel or host.
func flowsOf(r *harness, n int, host func(i int) *shares.Host, ch func(i int) *channel) {
	for i := range n {
		r.raw[0].shares.FlowTo(host(i), &ch(i).shares)
	}
}

// manyFlows changes the limits of all flows, and drops the flows of a host and the flows of a
// namespace.
func manyFlows(r *harness, n int) {
	h := r.raw[0]
	hostOf := func(nqn string) *shares.Host { // that pays for itself
		return h.shares.Join(nqn, true, testPeer.Addr())
	}
	one, same := hostOf(testHost), channelOf(r, 0)
	var channels []*channel
	for i := range n {
		channels = append(channels, channelOf(r, i+1))
	}
	flowsOf(r, n, func(int) *shares.Host { return one },
		func(i int) *channel { return channels[i] })
	flowsOf(r, n, func(i int) *shares.Host { return hostOf(fmt.Sprint(i)) },
		func(int) *channel { return same })
	testutil.Equal(r.t, h.shares.Flows.Len(), 2*n, "flows")
	turn := h.steps.Begin
	turn()
	h.relink()
	r.w.Settle()
	done := false
	turn()
	h.shares.Drop(&same.shares, h.gate, h.admit, func() { done = true })
	r.w.Settle()
	turn()
	h.shares.Leave(one)
	r.w.Settle()
	left := h.shares.Flows.Len()
	testutil.True(r.t, left <= 0 && done, "%d flows are left, done: %t", left, done)
}

// manyLatencies reads the latencies of many namespaces, and drops one of them.
func manyLatencies(r *harness, n int) {
	h := r.raw[0]
	var last *namespaces.Namespace
	entries := 0
	for i := range n {
		last = channelOf(r, i).ns
		h.latency.Join(testHost, &entries, &last.ID)
	}
	h.steps.Begin()
	h.latency.Drop(&last.ID)
	r.during(func() error {
		_, err := r.target.Latencies(r.t.Context())
		return err
	})
}

// manyControllers admits one more.
func manyControllers(r *harness, n int) {
	sub := r.target.find(testSub)
	admit := func(i int, nqn string) *controller {
		c := &controller{t: r.target, sub: sub, Controller: controllers.Controller{
			Target: &r.target.shared, Subsystem: &sub.Subsystem, Gone: make(chan struct{}),
			HostNQN: nqn, HostID: [16]byte{1, byte(i), byte(i >> 8)},
		}}
		c.Owner = c
		c.Proof.Proven.Store(true)
		sub.Admit(&c.Controller, func() (r association.Refusal) { return r })
		return c
	}
	var all []*controller
	for i := range n {
		all = append(all, admit(i, fmt.Sprint(nvme.DiscoveryNQN, i)))
	}
	testutil.True(r.t, sub.Other(&all[n/2].Controller) == nil, "a host is another one")
	twin := admit(n/2, "another name")
	testutil.True(r.t, sub.Other(&twin.Controller) == &all[n/2].Controller,
		"the host with the same identifier is not found")
	// A list of them would be made with the lock held.
	allocations := testutil.AllocsPerRun(10, func() { sub.each(func(*controller) {}) })
	testutil.True(r.t, allocations <= 2, "%v allocations to look at %d", allocations, n)
	if n > controllers.FewControllers {
		ns := channelOf(r, 0).ns
		r.must(ns.Init(testSub, namespaces.Config{
			NSID: 1, Device: oneBlock{}, Hosts: []string{otherHost},
		}, &r.target.common, sub.teller(ns)))
		before := runtime.NumGoroutine()
		more := 0
		sub.Admit(&twin.Controller, func() association.Refusal { // nobody looks at all meanwhile
			for range 100 {
				sub.Tell(ns, namespaces.Degrades, nil)
			}
			more = runtime.NumGoroutine() - before
			return association.Busy
		})
		testutil.True(r.t, more <= 1, "%d goroutines for notices", more)
		testutil.Until(r.t, "the controllers are told", func() bool {
			return runtime.NumGoroutine() <= before
		})
	}
	for _, c := range append(all, twin) {
		sub.Remove(&c.Controller)
	}
	testutil.True(r.t, sub.Count() == 0 && sub.Other(&twin.Controller) == nil, "hosts are left")
}

// manyOwners asks for the shares of many hosts.
func manyOwners(r *harness, n int) {
	h := r.raw[0]
	var hosts []*shares.Host
	for i := range n {
		hosts = append(hosts, h.shares.Join(fmt.Sprint(i), true, testPeer.Addr()))
	}
	var list atomic.Pointer[map[subnet.Owner]shares.Data]
	go func() {
		all, _ := r.target.DataShares(r.t.Context())
		list.Store(&all)
		r.w.Reactors[0].Wake()
	}()
	steps := 0
	r.until("the reactor answers", func() bool {
		steps++
		return list.Load() != nil
	})
	testutil.Equal(r.t, len(*list.Load()), n, "owners")
	testutil.True(r.t, steps > n/65, "%d turns for %d owners", steps, n)
	for _, host := range hosts {
		h.shares.Leave(host)
	}
	testutil.Equal(r.t, len(h.shares.Owners), 0, "owners are left")
}

// manyKeepAlives sends a lot of Keep Alive commands to a controller with many queues.
func manyKeepAlives(r *harness, n int) {
	h := r.connectHost(0)
	c := r.target.find(testSub).lookup(1)
	c.mu.Lock()
	for i := range min(n, subsystems.MaxIOQueues) {
		c.queues[uint16(i+1)] = new(session)
	}
	c.mu.Unlock()
	for range 64 {
		r.send(h.admin, command(nvme.AdminKeepAlive, 0, nil))
	}
	c.mu.Lock()
	clear(c.queues)
	c.mu.Unlock()
}
