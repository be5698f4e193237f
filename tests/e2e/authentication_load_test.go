package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
		fmt.Println(capped(err.Error()))
		return 1
	}
	return 0
}

// capped is the beginning and the end of what many hosts say.
func capped(s string) string {
	const most = 2 << 10
	if len(s) <= 2*most {
		return s
	}
	return fmt.Sprintf("%s\n... %d bytes ...\n%s", s[:most], len(s)-2*most, s[len(s)-most:])
}

// otherTarget makes a process of TestManyAuthenticate the target that its victim does not use: it
// prints its address, and runs until its input ends.
const otherTarget = "NVMF_E2E_OTHER_TARGET"

// hostsOf makes a target with policies for n hosts, which have this key.
func hostsOf(t *testing.T, key *auth.Key, n int) *harness {
	h := newHarness(t, options{reactors: 1})
	h.log.Limit(16 << 10) // it is printed when the test fails
	for i := range n {
		h.target.SetHostPolicy(manyHostNQN(i), &auth.Policy{Keys: []*auth.Key{key}})
	}
	return h
}

// startOther starts the other target, and returns its address.
func startOther(t *testing.T, key *auth.Key, n int) string {
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	c.Env = append(os.Environ(), otherTarget+"="+key.Reveal(), fmt.Sprintf("%s=%d", hostsCount, n))
	in, err := c.StdinPipe()
	out, err2 := c.StdoutPipe()
	if err = errors.Join(err, err2, c.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if _, err := io.Copy(io.Discard, out); err != nil {
			t.Error(err)
		}
		if err := c.Wait(); err != nil {
			t.Errorf("the other target: %v", err)
		}
	})
	var addr string
	if _, err := fmt.Fscanln(out, &addr); err != nil {
		t.Fatal(err)
	}
	return addr
}

// runOther is the other target.
func runOther(t *testing.T, text string) {
	key, err := auth.ParseKey(text)
	var n int
	_, err2 := fmt.Sscan(os.Getenv(hostsCount), &n)
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	h := hostsOf(t, key, n)
	fmt.Println(h.transport(plain[0]).(host.TCP).Addr)
	_, err = io.Copy(io.Discard, os.Stdin)
	h.must(err)
}

// victim reads while others authenticate.
type victim struct {
	*harness
	q   *host.Queue
	buf [512]byte
}

// p99 is that of reads until enough says so.
func (v *victim) p99(enough func(reads int) bool) time.Duration {
	var took []time.Duration
	for !enough(len(took)) {
		start := time.Now()
		v.must(v.q.Read(context.Background(), 1, 0, 1, v.buf[:]))
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// beside is the p99 while n hosts authenticate to the target at addr.
func (v *victim) beside(addr string, key *auth.Key, n int) (p99 time.Duration) {
	var out bytes.Buffer
	child := exec.Command(os.Args[0])
	child.Stdout, child.Stderr = &out, &out
	child.Env = append(os.Environ(), hostsKey+"="+key.Reveal(), hostsAddr+"="+addr,
		fmt.Sprintf("%s=%d", hostsCount, n))
	start := time.Now()
	v.must(child.Start())
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	var err error
	reads := 0
	p99 = v.p99(func(n int) bool {
		reads = n
		select {
		case err = <-ended:
			return n > 0
		default:
			return false
		}
	})
	if err != nil {
		v.t.Fatalf("%v\n%s", err, capped(out.String()))
	}
	v.t.Logf("%d hosts in %v, %d reads", n, time.Since(start).Round(time.Millisecond), reads)
	return p99
}

// TestManyAuthenticate: many hosts authenticate at once while another one reads. A thousand of them
// at most double the 99th percentile of what its commands take. They compute on the same
// processors, so that is compared with what it is while they authenticate to another target, in
// another process.
func TestManyAuthenticate(t *testing.T) {
	if text := os.Getenv(otherTarget); text != "" {
		runOther(t, text)
		return
	}
	hosts, rounds, quietReads := 32, 1, 1000
	if full() {
		hosts, rounds, quietReads = 1000, 7, 10_000
	}
	key := newKey(t, 32, auth.SHA256)
	other := startOther(t, key, hosts)
	h := hostsOf(t, key, hosts)
	v := victim{harness: h, q: h.open(h.connect(plain[0]), 1, 9)}
	addr := h.transport(plain[0]).(host.TCP).Addr.String()
	var ratios []float64
	for range rounds {
		quiet := v.p99(func(n int) bool { return n >= quietReads })
		control := v.beside(other, key, hosts)
		busy := v.beside(addr, key, hosts)
		ratios = append(ratios, float64(busy)/float64(control))
		t.Logf("p99 %v; hosts of the other target %v, of the same %v", quiet, control, busy)
	}
	slices.Sort(ratios)
	median := ratios[len(ratios)/2]
	t.Logf("ratios to those of the other target %.2f, median %.2f", ratios, median)
	if full() && median > 2 {
		t.Error("connected hosts notice that others authenticate")
	}
}
