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

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// hostsKey, hostsAddr and hostsCount make a process of the test the hosts of TestManyAuthenticate,
// which authenticate unless the key is noKey.
const (
	hostsKey   = "NVMF_E2E_HOSTS_KEY"
	hostsAddr  = "NVMF_E2E_HOSTS_ADDR"
	hostsCount = "NVMF_E2E_HOSTS_COUNT"
	noKey      = "none"
)

func manyHostNQN(i int) string { return fmt.Sprint(HostNQN, i) }

// authenticatingHosts connects hosts at once, in a process of lower priority: they stand for other
// machines, which would not share the CPUs of the target.
func authenticatingHosts(text string) int {
	key, err := auth.ParseKey(text)
	addr, err2 := netip.ParseAddrPort(os.Getenv(hostsAddr))
	var first, n int
	_, err3 := fmt.Sscan(os.Getenv(hostsCount), &n)
	if text == noKey {
		key, err, first = nil, nil, n
	}
	err = errors.Join(err, err2, err3, unix.Setpriority(unix.PRIO_PROCESS, 0, 19))
	results := make(chan error, n)
	for i := range n {
		o := host.Options{
			HostNQN: manyHostNQN(first + i), HostID: [16]byte{2, byte(i >> 8), byte(i)},
			SubNQN: SubNQN, Key: key, Timeout: testutil.Patience,
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

// capped returns the beginning and the end of the output of many hosts.
func capped(s string) string {
	const most = 2 << 10
	if len(s) <= 2*most {
		return s
	}
	return fmt.Sprintf("%s\n... %d bytes ...\n%s", s[:most], len(s)-2*most, s[len(s)-most:])
}

// targetKey makes a process of TestManyAuthenticate a target. It prints its address and runs until
// its input ends.
const targetKey = "NVMF_E2E_TARGET_KEY"

// startTarget starts a target for n hosts with this key in its own process, and returns its
// address.
func startTarget(t *testing.T, key *auth.Key, n int) string {
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	c.Env = append(os.Environ(), targetKey+"="+key.Reveal(), fmt.Sprintf("%s=%d", hostsCount, n))
	in, err := c.StdinPipe()
	out, err2 := c.StdoutPipe()
	testutil.Must(t, errors.Join(err, err2, c.Start()))
	t.Cleanup(func() {
		_ = in.Close()
		log, err := io.ReadAll(out)
		if err = errors.Join(err, c.Wait()); err != nil || t.Failed() {
			t.Errorf("a target: %v\n%s", err, log)
		}
	})
	var addr string
	testutil.Value(fmt.Fscanln(out, &addr))(t)
	return addr
}

// runTarget is the main function of such a process.
func runTarget(t *testing.T, text string) {
	key, err := auth.ParseKey(text)
	var n int
	_, err2 := fmt.Sscan(os.Getenv(hostsCount), &n)
	testutil.Must(t, errors.Join(err, err2))
	h := New(t, Options{Reactors: 1})
	h.Log.Limit(16 << 10) // printed when the test fails
	for i := range n {
		h.Target.SetHostPolicy(manyHostNQN(i), &auth.Policy{Keys: []*auth.Key{key}})
	}
	fmt.Println(h.Transport(Plain[0]).(host.TCP).Addr)
	testutil.Value(io.Copy(io.Discard, os.Stdin))(h.T)
	fmt.Println(h.Log)
}

// victim reads while others authenticate.
type victim struct {
	t   *testing.T
	q   *host.Queue
	buf [512]byte
}

// connectVictim connects the victim to the target at addr.
func connectVictim(t *testing.T, addr string) *victim {
	o := Plain[0].HostOptions()
	c := testutil.Value(
		host.Connect(testutil.Context(t), host.TCP{Addr: netip.MustParseAddrPort(addr)}, o))(t)
	t.Cleanup(c.Close)
	q := testutil.Value(c.OpenQueue(testutil.Context(t), 1, 9))(t)
	t.Cleanup(func() { _ = q.Close() })
	return &victim{t: t, q: q}
}

// reads measures the times of reads until enough returns true.
func (v *victim) reads(enough func(reads int) bool) (took []time.Duration) {
	for !enough(len(took)) {
		start := time.Now()
		testutil.Must(v.t, hosttest.Read(context.Background(), v.q, 1, 0, 1, v.buf[:]))
		took = append(took, time.Since(start))
	}
	return took
}

// beside measures the times of reads while n hosts connect to the target at addr.
func (v *victim) beside(addr, key string, n int) (took []time.Duration) {
	var out bytes.Buffer
	child := exec.Command(os.Args[0])
	child.Stdout, child.Stderr = &out, &out
	child.Env = append(os.Environ(), hostsKey+"="+key, hostsAddr+"="+addr,
		fmt.Sprintf("%s=%d", hostsCount, n))
	start := time.Now()
	testutil.Must(v.t, child.Start())
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	var err error
	took = v.reads(func(n int) bool {
		select {
		case err = <-ended:
			return n > 0
		default:
			return false
		}
	})
	testutil.MustTrue(v.t, err == nil, "%v\n%s", err, capped(out.String()))
	v.t.Logf("%d hosts in %v, %d reads", n, time.Since(start).Round(time.Millisecond), len(took))
	return took
}

func percentile99(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)*99/100]
}

// TestManyAuthenticate: many hosts authenticate at once while another one reads. With make soak the
// 99th percentile of its commands is at most twice the one beside as many hosts that connect
// without authentication. For comparison it is also measured beside hosts that authenticate to
// another target on the same processors. Hosts and targets are processes, so the scheduling of one
// runtime does not delay another.
func TestManyAuthenticate(t *testing.T) {
	t.Parallel()
	if text := os.Getenv(targetKey); text != "" {
		runTarget(t, text)
		return
	}
	hosts := testutil.Rounds(8, 1000)
	key := NewKey(t, 32, auth.SHA256)
	same := startTarget(t, key, hosts)
	v := connectVictim(t, same)
	v.beside(same, key.Reveal(), hosts)
	t.Run("latencies", func(t *testing.T) {
		testutil.Soak(t, "it measures the p99 of reads")
		const quietReads = 10_000
		other := startTarget(t, key, hosts)
		connectVictim(t, other) // an unknown address has a smaller budget
		var quiet, elsewhere, open, busy []time.Duration
		for range 7 {
			quiet = append(quiet, v.reads(func(n int) bool { return n >= quietReads })...)
			elsewhere = append(elsewhere, v.beside(other, key.Reveal(), hosts)...)
			open = append(open, v.beside(same, noKey, hosts)...)
			busy = append(busy, v.beside(same, key.Reveal(), hosts)...)
		}
		busy99, open99 := percentile99(busy), percentile99(open)
		ratio := float64(busy99) / float64(open99)
		t.Logf("p99 %v; hosts of the other target %v, of the same %v, without authentication %v: "+
			"%.2f", percentile99(quiet), percentile99(elsewhere), busy99, open99, ratio)
		testutil.True(t, ratio <= 2, "connected hosts notice that others authenticate")
	})
}
