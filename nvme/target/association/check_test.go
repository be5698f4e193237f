package association

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// queue is an I/O queue that its controller takes.
type queue struct {
	sqe  nvme.SQE
	data nvme.ConnectData
	info fabric.QueueInfo
	c    *Controller
}

func newQueue() *queue {
	q := &queue{info: fabric.QueueInfo{
		QID: -1, MaxDepth: 128, PortID: 1, Transport: nvme.TransportTCP,
		Remote: netip.MustParseAddrPort("192.0.2.1:1"),
	}}
	q.sqe.Connect().Set(1, 31, 0, 0)
	q.data.HostID, q.data.CNTLID = [16]byte{1}, 7
	nvme.PutNQN(&q.data.HOSTNQN, "nqn.2024-01.test:host")
	admin := q.info
	q.c = &Controller{
		HostNQN: "nqn.2024-01.test:host", HostID: [16]byte{1}, Admin: &admin, Entries: 64,
	}
	return q
}

// TestCheckIO: an I/O queue is refused for each difference from its controller, with the field and
// a remedy.
func TestCheckIO(t *testing.T) {
	const cntlid, qid = nvme.ConnectDataOffsetCNTLID, nvme.ConnectOffsetQID
	for name, x := range map[string]struct {
		change    func(q *queue)
		field     nvme.InvalidParameter
		elsewhere bool
	}{
		"none":          {func(*queue) {}, 0, false},
		"no controller": {func(q *queue) { q.c = nil }, nvme.InvalidInData(cntlid), false},
		"host": {
			func(q *queue) { q.c.HostNQN = "other" }, nvme.InvalidInData(cntlid), false,
		},
		"host identifier": {
			func(q *queue) { q.c.HostID[0]++ },
			nvme.InvalidInData(nvme.ConnectDataOffsetHostID), false,
		},
		"no host identifier": {func(q *queue) { q.data.HostID = [16]byte{} }, 0, false},
		"address": {
			func(q *queue) { q.info.Remote = netip.MustParseAddrPort("192.0.2.2:1") },
			nvme.InvalidInData(cntlid), true,
		},
		"port": {func(q *queue) { q.info.PortID++ }, nvme.InvalidInData(cntlid), false},
		"announced": {
			func(q *queue) { q.info.QID, q.info.CNTLID = 1, 8 }, nvme.InvalidInData(cntlid), false,
		},
		"TLS": {func(q *queue) { q.info.TLS = &fabric.TLS{} }, nvme.InvalidInData(cntlid), false},
		"PSK": {func(q *queue) {
			q.info.TLS, q.c.Admin.TLS = &fabric.TLS{Generated: "a"}, &fabric.TLS{Generated: "b"}
		}, nvme.InvalidInData(cntlid), false},
		"discovery": {func(q *queue) { q.c.Discovery = true }, nvme.InvalidInCommand(qid), false},
		"depth": {
			func(q *queue) { q.c.Entries = 31 },
			nvme.InvalidInCommand(nvme.ConnectOffsetSQSIZE), false,
		},
	} {
		q := newQueue()
		x.change(q)
		r := CheckIO(q.sqe.Connect(), &q.data, &q.info, "sub", "nqn.2024-01.test:host", q.c,
			func() bool { return false })
		testutil.Equal(t, r.Field, x.field, "%s: field", name)
		testutil.Equal(t, r.Elsewhere, x.elsewhere, "%s: elsewhere", name)
		args := r.Record(q.sqe.Connect(), &q.data)
		testutil.True(t, r.Status.OK() == (x.field == 0) && slices.Contains(args, "hint"),
			"%s: %v", name, args)
	}
}

// TestNotPermitted: the refusal of a subsystem that requires security is that of an unknown one.
func TestNotPermitted(t *testing.T) {
	unknown := Unknown("sub", false)
	for _, why := range []error{ErrNotAllowed, ErrNotServed, ErrElsewhere, ErrNoKey, ErrNoTLS} {
		r := NotPermitted(why, "sub", "host", netip.Addr{}, "auth")
		testutil.True(t, r.Status == unknown.Status && r.Field == unknown.Field && !r.Final,
			"%v: %+v", why, r)
		r = NotPermitted(why, "sub", "host", netip.Addr{}, "")
		testutil.Equal(t, r.Final, errors.Is(why, ErrNotAllowed), "%v: final", why)
		testutil.True(t, !r.Status.OK(), "%v: no refusal", why)
	}
}

// TestGoneIsBounded: a bounded number of removed names is remembered, the last one among them.
func TestGoneIsBounded(t *testing.T) {
	var f Final
	many := map[string]bool{}
	for i := range maxGone {
		many[fmt.Sprint(i)] = true
	}
	f.gone.Store(&many)
	f.SetGone("last", true)
	testutil.True(t, len(*f.gone.Load()) == maxGone && f.IsGone("last"),
		"the last one is forgotten")
	f.SetGone("last", false)
	testutil.True(t, !f.IsGone("last"), "one that is back is gone")
}

// TestHosts: a host is another one with the same NQN or the same identifier, until its last
// controller has ended.
func TestHosts(t *testing.T) {
	var h Hosts[int]
	one, two := [16]byte{1}, [16]byte{2}
	h.Add("a", one, 11)
	h.Add("a", one, 12)
	testutil.Equal(t, h.Other("a", one), 0, "other of the same host")
	testutil.True(t, h.Other("a", two) != 0 && h.Other("b", one) != 0, "another host is not found")
	testutil.Equal(t, h.Other("b", two), 0, "other of an unknown host")
	h.Remove("a", one, 11)
	testutil.Equal(t, h.Other("a", two), 12, "other")
	h.Remove("a", two, 13) // was not added
	h.Remove("a", one, 12)
	testutil.Equal(t, len(h.byNQN)+len(h.byID), 0, "controllers that are left")
}

// TestIdentifiers: identifiers are used again as late as possible, and stay in their range, which
// may change. A search takes a step for 64 of them, however many are in use.
func TestIdentifiers(t *testing.T) {
	var s Identifiers
	take := func(first, last, want uint16) {
		t.Helper()
		id, ok := s.Take(first, last)
		testutil.True(t, ok && id == want, "%d, %t; want %d", id, ok, want)
	}
	none := func(first, last uint16) {
		t.Helper()
		id, ok := s.Take(first, last)
		testutil.True(t, !ok, "%d is free", id)
	}
	for id := uint16(100); id <= 300; id++ {
		take(100, 300, id)
	}
	none(100, 300)
	s.Free(299)
	s.Free(140)
	take(100, 300, 140)
	take(100, 300, 299)
	none(100, 300)
	take(50, 300, 50)
	take(99, 101, 99)
	none(99, 101)
	take(65000, 0xFFFF, 65000)
	s.next = 0xFFFF
	take(65000, 0xFFFF, 0xFFFF)
	take(65000, 0xFFFF, 65001)
	testutil.Equal(t, len(s.used), 1024, "words, which a search looks at")
}
