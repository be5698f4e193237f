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
