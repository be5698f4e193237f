package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestHistogramBucketsAreFine(t *testing.T) {
	for _, ns := range []uint64{0, 1, 31, 32, 33, 63, 64, 1000, 4095, 4096, 1 << 20, 1<<40 + 12345} {
		low := lowest(bucketOf(ns))
		if low > ns || ns-low > ns/(1<<subBits) {
			t.Errorf("%d falls into the bucket that begins at %d", ns, low)
		}
	}
}

func TestHistogramQuantiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var h histogram
	values := make([]uint64, 10000)
	for i := range values {
		values[i] = rng.Uint64N(1_000_000)
		h.add(values[i])
	}
	slices.Sort(values)
	for _, q := range []float64{0.5, 0.99, 0.999} {
		want := float64(values[int(q*float64(len(values)))])
		if got := h.quantile(q); got > want || got < want*0.96 {
			t.Errorf("quantile %v is %v, want about %v", q, got, want)
		}
	}
	if got := h.quantile(1); got != float64(values[len(values)-1]) {
		t.Errorf("maximum is %v, want %v", got, values[len(values)-1])
	}
}

func TestSpread(t *testing.T) {
	if got := spreadOf([]float64{3, 1, 2, 9, 4}); got != (spread{3, 1, 9}) {
		t.Errorf("got %+v", got)
	}
	if got := spreadOf([]float64{3, 1}); got != (spread{2, 1, 3}) {
		t.Errorf("got %+v", got)
	}
}

// The floor must answer exactly what it is asked for, whatever the shape.
func TestFloorServesEveryShape(t *testing.T) {
	for _, w := range []workload{
		{size: 4096, depth: 4, queues: 1, reads: 100},
		{size: 4096, depth: 4, queues: 3},
		{size: 128 << 10, depth: 4, queues: 1, reads: 100},
		{size: 4096, depth: 5, queues: 2, reads: 70},
	} {
		traffic := floorTraffic{pattern: w.pattern(), depth: w.depth, conns: w.queues}
		port, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- serveFloor(port, anyCPU, traffic) }()
		iops, err := loadFloor(port, anyCPU, traffic, 300*time.Millisecond) // with one processor the sides take turns of 10 ms
		if err != nil {
			t.Fatal(err)
		}
		if err := <-served; err != nil || iops == 0 {
			t.Errorf("%+v: %v answers a second, server: %v", traffic, iops, err)
		}
	}
}

func TestWorkloads(t *testing.T) {
	few, err := workloads("", false)
	if err != nil {
		t.Fatal(err)
	}
	all, err := workloads("", true)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, w := range all {
		if names[w.name] {
			t.Errorf("%q is there twice", w.name)
		}
		names[w.name] = true
		reads := 0
		for _, s := range w.pattern() {
			if s == readFloor(w.size) {
				reads++
			}
		}
		if got := 100 * reads / len(w.pattern()); got != w.reads {
			t.Errorf("%q: the floor reads %d %%, want %d", w.name, got, w.reads)
		}
	}
	if len(few) >= len(all) || !names["4K random 70/30 QD 32 on 16 queues"] {
		t.Errorf("%d workloads, with -all %d", len(few), len(all))
	}
}

// Whatever stops a burst, no I/O may run beside the flush.
func TestBurstFlushesAlone(t *testing.T) {
	s := &stream{w: workload{burst: 4, depth: 2}, left: 0, outstanding: 1, idle: []int{0}}
	if err := s.submit(time.Now()); err != nil || s.flushing {
		t.Errorf("flushes with an I/O outstanding: %v", err)
	}
	s = &stream{w: workload{burst: 4, depth: 2}, left: 4, outstanding: 1, idle: []int{0}, flushing: true}
	if err := s.submit(time.Now()); err != nil || len(s.idle) != 1 {
		t.Errorf("submits while flushing: %v", err)
	}
}

const labRecords = `{"group":"rxe","workload":"4K random read QD 1","size":4096,"who":"reference","figures":{"iops":1000,"p50_us":10,"machine_us":20}}
{"group":"rxe","workload":"4K random read QD 1","size":4096,"who":"target","figures":{"iops":500,"p50_us":20,"user_us":3,"system_us":4,"machine_us":22}}
{"group":"rxe","workload":"128K read QD 16","size":131072,"who":"reference","figures":{"iops":100,"mib_s":12.5}}
{"group":"rxe","workload":"128K read QD 16","size":131072,"who":"target","figures":{"iops":120,"mib_s":15}}
{"group":"rxe","workload":"ib_write_bw 128K","size":131072,"who":"limit","figures":{"mib_s":16}}
`

// What the lab wrote becomes a table, a report that can be read again and a picture that is XML.
func TestLabReport(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "records")
	if err := os.WriteFile(file, []byte("#rounds 1 3\n#load 0.5\n# a note\n"+labRecords), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := reportLab(options{out: dir}, file); err != nil {
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
	if len(p.Rows) != 3 || p.Rounds != 1 || p.Rows[0].Ratio.Median != 0.5 || p.Rows[1].Ratio.Median != 1.2 || p.Rows[1].AtLeast != 1 || p.Rows[2].Ratio != nil {
		t.Errorf("rows: %s", text)
	}
	if len(p.Checks) != 2 || p.Checks[0].met() || !p.Checks[1].met() || len(p.Notes) != 1 {
		t.Errorf("checks: %+v, notes %q", p.Checks, p.Notes)
	}
	var table bytes.Buffer
	if err := p.writeTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kernel µs/IO", "4.00", "nvmet machine µs/IO", "16", "missed  rxe: 4K random read QD 1: p50 over nvmet's: 2.00"} {
		if !strings.Contains(table.String(), want) {
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
