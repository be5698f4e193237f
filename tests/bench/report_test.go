package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/load"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestLabReport: the records of the lab become a table, a report that can be parsed and a plot that
// is XML.
func TestLabReport(t *testing.T) {
	dir := t.TempDir()
	testutil.Must(t, reportLab(options{out: dir, filter: "some"}, "testdata/lab.records"))
	text := testutil.Value(os.ReadFile(filepath.Join(dir, "lab.json")))(t)
	var p report
	testutil.Must(t, json.Unmarshal(text, &p))
	testutil.True(t, len(p.Rows) == 4 && p.Rounds == 1 && p.Rows[0].Ratio.Median == 0.5 &&
		p.Rows[1].Ratio.Median == 1.2 && p.Rows[1].AtLeast == 1 && p.Rows[2].Ratio == nil,
		"rows: %s", text)
	testutil.True(t, len(p.Notes) == 1 && len(p.Machine.Loads) == 2, "notes %q, loads %v", p.Notes,
		p.Machine.Loads)
	var table bytes.Buffer
	testutil.Must(t, p.writeTable(&table))
	squeezed := strings.Join(strings.Fields(table.String()), " ")
	for _, want := range []string{
		"kernel µs/IO", "4.00", "nvmet machine µs/IO", "before each round 0.5 2.2",
		"met 1.20 (1.20..1.20) at least 1.00 rxe: 128K read QD 16: IOPS over nvmet",
		"missed 2.00 (2.00..2.00) at most 1.50 rxe: 4K random read QD 1: p50 over nvmet's",
		"met 0.94 (0.94..0.94) at least 0.90 rxe: 128K read QD 16: " +
			"MiB/s over ib_write_bw 128K; nvmet: 0.78",
		"met 1.00 (1.00..1.00) at most 1.00 SPDK 0.90 rxe under QEMU: 4K random read QD 1: " +
			"p50 over nvmet's",
		"3 of 4 met.",
	} {
		testutil.True(t, strings.Contains(squeezed, want), "%q is not in the table:\n%s", want,
			table.String())
	}
	picture := testutil.Value(os.Open(filepath.Join(dir, "lab.svg")))(t)
	defer picture.Close()
	for d := xml.NewDecoder(picture); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestResults(t *testing.T) {
	for _, c := range []struct {
		atLeast bool
		value   []float64
		want    string
	}{
		{true, nil, "not measured"},
		{true, []float64{1, 2, 3}, "met"},
		{true, []float64{1.9, 2.1, 1.8}, "missed"},
		{false, []float64{1.9, 2.1, 1.8}, "met"},
		{false, []float64{2, 2}, "met"},
		{false, []float64{2.1, 3, 1}, "missed"},
	} {
		b := bound{limit: 2, atLeast: c.atLeast, value: func(measured) []float64 { return c.value }}
		if got := b.evaluate(nil); got.Result != c.want || (got.Value == nil) != (c.value == nil) {
			t.Errorf("%v against 2, at least %v: %+v, want %s", c.value, c.atLeast, got, c.want)
		}
	}
	unmeasured := []bound{{value: func(measured) []float64 { return nil }}}
	testutil.True(t, len(evaluateAll(unmeasured, nil, true)) == 1 &&
		len(evaluateAll(unmeasured, nil, false)) == 0,
		"unmeasured claims must be reported if everything was to be measured, only then")
}

// TestEveryClaimIsMeasured: every claim is about rows that are measured without further options.
// With records of all rows and figures all claims have a result.
func TestEveryClaimIsMeasured(t *testing.T) {
	b := &bench{}
	steps := testutil.Value(b.steps())(t)
	var native []record
	for _, s := range steps {
		native = append(native, everyFigure(nativeGroup, s.name)...)
	}
	wantResults(t, nativeBounds(), native)

	list := exec.Command("bash", "-c", `eval "$(sed -n '/^works()/,/^}/p' ../lab/bench-inside.sh)"
		works | grep -v '^+' | cut -d'|' -f1`)
	list.Stderr = os.Stderr
	names := testutil.Value(list.Output())(t)
	var lab []record
	for name := range strings.Lines(string(names)) {
		for _, group := range []string{"rxe", "siw", "tcp", qemuGroup, spinGroup} {
			lab = append(lab, everyFigure(group, strings.TrimSpace(name))...)
		}
	}
	for _, l := range labLimits {
		for _, group := range []string{"rxe", "siw"} {
			lab = append(lab, everyFigure(group, l.limit)...)
		}
	}
	wantResults(t, labBounds(), lab)
}

func everyFigure(group, name string) []record {
	f := figures{}
	for _, figure := range []string{
		"iops", "mib_s", "mean_us", "p50_us", "p99.9_us", "allocated_bytes", "copies",
		"cpu_percent",
		aloneFigure, besideFigure, deepFigure,
	} {
		f[figure] = 1
	}
	var list []record
	for _, who := range []string{whoTarget, whoReference, whoLimit} {
		list = append(list, record{Group: group, Workload: name, Who: who, Figures: f})
	}
	return list
}

func wantResults(t *testing.T, bounds []bound, records []record) {
	t.Helper()
	for _, b := range bounds {
		c := b.evaluate(records)
		testutil.True(t, c.Value != nil, "%s: %s", c.Claim, c.Result)
	}
}

func TestSpread(t *testing.T) {
	testutil.Equal(t, spreadOf([]float64{3, 1, 2, 9, 4}), (spread{3, 1, 9}), "")
	testutil.Equal(t, spreadOf([]float64{3, 1}), (spread{2, 1, 3}), "")
}

// TestFloorServesEveryShape: the floor answers requests of every shape.
func TestFloorServesEveryShape(t *testing.T) {
	for _, w := range []workload{
		{Workload: load.Workload{Size: 4096, Depth: 4, Queues: 1, Reads: 100}, timed: true},
		{Workload: load.Workload{Size: 4096, Depth: 4, Queues: 3}},
		{Workload: load.Workload{Size: 128 << 10, Depth: 4, Queues: 1, Reads: 100}},
		{Workload: load.Workload{Size: 4096, Depth: 5, Queues: 2, Reads: 70}},
		{Workload: load.Workload{Size: 128 << 10, Depth: 4, Queues: 1}, cold: true},
	} {
		traffic := floorTraffic{Pattern: w.pattern(), depth: w.Depth, Conns: w.Queues, Cold: w.cold}
		if w.timed {
			traffic.latency = newFloorLatency(w.Depth)
		}
		port := testutil.Value(freePort())(t)
		served := make(chan error, 1)
		go func() { served <- serveFloor(port, anyCPU, traffic) }()
		// with one processor the sides take turns of 10 ms
		iops := testutil.Value(loadFloor(port, anyCPU, traffic, 50*time.Millisecond))(t)
		l := traffic.latency
		testutil.True(t, l == nil || l.Quantile(0.5) > 0, "%+v: no latency", w)
		if err := <-served; err != nil || iops == 0 {
			t.Errorf("%+v: %v answers a second, server: %v", traffic, iops, err)
		}
	}
}

func TestWorkloads(t *testing.T) {
	few := testutil.Value(workloads("", false))(t)
	all := testutil.Value(workloads("", true))(t)
	names := map[string]bool{}
	for _, w := range all {
		testutil.True(t, !names[w.Name], "%q is there twice", w.Name)
		names[w.Name] = true
		reads := 0
		for _, s := range w.pattern() {
			if s == readFloor(w.Size) {
				reads++
			}
		}
		got := 100 * reads / len(w.pattern())
		testutil.True(t, got == w.Reads, "%q: the floor reads %d %%, want %d", w.Name, got, w.Reads)
	}
	testutil.True(t, len(few) < len(all) && names["4K random 70/30 QD 32 on 16 queues"],
		"%d workloads, with -all %d", len(few), len(all))
}

// TestNoWorkload: the error lists the existing workloads.
func TestNoWorkload(t *testing.T) {
	b := bench{options: options{filter: "4K read QD 32"}}
	_, err := b.steps()
	for _, want := range []string{`"4K read QD 32"`, "\n  4K random read QD 32\n", "\n  " + idleName} {
		testutil.True(t, err != nil && strings.Contains(err.Error(), want), "no %q: %v", want, err)
	}
}

// TestMain makes a process started by a test a target.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "own-target" {
		exit(ownTargetMain(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// TestOwnTargetCounts: a target in this program reports the bytes it has allocated.
func TestOwnTargetCounts(t *testing.T) {
	s := testutil.Value(
		startTarget(ownCPU(t), t.TempDir(), "", os.Args[0], "own-target", "counting"))(t)
	defer func() {
		if err := s.stop(); err != nil || !strings.Contains(s.log.String(), "reactors run") {
			t.Errorf("stop: %v, log: %s", err, s.log.String())
		}
	}()
	before, err := s.runTime()
	testutil.True(t, err == nil && before > 0, "%v of CPU time: %v", before, err)
	w := countedWorkloads()[0]
	allocated, copied, ops, err := count(s, w, 200*time.Millisecond)
	_, counts := mem.Copied() // the target is built like this program
	testutil.True(t, err == nil && ops != 0 && allocated >= 0 && (copied == 0 || counts),
		"%v bytes allocated and %v copied in %v I/Os: %v", allocated, copied, ops, err)
	total, _, err := s.counters()
	testutil.True(t, err == nil && total >= 1<<10, "%v bytes since the start: %v", total, err)
	if after, err := s.runTime(); err != nil || after <= before {
		t.Errorf("%v of CPU time, before the load %v: %v", after, before, err)
	}
}

// ownCPU returns a CPU that this process may use.
func ownCPU(t *testing.T) int {
	t.Helper()
	var set unix.CPUSet
	testutil.Must(t, unix.SchedGetaffinity(0, &set))
	cpu := 0
	for !set.IsSet(cpu) {
		cpu++
	}
	return cpu
}
