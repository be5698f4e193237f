package file

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/backendtest"
)

// benchmark keeps depth IOs of 4 KiB at random positions in flight.
func benchmark(b *testing.B, cfg Config, op backend.Op, depth int) {
	const size = 64 << 20
	cfg.Path, cfg.Size, cfg.BlockSize = filepath.Join(b.TempDir(), "disk.img"), size, 4096
	d := mustOpen(b, cfg)
	c := backendtest.NewClient(b, d, 1<<20)
	for off := int64(0); off < size; off += 1 << 20 {
		c.MustDo(c.Write(off, c.Memory(0, 1<<20)))
	}
	c.MustDo(&backend.IO{Op: backend.OpFlush})
	free := make([]*backend.IO, depth)
	for i := range free {
		free[i] = c.Read(0, c.Memory(i<<12, 4096))
		free[i].Op = op
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	b.SetBytes(4096)
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += len(free) {
		for _, io := range free {
			io.Off = rnd.Int64N(size>>12) << 12
		}
		c.Submit(free...)
		free = c.Wait(1)
	}
	c.MustDo()
	b.StopTimer()
	c.Close()
	mustClose(b, d)
}

func BenchmarkRead4K(b *testing.B)         { benchmark(b, Config{}, backend.OpRead, 32) }
func BenchmarkWrite4K(b *testing.B)        { benchmark(b, Config{}, backend.OpWrite, 32) }
func BenchmarkRead4KQD1(b *testing.B)      { benchmark(b, Config{}, backend.OpRead, 1) }
func BenchmarkRead4KBuffered(b *testing.B) { benchmark(b, Config{Buffered: true}, backend.OpRead, 32) }
