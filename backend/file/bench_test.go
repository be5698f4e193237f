package file

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

const benchSize = 256 << 20

// spin is the time that a reactor without work polls before it sleeps, in nanoseconds.
const spin = 50_000

// load keeps depth IOs of 4 KiB at random positions in flight until more returns false. It polls
// and sleeps as a reactor does.
func load(tb testing.TB, d backend.Device, op backend.Op, depth int,
	more func(done int) bool,
) (done int) {
	c := backendtest.NewClient(tb, d, 1<<20)
	defer c.Close()
	c.Lock()
	rnd := rand.New(rand.NewPCG(1, 2))
	free := make([]*backend.IO, depth)
	for i := range free {
		free[i] = c.Read(0, c.Memory(i<<12, 4096))
		free[i].Op = op
	}
	ready, out := free, 0
	for more(done) {
		for _, io := range ready {
			io.Off = rnd.Int64N(benchSize>>12) << 12
		}
		out += c.Channel.Submit(ready)
		n := 0
		for end := time.Now().UnixNano() + spin; n == 0; {
			n = c.Channel.Poll(free)
			if n == 0 && time.Now().UnixNano() > end && c.Channel.Arm() {
				c.Sleep()
			}
		}
		for _, io := range free[:n] {
			testutil.MustTrue(tb, io.Err == nil, "%v", io.Err)
		}
		ready = free[:n]
		out, done = out-n, done+n
	}
	for out > 0 {
		out -= c.Channel.Poll(free)
		runtime.Gosched()
	}
	return done
}

// filled creates a file and writes all of its blocks.
func filled(tb testing.TB, path string, cfg Config) backend.Device {
	cfg.Path, cfg.Size, cfg.BlockSize = path, benchSize, 4096
	d := mustOpen(tb, cfg)
	c := backendtest.NewClient(tb, d, 1<<20)
	for off := int64(0); off < benchSize; off += 1 << 20 {
		c.MustDo(c.Write(off, c.Memory(0, 1<<20)))
	}
	c.MustDo(&backend.IO{Op: backend.OpFlush})
	c.Close()
	return d
}

func benchmark(b *testing.B, cfg Config, op backend.Op, depth int) {
	for _, engine := range []string{disk.IOUring, disk.Threads} {
		b.Run(engine, func(b *testing.B) {
			cfg.Engine.Name = engine
			d := filled(b, filepath.Join(b.TempDir(), "disk.img"), cfg)
			b.SetBytes(4096)
			b.ReportAllocs()
			b.ResetTimer()
			load(b, d, op, depth, func(done int) bool { return done < b.N })
			b.StopTimer()
			mustClose(b, d)
		})
	}
}

func BenchmarkRead4K(b *testing.B)    { benchmark(b, Config{}, backend.OpRead, 32) }
func BenchmarkWrite4K(b *testing.B)   { benchmark(b, Config{}, backend.OpWrite, 32) }
func BenchmarkRead4KQD1(b *testing.B) { benchmark(b, Config{}, backend.OpRead, 1) }
func BenchmarkRead4KBuffered(b *testing.B) {
	benchmark(b, Config{Buffered: true}, backend.OpRead, 32)
}

// ofFio is the share of fio's IOPS that reads should reach.
const ofFio = 0.9

// BenchmarkAgainstFio reads 4 KiB at random positions of one file with 32 in flight, alternating
// with fio's io_uring engine, and reports the median of the ratios. It logs whether the target
// ratio is reached and does not fail, because of other load on the machine. The file is made in
// $NVMF_BENCH_DIR.
func BenchmarkAgainstFio(b *testing.B) {
	fio := testutil.Program(b, "scripts/deps.sh test installs it", "fio")
	dir := os.Getenv("NVMF_BENCH_DIR")
	if dir == "" {
		dir = b.TempDir()
	}
	const rounds, duration = 7, 2 * time.Second
	path := filepath.Join(dir, "against-fio.img")
	defer func() { _ = os.Remove(path) }()
	d := filled(b, path, Config{Engine: disk.Engine{Name: disk.IOUring}})
	defer mustClose(b, d)
	var ratios []float64
	for b.Loop() {
		for range rounds {
			start := time.Now()
			done := load(b, d, backend.OpRead, 32,
				func(int) bool { return time.Since(start) < duration })
			ours := float64(done) / time.Since(start).Seconds()
			theirs := fioIOPS(b, fio, path, duration)
			ratios = append(ratios, ours/theirs)
			b.Logf("%.0f IOPS, fio %.0f: %.2f", ours, theirs, ours/theirs)
		}
	}
	slices.Sort(ratios)
	median := ratios[len(ratios)/2]
	b.ReportMetric(median, "of-fio")
	result := "at least"
	if median < ofFio {
		result = "BELOW"
	}
	b.Logf("median %.2f (%.2f to %.2f), %s %.2f", median, ratios[0], ratios[len(ratios)-1], result,
		ofFio)
}

func fioIOPS(b *testing.B, fio, path string, duration time.Duration) float64 {
	out, err := exec.Command(fio, "--name=x", "--filename="+path, "--rw=randread", "--bs=4k",
		"--iodepth=32", "--ioengine=io_uring",
		"--direct=1", "--fixedbufs=1", "--registerfiles=1", "--time_based",
		fmt.Sprintf("--runtime=%d", int(duration.Seconds())),
		"--output-format=json").Output()
	testutil.Must(b, err)
	var result struct {
		Jobs []struct{ Read struct{ IOPS float64 } }
	}
	testutil.Must(b, json.Unmarshal(out, &result))
	return result.Jobs[0].Read.IOPS
}
