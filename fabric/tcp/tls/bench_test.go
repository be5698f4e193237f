package tls

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// TestBatchFits checks that a batch fits into one buffer of TCP (see ADR 0034): with an MTU of 9000
// that is seven segments of 8,948 bytes, with 1500 forty-five of 1,448, and one on the loopback.
func TestBatchFits(t *testing.T) {
	p := newPair(t, auth.SHA256)
	v := p.b.vectors[:1]
	sys.SetIovec(&v[0], p.b.in[:batch])
	n, ok := p.client.out.aead.Seal(p.b.sealed, 1, v, 0, batch, maxContent, typeApplication)
	limit := 7 * 8948
	testutil.True(t, ok && n <= limit, "a batch has %d bytes, at most %d fit", n, limit)
}

// BenchmarkSeal seals a batch, of data in pieces with headers of 24 bytes before them.
func BenchmarkSeal(b *testing.B) {
	for _, size := range []int{4 << 10, 128 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			p := newPair(b, auth.SHA256)
			v := p.b.vectors[:0]
			n := 0
			for at := 0; n+size+24 <= batch+size && at+size+24 < len(p.b.Headers); at += size + 24 {
				for _, part := range [][]byte{p.b.Headers[at:][:24], p.b.Headers[at+24:][:size]} {
					v = v[:len(v)+1]
					sys.SetIovec(&v[len(v)-1], part)
					n += len(part)
				}
			}
			n = min(n, batch)
			b.SetBytes(int64(n))
			defer processorTime(b, n)()
			for b.Loop() {
				if _, ok := p.client.out.aead.Seal(p.b.sealed, 1, v, 0, n, maxContent,
					typeApplication); !ok {
					b.Fatal("not sealed")
				}
			}
		})
	}
}

// BenchmarkOpen opens records of 16 KiB.
func BenchmarkOpen(b *testing.B) {
	p := newPair(b, auth.SHA256)
	record := p.seal(typeApplication, make([]byte, maxContent))
	out := make([]byte, maxContent)
	b.SetBytes(maxContent)
	defer processorTime(b, maxContent)()
	for b.Loop() {
		if _, ok := p.server.in.aead.Open(out, 0, record, maxContent+1); !ok {
			b.Fatal("not opened")
		}
	}
}

// BenchmarkHandshake is a handshake, both sides.
func BenchmarkHandshake(b *testing.B) {
	needTLS(b)
	psks := testPSKs(b, auth.SHA256)
	defer processorTime(b, 0)()
	for b.Loop() {
		c := testutil.Value(NewClient(&psks[0]))(b)
		s := NewServer(lookup(psks))
		client, server, err := shake(c, s, 1<<20)
		if err != nil {
			b.Fatal(err)
		}
		client.Close()
		server.Close()
		c.Free()
		s.Free()
	}
}

// processorTime reports the processor time of an operation, and the speed for n bytes in that time.
// Other work on the machine hardly counts.
func processorTime(b *testing.B, n int) (end func()) {
	now := func() int64 {
		var u unix.Rusage
		testutil.Must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return u.Utime.Nano() + u.Stime.Nano()
	}
	start := now()
	return func() {
		ns := float64(now()-start) / float64(b.N)
		b.ReportMetric(ns, "cpu-ns/op")
		b.ReportMetric(float64(n)*1e3/ns, "cpu-MB/s")
	}
}
