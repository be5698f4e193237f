package null

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

func TestConformance(t *testing.T) {
	for _, blockSize := range []int{512, 4096} {
		backendtest.Run(t, func(t *testing.T) backend.Device {
			return testutil.Value(Open(Config{Size: 1 << 40, BlockSize: blockSize}))(t)
		}, backendtest.Options{Forgets: true, ZeroCopyReads: true})
	}
}

func TestBadConfig(t *testing.T) {
	for _, cfg := range []Config{
		{},
		{Size: 4096},
		{Size: 4097, BlockSize: 512},
		{Size: -4096, BlockSize: 4096},
	} {
		testutil.True(t, testutil.Err(Open(cfg)) != nil, "%+v: no error", cfg)
		r := Probe(cfg)
		testutil.True(t, len(r.Errors) == 1, "%+v: %+v", cfg, r)
	}
}

func TestProbe(t *testing.T) {
	r := Probe(Config{Size: 1 << 40, BlockSize: 512})
	testutil.Equal(t, len(r.Errors)+len(r.Warnings), 0, "%+v", r)
}

func BenchmarkRead4K(b *testing.B) {
	dev := testutil.Value(Open(Config{Size: 1 << 30, BlockSize: 4096}))(b)
	backendtest.BenchmarkReads(b, dev, 4096)
}
