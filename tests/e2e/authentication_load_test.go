package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// hostsKey, hostsAddr and hostsCount make a process of the test the hosts of TestManyAuthenticate.
const (
	hostsKey   = "NVMF_E2E_HOSTS_KEY"
	hostsAddr  = "NVMF_E2E_HOSTS_ADDR"
	hostsCount = "NVMF_E2E_HOSTS_COUNT"
)

func manyHostNQN(i int) string { return fmt.Sprint(hostNQN, i) }

// authenticatingHosts connects hosts at once, in a process of lower priority: they would be other
// machines, whose computing takes nothing from the target.
func authenticatingHosts(text string) int {
	key, err := auth.ParseKey(text)
	addr, err2 := netip.ParseAddrPort(os.Getenv(hostsAddr))
	var n int
	_, err3 := fmt.Sscan(os.Getenv(hostsCount), &n)
	err = errors.Join(err, err2, err3, unix.Setpriority(unix.PRIO_PROCESS, 0, 19))
	results := make(chan error, n)
	for i := range n {
		o := host.Options{
			HostNQN: manyHostNQN(i), HostID: [16]byte{1, byte(i >> 8), byte(i)}, SubNQN: subNQN,
			Key: key, Timeout: timeout,
		}
		go func() {
			c, err := host.Connect(context.Background(), host.TCP{Addr: addr}, o)
			if err == nil {
				defer c.Close()
			}
			results <- err
		}()
	}
	for range n {
		err = errors.Join(err, <-results)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// TestManyAuthenticate: many hosts authenticate at once while another one reads. A thousand of them
// at most double the 99th percentile of what its commands take.
func TestManyAuthenticate(t *testing.T) {
	hosts, rounds, quietReads := 32, 1, 1000
	if full() {
		hosts, rounds, quietReads = 1000, 5, 10_000
	}
	h := newHarness(t, options{reactors: 1})
	v := plain[0]
	key := newKey(t, 32, auth.SHA256)
	for i := range hosts {
		h.target.SetHostPolicy(manyHostNQN(i), &auth.Policy{Keys: []*auth.Key{key}})
	}
	q := h.open(h.connect(v), 1, 9)
	b := make([]byte, 512)
	// p99 is that of reads until enough says so.
	p99 := func(enough func(reads int) bool) (time.Duration, int) {
		var took []time.Duration
		for !enough(len(took)) {
			start := time.Now()
			h.must(q.Read(context.Background(), 1, 0, 1, b))
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		return took[len(took)*99/100], len(took)
	}
	var ratios []float64
	for range rounds {
		quiet, _ := p99(func(n int) bool { return n >= quietReads })
		var out bytes.Buffer
		child := exec.Command(os.Args[0])
		child.Stdout, child.Stderr = &out, &out
		child.Env = append(os.Environ(), hostsKey+"="+key.Reveal(),
			hostsAddr+"="+h.transport(v).(host.TCP).Addr.String(),
			fmt.Sprintf("%s=%d", hostsCount, hosts))
		start := time.Now()
		h.must(child.Start())
		ended := make(chan error, 1)
		go func() { ended <- child.Wait() }()
		var err error
		busy, n := p99(func(n int) bool {
			select {
			case err = <-ended:
				return n > 0
			default:
				return false
			}
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
		ratios = append(ratios, float64(busy)/float64(quiet))
		t.Logf("%d hosts in %v; p99 of %d reads %v, before that %v", hosts, time.Since(start), n,
			busy, quiet)
	}
	slices.Sort(ratios)
	median := ratios[len(ratios)/2]
	t.Logf("ratios %.2f, median %.2f", ratios, median)
	if full() && median > 2 {
		t.Error("connected hosts notice that others authenticate")
	}
}
