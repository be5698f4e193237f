package isolation

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

const workConfiguration = `
listeners:
  - {transport: tcp, address: 127.0.0.1, port: 0, on_unavailable: fail}
reactors: {count: 1, spin: 0s, memory: 64MiB}
subsystems:
  - nqn: ` + subNQN + `
    hosts: [` + victimNQN + `, ` + culpritNQN + `]
    namespaces:
      - {nsid: 1, size: 64MiB, block_size: 4096, DEVICE1}
      - {nsid: 2, size: 64MiB, block_size: 4096, DEVICE2}
`

// TestBesideWork measures reads of 4 KiB of one host, one at a time, beside a host that makes the
// target work with 100 commands on another namespace of the same kind. The work adds at most twice
// as much to the median and the p99 as 100 reads of 128 KiB add. Three rounds, medians.
func TestBesideWork(t *testing.T) {
	testutil.Soak(t, "it measures latencies")
	for _, v := range []struct{ name, device string }{
		{"ram", "backend: ram"},
		{"direct", "backend: file, path: PATH"},
		{"buffered", "backend: file, path: PATH, buffered: true"},
	} {
		t.Run(v.name, func(t *testing.T) { besideWork(t, v.device) })
	}
}

func besideWork(t *testing.T, device string) {
	const rounds, length = 3, time.Second
	text, dir := workConfiguration, t.TempDir()
	for _, n := range []string{"1", "2"} {
		text = strings.ReplaceAll(text, "DEVICE"+n,
			strings.ReplaceAll(device, "PATH", filepath.Join(dir, n)))
	}
	h := harness.Start(t, harness.Options{Config: text})
	c := h.Connect(h.TCP(), hostOptions(victimNQN))
	q, buf := h.Open(c, 1, 32), h.Buffer(c, mdts)
	culprit := h.Connect(h.TCP(), hostOptions(culpritNQN))
	w := &worker{c: culprit, q: h.Open(culprit, 1, 128), nsid: 2, buf: h.Buffer(culprit, mdts)}
	fill := func(q *host.Queue, nsid uint32, b []byte) {
		for at := 0; at < namespaceSize; at += mdts {
			h.Must(hosttest.Write(context.Background(), q, nsid, uint64(at/blockSize),
				mdts/blockSize, b, 0))
		}
		h.Must(hosttest.Flush(context.Background(), q, nsid))
	}
	fill(q, 1, buf)
	read := func() (l latencies) {
		ctx, cancel := context.WithTimeout(context.Background(), length)
		defer cancel()
		for i := 0; sleep(ctx, pace); i++ {
			block := uint64(i * 7919 % (namespaceSize / blockSize))
			began := time.Now()
			h.Must(hosttest.Read(context.Background(), q, 1, block, 1, buf[:blockSize]))
			l.note(time.Since(began))
		}
		return l
	}
	took, commands := map[string][]latencies{}, map[string]int{}
	for range rounds {
		took["alone"] = append(took["alone"], read())
		for _, k := range works {
			fill(w.q, 2, w.buf)
			ctx, cancel := context.WithCancel(context.Background())
			begun, ended := make(chan struct{}, 1), make(chan error, 1)
			go func() {
				ended <- w.run(ctx, &k, func(n int) {
					if commands[k.name] += n; n > 0 && len(begun) == 0 {
						begun <- struct{}{}
					}
				})
			}()
			<-begun
			took[k.name] = append(took[k.name], read())
			cancel()
			h.Must(<-ended)
		}
	}
	of := func(name string, percent int) time.Duration {
		var all []time.Duration
		for _, l := range took[name] {
			all = append(all, l.percentile(percent))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	const line = "%-17s  p50 %9v  p99 %9v  %d commands"
	t.Logf(line, "alone", of("alone", 50), of("alone", 99), 0)
	var errs []error
	for _, k := range works {
		t.Logf(line, k.name, of(k.name, 50), of(k.name, 99), commands[k.name])
		for _, p := range []int{50, 99} {
			alone := of("alone", p)
			if d := of(k.name, p); tooSlow(d, alone, of(reads, p)) {
				errs = append(errs, fmt.Errorf("%s: p%d %v", k.name, p, d))
			}
		}
	}
	testutil.Check(t, errors.Join(errs...))
}

// tooSlow reports whether a latency exceeds the one without a culprit by more than twice the excess
// beside reads, and by more than the tolerance for a busy machine.
func tooSlow(d, alone, besideReads time.Duration) bool {
	const tolerance = time.Millisecond
	return d > alone+2*max(besideReads-alone, 0)+tolerance
}
