package web

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// counted returns n namespaces with the given count each, and their latencies.
func counted(n int, commands uint64) (list []observed.Namespace, latencies []observed.Latency) {
	for i := range n {
		list = append(list, observed.Namespace{
			Subsystem: "nqn", NSID: uint32(i + 1), Reads: commands, ReadBytes: 4096 * commands,
		})
		latencies = append(latencies, observed.Latency{
			Subsystem: "nqn", NSID: uint32(i + 1),
			Buckets: []observed.LatencyBucket{
				{Count: commands / 2}, {NS: 1 << 15, Count: commands / 2}, // bucket 60
			},
			Stages: []observed.LatencyStage{{Stage: "backend", Nanoseconds: 100 * commands}},
		})
	}
	return list, latencies
}

// TestHistoryIsBounded: hours of many namespaces take 3 MB, and show the last hour, and each look
// of the last minutes.
func TestHistoryIsBounded(t *testing.T) {
	var h history
	at, looks := time.Duration(0), uint64(0)
	look := func(pass time.Duration) {
		at += pass
		looks++
		list, latencies := counted(20, 10*looks)
		h.look(at, list, latencies, true)
	}
	for range 2 * hourPoints {
		look(rarely)
	}
	for range 2 * recentPoints {
		look(Every)
	}
	size := 0
	for _, s := range h.series {
		size += (cap(s.recent.points) + cap(s.hour.points)) * int(reflect.TypeFor[point]().Size())
	}
	testutil.True(t, len(h.series) == maxSeries && size <= 3e6, "%d series take %d bytes",
		len(h.series), size)
	list := h.of("")
	first, last := list[0], list[len(list)-1]
	covered := last.end - first.end + float64(first.seconds)
	testutil.True(t, last.end == at.Seconds() && covered >= 3590 && covered <= 3620,
		"the history has %v s until %v s, which is %v", covered, last.end, at)
	for i, p := range list {
		if i > 0 && float64(p.seconds)+list[i-1].end != p.end {
			t.Fatalf("point %d of %v s ends at %v s, the one before at %v s", i, p.seconds, p.end,
				list[i-1].end)
		}
		testutil.MustTrue(t, p.reads%200 == 0 && p.reads != 0 && p.counts[0] == uint32(p.reads/2) &&
			p.counts[60-firstBucket] == uint32(p.reads/2) && p.stages[2] == 100*p.reads,
			"point %d: %+v", i, p)
	}
	if n := len(list); float64(list[n-recentPoints].seconds) != Every.Seconds() {
		t.Errorf("the recent points are of %v s", list[n-recentPoints].seconds)
	}
	text, err := json.Marshal(list)
	testutil.True(t, err == nil && len(text) <= 200*len(list), "%d bytes, %v", len(text), err)
}

// TestHistoryGaps: missing counts are a gap: the first look, a pause of the target, a new
// namespace. A restarted counter counts from zero. The clock of the machine does not matter.
func TestHistoryGaps(t *testing.T) {
	var h history
	at := time.Duration(0)
	for i, tc := range []struct {
		pass           time.Duration
		namespaces     int
		commands, want uint64
		gap            bool
	}{
		{0, 1, 1000, 0, true},
		{Every, 1, 1010, 10, false},
		{rarely, 1, 1030, 20, false},
		{20 * time.Second, 1, 1040, 10, false}, // a reactor was slow
		{time.Minute, 1, 5000, 0, true},        // the machine slept
		{Every, 1, 5002, 2, false},
		{Every, 2, 5008, 6, false}, // the second one is not known yet
		{Every, 2, 5010, 4, false},
		{0, 2, 6010, 0, true}, // at the same time
		{Every, 2, 7, 14, false},
		{Every, 0, 0, 0, false},
	} {
		at += tc.pass
		list, latencies := counted(tc.namespaces, tc.commands)
		p := h.look(at, list, latencies, true)[""]
		testutil.True(t, p.notKnown == tc.gap && p.reads == tc.want,
			"look %d: %d reads, a gap: %v; want %d, %v", i, p.reads, p.notKnown, tc.want, tc.gap)
		text, err := json.Marshal(p)
		testutil.True(t, err == nil && strings.Contains(string(text), "counts") != tc.gap,
			"look %d: %s, %v", i, text, err)
	}
	testutil.True(t, len(h.series) == 1 && len(h.of("1 of nqn")) == 0,
		"%d series are left, %d points", len(h.series), len(h.of("1 of nqn")))
}

// TestHistoryOfTheBusiest: a namespace that does more takes the place of one that did less in the
// hour, and equally busy ones keep their places. Latencies that are unknown for a while are counted
// later.
func TestHistoryOfTheBusiest(t *testing.T) {
	var h history
	at := time.Duration(0)
	list, latencies := counted(40, 0)
	look := func(known bool) {
		at += Every
		h.look(at, slices.Clone(list), latencies, known)
	}
	look(true)
	for range 10 {
		for i := range list {
			list[i].Reads += 10
		}
		look(true)
	}
	kept := fmt.Sprint(slices.Sorted(maps.Keys(h.series)))
	list[39].Reads += 50
	look(true)
	testutil.True(t, fmt.Sprint(slices.Sorted(maps.Keys(h.series))) == kept,
		"a namespace with little to do has taken a place")
	list[39].Reads += 5000
	_, latencies = counted(40, 100)
	look(false)
	if h.series["40 of nqn"] == nil || len(h.series) != maxSeries || h.series[""] == nil {
		t.Errorf("the busiest one has no place among %v", slices.Sorted(maps.Keys(h.series)))
	}
	look(true)
	p := h.of("")
	testutil.Equal(t, p[len(p)-1].counts[60-firstBucket], 40*50, "commands of unknown namespaces")
}
