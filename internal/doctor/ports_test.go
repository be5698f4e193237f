package doctor

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestPortCounters: counters in both directories are read, and no other files.
func TestPortCounters(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"mlx5_0/ports/1/counters/port_xmit_wait":        "12\n",
		"mlx5_0/ports/1/hw_counters/np_cnp_sent":        "7\n",
		"mlx5_0/ports/1/hw_counters/lifespan":           "10\n",
		"mlx5_0/ports/1/counters/port_rcv_data":         "N/A (no PMA)\n",
		"rxe0/ports/1/hw_counters/out_of_seq_request":   "18446744073709551615\n",
		"rxe0/ports/1/gid_attrs/ndevs/0":                "1\n",
		"mlx5_0/ports/1/my_counters/port_multicast_rcv": "9\n",
	} {
		name = filepath.Join(dir, name)
		testutil.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		testutil.Must(t, os.WriteFile(name, []byte(text), 0o644))
	}
	want := []observed.PortCounter{
		{Device: "mlx5_0", Port: "1", Counter: "port_xmit_wait", Value: 12},
		{Device: "mlx5_0", Port: "1", Counter: "np_cnp_sent", Value: 7},
		{Device: "rxe0", Port: "1", Counter: "out_of_seq_request", Value: 1<<64 - 1},
	}
	testutil.EqualSlices(t, readPortCounters(dir), want, "")
}

// TestHungPort: firmware that does not answer costs a scrape its timeout, and one goroutine in
// total.
func TestHungPort(t *testing.T) {
	dir := t.TempDir()
	counters := Ports(dir)
	name := filepath.Join(dir, "mlx5_0/ports/1/hw_counters/np_cnp_sent")
	testutil.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	if err := unix.Mkfifo(name, 0o600); err != nil { // nobody writes yet
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	var scrapes sync.WaitGroup
	for range 4 {
		scrapes.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			got := counters(ctx)
			testutil.True(t, got == nil, "%+v", got)
		})
	}
	scrapes.Wait()
	testutil.Until(t, "one goroutine waits", func() bool { // the goroutines of scrapes return
		return runtime.NumGoroutine() <= before+1
	})
	answer := testutil.Value(os.OpenFile(name, os.O_WRONLY, 0))(t)
	testutil.Must(t, os.Remove(name))
	testutil.Must(t, os.WriteFile(name, []byte("7\n"), 0o600))
	testutil.Must(t, answer.Close())
	testutil.Until(t, "it answers", func() bool { return len(counters(t.Context())) == 1 })
}
