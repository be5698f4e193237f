package null

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/backendtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	for _, blockSize := range []int{512, 4096} {
		backendtest.Run(t, func(t *testing.T) backend.Device {
			dev, err := Open(Config{Size: 1 << 40, BlockSize: blockSize})
			if err != nil {
				t.Fatal(err)
			}
			return dev
		}, backendtest.Options{Forgets: true, Lends: true})
	}
}

func TestBadConfig(t *testing.T) {
	for _, cfg := range []Config{{}, {Size: 4096}, {Size: 4097, BlockSize: 512}, {Size: -4096, BlockSize: 4096}} {
		if _, err := Open(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}

func BenchmarkRead4K(b *testing.B) {
	dev, err := Open(Config{Size: 1 << 30, BlockSize: 4096})
	if err != nil {
		b.Fatal(err)
	}
	c := backendtest.NewClient(b, dev, 1<<20)
	defer c.Close()
	ios, done := make([]*backend.IO, 32), make([]*backend.IO, 32)
	for i := range ios {
		ios[i] = c.Read(int64(i)<<12, c.Memory(i<<12, 4096))
	}
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(ios) {
		c.Channel.Submit(ios)
		c.Channel.Poll(done)
	}
}
