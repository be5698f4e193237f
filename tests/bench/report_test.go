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
)

const labRecords = `{"group":"rxe","workload":"4K random read QD 1","size":4096,"who":"reference","figures":{"iops":1000,"p50_us":10,"machine_us":20}}
{"group":"rxe","workload":"4K random read QD 1","size":4096,"who":"target","figures":{"iops":500,"p50_us":20,"user_us":3,"system_us":4,"machine_us":22}}
{"group":"rxe","workload":"128K read QD 16","size":131072,"who":"reference","figures":{"iops":100,"mib_s":12.5}}
{"group":"rxe","workload":"128K read QD 16","size":131072,"who":"target","figures":{"iops":120,"mib_s":15}}
{"group":"rxe","workload":"ib_write_bw 128K","size":131072,"who":"limit","figures":{"mib_s":16}}
{"group":"rxe under QEMU","workload":"4K random read QD 1","size":4096,"who":"reference","figures":{"p50_us":10}}
{"group":"rxe under QEMU","workload":"4K random read QD 1","size":4096,"who":"target","figures":{"p50_us":10}}
`

// What the lab wrote becomes a table, a report that can be read again and a picture that is XML.
func TestLabReport(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "records")
	if err := os.WriteFile(file,
		[]byte("#rounds 1 3\n#load 0.5\n#load 2.25\n# a note\n"+labRecords), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := reportLab(options{out: dir, filter: "some"}, file); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "lab.json"))
	if err != nil {
		t.Fatal(err)
	}
	var p report
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatal(err)
	}
	if len(p.Rows) != 4 || p.Rounds != 1 || p.Rows[0].Ratio.Median != 0.5 ||
		p.Rows[1].Ratio.Median != 1.2 || p.Rows[1].AtLeast != 1 || p.Rows[2].Ratio != nil {
		t.Errorf("rows: %s", text)
	}
	if len(p.Notes) != 1 || len(p.Machine.Loads) != 2 {
		t.Errorf("notes %q, loads %v", p.Notes, p.Machine.Loads)
	}
	var table bytes.Buffer
	if err := p.writeTable(&table); err != nil {
		t.Fatal(err)
	}
	squeezed := strings.Join(strings.Fields(table.String()), " ")
	for _, want := range []string{
		"kernel µs/IO", "4.00", "nvmet machine µs/IO", "before each round 0.5 2.2",
		"met 1.20 (1.20..1.20) at least 1.00 rxe: 128K read QD 16: IOPS over nvmet",
		"missed 2.00 (2.00..2.00) at most 1.50 rxe: 4K random read QD 1: p50 over nvmet's",
		"met 0.94 (0.94..0.94) at least 0.90 rxe: 128K read QD 16: MiB/s over ib_write_bw 128K; nvmet: 0.78",
		"met 1.00 (1.00..1.00) at most 1.00 SPDK 0.90 rxe under QEMU: 4K random read QD 1: p50 over nvmet's",
		"3 of 4 met.",
	} {
		if !strings.Contains(squeezed, want) {
			t.Errorf("%q is not in the table:\n%s", want, table.String())
		}
	}
	picture, err := os.Open(filepath.Join(dir, "lab.svg"))
	if err != nil {
		t.Fatal(err)
	}
	defer picture.Close()
	for d := xml.NewDecoder(picture); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestVerdicts(t *testing.T) {
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
		if got := b.judge(nil); got.Verdict != c.want || (got.Value == nil) != (c.value == nil) {
			t.Errorf("%v against 2, at least %v: %+v, want %s", c.value, c.atLeast, got, c.want)
		}
	}
	unmeasured := []bound{{value: func(measured) []float64 { return nil }}}
	if len(judgeAll(unmeasured, nil, true)) != 1 || len(judgeAll(unmeasured, nil, false)) != 0 {
		t.Error("what was not measured is to be said when everything was asked for, and only then")
	}
}

// Every claim is about rows that are measured without further options: with a figure of each kind
// everywhere all of them have a verdict.
func TestEveryClaimIsMeasured(t *testing.T) {
	b := &bench{}
	steps, err := b.steps()
	if err != nil {
		t.Fatal(err)
	}
	var native []record
	for _, s := range steps {
		native = append(native, everyFigure(nativeGroup, s.name)...)
	}
	wantVerdicts(t, nativeBounds(), native)

	list := exec.Command("bash", "-c", `eval "$(sed -n '/^works()/,/^}/p' ../lab/bench-inside.sh)"; works | grep -v '^+' | cut -d'|' -f1`)
	list.Stderr = os.Stderr
	names, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
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
	wantVerdicts(t, labBounds(), lab)
}

func everyFigure(group, name string) []record {
	f := figures{}
	for _, figure := range []string{
		"iops", "mib_s", "mean_us", "p50_us", "p99.9_us", "allocated_bytes", "copies",
		"cpu_percent",
		aloneFigure, besideFigure, greedyFigure,
	} {
		f[figure] = 1
	}
	var list []record
	for _, who := range []string{whoTarget, whoReference, whoLimit} {
		list = append(list, record{Group: group, Workload: name, Who: who, Figures: f})
	}
	return list
}

func wantVerdicts(t *testing.T, bounds []bound, records []record) {
	t.Helper()
	for _, b := range bounds {
		if c := b.judge(records); c.Value == nil {
			t.Errorf("%s: %s", c.Claim, c.Verdict)
		}
	}
}
