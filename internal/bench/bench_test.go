package bench

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/load"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/web/static"
)

// example is a report on made-up figures.
func example(factor int64) *Report {
	var c load.Count
	s := load.NewSeries()
	for i := range int64(10) {
		c.Latency.Add(factor * (50_000 + 10_000*i*i*i))
		c.Bytes += 4096
	}
	return &Report{
		Format: format, Version: "1.2.3", Began: time.Unix(1795000000, 0).UTC(),
		Machine: Machine{CPU: "a CPU", CPUs: 4, Kernel: "7.3"},
		Target: &Target{
			Transport: "tcp", Address: "[2001:db8::1]:4420", Subsystem: "nqn.2026-11.io.example:a",
			NSID: 1, ID: "UUID 0", Model: "a\x1b[2Jmodel", Serial: "<b>", Bytes: 1 << 30,
			BlockSize: 4096, Security: "none",
		},
		Settings: Settings{
			RW: "randrw", MixRead: 70, BlockSize: "4k", Depth: 32, Jobs: 2, Threads: 1,
			Rate: float64(1000 * factor), Runtime: time.Second, Seed: 1,
		},
		Runs: []*Run{{
			Name: "randrw", Seconds: 1, User: .25, System: .5, Series: points(s, time.Second/10),
			Groups: []*Group{{
				Name: "randrw", Queues: 2, Depth: 32, Late: 7, Reads: figures(&c, time.Second),
			}},
		}},
		Error: "interrupted",
	}
}

// TestGolden: reports as text, JSON and page, and their comparison. Reports with the same figures
// have no differences. Text from the target is quoted.
func TestGolden(t *testing.T) {
	a, b := example(1), example(2)
	for name, write := range map[string]func(*bytes.Buffer) error{
		"report.txt":  func(w *bytes.Buffer) error { return a.WriteText(w) },
		"report.json": func(w *bytes.Buffer) error { return a.WriteJSON(w) },
		"compare.txt": func(w *bytes.Buffer) error { return Compare(w, a, b) },
	} {
		var got bytes.Buffer
		testutil.Must(t, write(&got))
		testutil.Golden(t, filepath.Join("testdata", name), got.String())
		testutil.True(t, !bytes.ContainsRune(got.Bytes(), 0x1b),
			"%s: control characters of the target", name)
	}
	var page bytes.Buffer
	testutil.Must(t, a.WriteHTML(&page))
	library := testutil.Value(static.Files.ReadFile(static.UPlot))(t)
	own := strings.Replace(page.String(), string(library), "", 1)
	testutil.True(t, len(own)+len(library) == page.Len() && strings.Contains(own, "MIT License"),
		"the page does not have %s with its license", static.UPlot)
	for _, bad := range []string{"<b>", "NaN", "Inf", "http://", "https://", "\x1b", "ZgotmplZ"} {
		testutil.True(t, !strings.Contains(own, bad), "the page has %q", bad)
	}
	if list := differences(a, a); len(list) != 2 { // A and B are incomplete
		t.Errorf("%q", list)
	}
}

// TestReadReport: a written report is read back, and other files are refused.
func TestReadReport(t *testing.T) {
	r, err := ReadReport(filepath.Join("testdata", "report.json"))
	testutil.True(t, err == nil &&
		r.Runs[0].Groups[0].Reads.P99 == example(1).Runs[0].Groups[0].Reads.P99, "%+v, %v", r, err)
	const foreign = "is not a report of nvmf-target bench --json"
	for text, want := range map[string]string{
		"": "is empty", `{"format": 1, "runs": [`: "is cut off", "[]": foreign, "IOPS": foreign,
		`{"fio version": "fio-3.33", "jobs": []}`: foreign, `{"format": 1}`: foreign,
		`{"format": 9, "target": {}}`:                               "format 9, want 1",
		`{"format": 1, "target": {}, "runs": [null]}`:               foreign,
		`{"format": 1, "target": {}, "runs": [{"groups": [null]}]}`: foreign,
	} {
		file := filepath.Join(t.TempDir(), "a.json")
		testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
		testutil.Fails(t, testutil.Err(ReadReport(file)), want, "%q is read as", text)
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]uint64{
		"": 0, "0": 0, "4096": 4096, "4k": 4096, "4K": 4096, "4KiB": 4096, "4kb": 4096,
		"10g": 10 << 30, "1t": 1 << 40, "25%": 250, "100%": 1000, "7b": 7,
	} {
		testutil.Equal(t, testutil.Value(parseSize(text, 1000))(t), want, "%s", text)
	}
	for _, text := range []string{
		"k", "4x", "-1", "4.5k", "101%", "4kk", "4ki%", "9999999t", "18446744073709551616", "1e3",
	} {
		got, err := parseSize(text, 1000)
		testutil.True(t, err != nil, "%s is %d", text, got)
	}
}

// TestCheck: invalid settings are refused before anything is connected.
func TestCheck(t *testing.T) {
	good := Settings{RW: "randread", BlockSize: "4k", Depth: 1, Jobs: 1, Runtime: time.Second}
	for want, change := range map[string]func(*Settings){
		"":       func(s *Settings) { s.Rate = 1 },
		"--rate": func(s *Settings) { s.Rate = math.NaN() },
		// an interval longer than a time.Duration would be no limit
		"--rate 1e-12": func(s *Settings) { s.Rate = 1e-12 },
	} {
		s := good
		change(&s)
		err := s.Check()
		testutil.True(t, (err == nil) == (want == "") &&
			(err == nil || strings.Contains(err.Error(), want)), "%v, want %q", err, want)
	}
	w := load.Workload{Size: 64 << 20, Reads: 100}
	st := []stage{{workloads: []load.Workload{w}}}
	testutil.True(t, allowed(&Target{BlockSize: 512}, st, false) != nil,
		"an I/O of more than 65536 blocks is allowed")
}

// TestProfilesFit: the parts of each profile fit into every namespace and overlap only where
// allowed.
func TestProfilesFit(t *testing.T) {
	for _, name := range Profiles() {
		s := Settings{Profile: name, Runtime: time.Second}
		testutil.Check(t, s.Check())
		for _, size := range []uint64{minProfile, minProfile + 512, 1 << 30, 1<<50 + 4096} {
			list := testutil.Value(s.stages(size))(t)
			for _, st := range list {
				for _, w := range st.workloads {
					if w.Offset >= size || w.Length > size-w.Offset ||
						w.Parts && max(w.Length, 1)/uint64(w.Queues) > 1 &&
							w.Length/uint64(w.Queues) < uint64(w.Size) {
						t.Errorf("%s on %d bytes: %+v", name, size, w)
					}
				}
			}
		}
		testutil.True(t, testutil.Err(s.stages(minProfile-1)) != nil,
			"a tiny namespace is accepted")
	}
	s := Settings{Profile: "none"}
	testutil.Fails(t, s.Check(), "database", "")
}
