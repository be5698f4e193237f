package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

func policyTLS(p fabric.TLSPolicy) func(*tcp.Config) {
	return func(c *tcp.Config) {
		RequireTLS(c)
		c.TLS = func(uint16) fabric.TLSPolicy { return p }
	}
}

// TestTLSKeyRemoved: a handshake is useless once its key is no longer valid.
func TestTLSKeyRemoved(t *testing.T) {
	NeedTLS(t)
	h := New(t, Options{TCP: func(c *tcp.Config) {
		RequireTLS(c)
		c.KeyCounts = func(nqn string, k *auth.TLSKey) bool {
			testutil.True(t, nqn == HostNQN && k.Equal(TLSKey), "the key of %s is asked for", nqn)
			return false
		}
	}})
	v := Variant{TCP: host.TCP{PSK: tlsPSK(TLSKey)}}
	_, err := host.Connect(t.Context(), h.Transport(v), v.HostOptions())
	var st nvme.Status
	testutil.True(t, errors.As(err, &st) && st.Code() == nvme.ConnectInvalidParameters,
		"the host is told: %v", err)
	testutil.True(t, strings.Contains(h.Log.String(), "has changed since the TLS handshake"),
		"the log does not say why")
}

// TestTLSPolicies: the hosts that may connect, and the log lines about others.
func TestTLSPolicies(t *testing.T) {
	t.Parallel()
	NeedTLS(t)
	type psk = func(host, sub string) (*auth.TLSPSK, error)
	all := func(change func(psks []auth.TLSPSK) *auth.TLSPSK) psk {
		return func(host, sub string) (*auth.TLSPSK, error) {
			psks, err := TLSKey.PSKs(host, sub)
			return change(psks), err
		}
	}
	const off, allowed, required = fabric.TLSOff, fabric.TLSAllowed, fabric.TLSRequired
	for _, tc := range []struct {
		name   string
		policy fabric.TLSPolicy
		psk    psk
		log    string // "": the host connects
	}{
		{"plain, off", off, nil, ""},
		{"plain, allowed", allowed, nil, ""},
		{"plain, required", required, nil, "the host does not use TLS"},
		{"TLS, off", off, tlsPSK(TLSKey), "which is off at this listener"},
		{"TLS, allowed", allowed, tlsPSK(TLSKey), ""},
		{"TLS, required", required, tlsPSK(TLSKey), ""},
		{"SHA-384", required, tlsPSK(tlsKey384), ""},
		{"another key", required, tlsPSK(newTLSKey(auth.SHA256)), "no host has a key with the PSK"},
		{"another key, identity 0", required, all(func(psks []auth.TLSPSK) *auth.TLSPSK {
			psks[1].Secret = psks[0].Secret
			return &psks[1]
		}), "the client has another key"},
		{"identity 0", required, all(func(p []auth.TLSPSK) *auth.TLSPSK { return &p[1] }), ""},
		{"compat", required, all(func(p []auth.TLSPSK) *auth.TLSPSK { return &p[2] }), ""},
		{"another host", required, func(_, sub string) (*auth.TLSPSK, error) {
			return tlsPSK(TLSKey)(HostNQN2, sub)
		}, "the PSK of TLS is that of another host"},
		{"another subsystem", required, func(host, _ string) (*auth.TLSPSK, error) {
			return tlsPSK(TLSKey)(host, OtherSub)
		}, "the PSK of TLS is for another subsystem"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := New(t, Options{TCP: policyTLS(tc.policy)})
			v := Variant{TCP: host.TCP{PSK: tc.psk}}
			c, err := host.Connect(testutil.Context(t), h.Transport(v), v.HostOptions())
			if err == nil {
				c.Close()
			}
			testutil.True(t, (err == nil) == (tc.log == ""), "connected: %v", err)
			if tc.log != "" {
				h.Until("the log says why", func() bool {
					return strings.Contains(h.Log.String(), tc.log)
				})
			}
			cipher := "cipher=TLS_AES_128_GCM_SHA256"
			if tc.name == "SHA-384" {
				cipher = "cipher=TLS_AES_256_GCM_SHA384"
			}
			testutil.True(t, tc.log != "" || tc.psk == nil || strings.Contains(h.Log.String(),
				cipher), "the log does not say %q", cipher)
			testutil.True(t, tc.name != "compat" || strings.Contains(h.Log.String(),
				"labels=compat"), "the log does not say which labels the host uses")
		})
	}
}

// recordHello returns the ClientHello of a host.
func recordHello(t *testing.T, h *Env) []byte {
	t.Helper()
	l := testutil.Value(net.Listen("tcp", "127.0.0.1:0"))(h.T)
	defer l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = host.DialQueue(ctx, host.TCP{
			Addr: netip.MustParseAddrPort(l.Addr().String()), PSK: tlsPSK(TLSKey),
		}, 0, 32, 0)
	}()
	c := testutil.Value(l.Accept())(h.T)
	defer c.Close()
	b := make([]byte, 4<<10)
	n := testutil.Value(c.Read(b))(h.T)
	if n < 5 || n != 5+int(binary.BigEndian.Uint16(b[3:])) {
		t.Fatalf("no ClientHello: % x", b[:n])
	}
	return b[:n]
}

// costRounds is the number of rounds of TestTLSCost.
const costRounds = 5

// TestTLSCost measures reads with and without TLS in turns, on one reactor, and AES-GCM alone
// beside them: IOPS, and processor time of the target. Plain reads plus AES-GCM are the minimum
// time of reads with TLS. It reports the least, the median and the largest ratio of the rounds, and
// fails if the median is too far from that minimum.
func TestTLSCost(t *testing.T) {
	testutil.Soak(t, "it measures rates and processor time")
	NeedTLS(t)
	h := New(t, Options{TCP: func(c *tcp.Config) {
		RequireTLS(c)
		c.TLS = func(uint16) fabric.TLSPolicy { return fabric.TLSAllowed }
	}})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var queues [2]*host.Queue
	var buf [2][]byte
	for i, v := range []Variant{Variants[0], {TCP: host.TCP{PSK: tlsPSK(TLSKey)}}} {
		c := h.Dial(v, func(o *host.Options) { o.HostID[1] = byte(i) })
		queues[i], buf[i] = h.Open(c, 1, 33), h.Buffer(c, 32*128<<10)
	}
	for _, size := range []int{4 << 10, 128 << 10} {
		n := 1 << 30 / size
		if size == 4<<10 {
			n /= 4
		}
		seal, want := newSealer(t, size), 0.75
		if size == 4<<10 { // the cost of a command differs more from run to run
			want = 0.6
		}
		var iops, cpu, share ratios
		for round := range costRounds + 1 {
			var took, used [2]float64
			for i, q := range queues {
				before, start := targetTime(t), time.Now()
				h.Must(pipeline(q, n, func(op *host.Op, k int) {
					op.Read(1, uint64(k%256*size/512), uint32(size/512), buf[i][k%32*size:][:size])
				}))
				took[i] = time.Since(start).Seconds() * 1e6 / float64(n)
				used[i] = (targetTime(t) - before) * 1e6 / float64(n)
			}
			aead := seal(n)
			t.Logf("%d bytes: plain %.0f/s, %.2f us of the target; TLS %.0f/s, %.2f us; "+
				"AES-GCM alone %.2f us", size, 1e6/took[0], used[0], 1e6/took[1], used[1], aead)
			if round > 0 { // the first one is a warm-up
				iops, cpu = append(iops, took[0]/took[1]), append(cpu, used[1]/used[0])
				share = append(share, (used[0]+aead)/used[1])
			}
		}
		t.Logf("%d bytes, IOPS to plain: %s; target's time to plain: %s; plain and AES-GCM to "+
			"target's time: %s", size, iops.sorted(), cpu.sorted(), share.sorted())
		if median := share[len(share)/2]; median < want {
			t.Errorf("%d bytes: plain and AES-GCM are %.2f of the time with TLS, %.2f is wanted",
				size, median, want)
		}
	}
}

// ratios of rounds.
type ratios []float64

// sorted sorts the ratios and formats the least, the median and the largest.
func (r ratios) sorted() string {
	slices.Sort(r)
	return fmt.Sprintf("%.2f %.2f %.2f", r[0], r[len(r)/2], r[len(r)-1])
}

// newSealer returns a function that seals size bytes n times with AES-GCM, as full records, and
// returns the processor time of one time, in µs.
func newSealer(t *testing.T, size int) func(n int) float64 {
	t.Helper()
	r := testutil.Value(mem.Map("AES-GCM alone", 4096+2*size+1024))(t)
	t.Cleanup(func() { _ = r.Unmap() })
	a := testutil.Value(openssl.NewAEAD(true, make([]byte, 16), make([]byte, 12)))(t)
	t.Cleanup(a.Free)
	v := openssl.Vectors(r.Bytes()[:16])
	sys.SetIovec(&v[0], r.Bytes()[4096:][:size])
	return func(n int) float64 {
		before := processorTime(t, unix.RUSAGE_THREAD)
		for i := range n {
			_, ok := a.Seal(r.Bytes()[4096+size:], uint64(i), v, 0, size, 16<<10, 23)
			testutil.MustTrue(t, ok, "not sealed")
		}
		return (processorTime(t, unix.RUSAGE_THREAD) - before) * 1e6 / float64(n)
	}
}

// targetTime returns the processor time of all threads but this one, in seconds.
func targetTime(t *testing.T) float64 {
	t.Helper()
	return processorTime(t, unix.RUSAGE_SELF) - processorTime(t, unix.RUSAGE_THREAD)
}

func processorTime(t *testing.T, who int) float64 {
	t.Helper()
	var u unix.Rusage
	testutil.Must(t, unix.Getrusage(who, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// floodKey in the environment makes a process of this test a flood. Its value has the port, the
// number of addresses and the ClientHello.
const floodKey = "NVMF_E2E_FLOOD"

// floodHellos connects from one address of 127/8 after another and sends a ClientHello, or nothing
// if it is empty, until its input ends. It keeps a few hundred connections open.
func floodHellos(arg string) int {
	var port, addresses int
	var text string
	_, err := fmt.Sscan(strings.ReplaceAll(arg, ",", " "), &port, &addresses, &text)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	hello, _ := hex.DecodeString(strings.TrimPrefix(text, "-"))
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}()
	var ring [256]int
	for n := 0; ; n++ {
		if old := ring[n%len(ring)]; old != 0 {
			_ = unix.Close(old)
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		i := n % addresses
		from := [4]byte{127, byte(1 + i>>16), byte(i >> 8), byte(i)}
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		_ = unix.Bind(fd, &unix.SockaddrInet4{Addr: from})
		_ = unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: port})
		ring[n%len(ring)] = fd
		// Older ones are connected by now, unless the backlog is full.
		if before := ring[(n+len(ring)-8)%len(ring)]; before != 0 && len(hello) > 0 {
			_, _ = unix.Write(before, hello)
		}
	}
}

// TestHelloFlood: beside a flood of ClientHellos with wrong keys from many addresses, new hosts can
// connect.
func TestHelloFlood(t *testing.T) {
	testutil.Soak(t, "it depends on how fast the machine is")
	NeedTLS(t)
	for _, addresses := range []int{1000, 60_000} {
		t.Run(fmt.Sprint(addresses, " addresses"), func(t *testing.T) {
			h := New(t, Options{TCP: RequireTLS})
			hello := bytes.Clone(recordHello(t, h))
			hello[20]++
			port := netip.MustParseAddrPort(h.Addr(nvme.TransportTCP).String()).Port()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(),
				fmt.Sprintf("%s=%d,%d,-%x", floodKey, port, addresses, hello))
			in, err := cmd.StdinPipe()
			h.Must(err)
			h.Must(cmd.Start())
			defer func() {
				_ = in.Close()
				_ = cmd.Wait()
			}()
			began, before := time.Now(), h.Server.Transport(nvme.TransportTCP).Usage()
			time.Sleep(2 * time.Second)
			connected := 0
			for i := range 24 {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				c, err := host.Connect(ctx, host.TCP{
					Addr: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port),
					PSK:  tlsPSK(TLSKey), Source: netip.AddrFrom4([4]byte{127, 99, 0, byte(1 + i)}),
				}, Variant{}.HostOptions())
				cancel()
				if err != nil {
					t.Logf("host %d: %v", i, err)
					continue
				}
				connected++
				c.Close()
			}
			u := h.Server.Transport(nvme.TransportTCP).Usage()
			took := time.Since(began).Seconds()
			t.Logf("%d of 24 connect; a second %.0f evicted, %.0f refused, %.0f of them out of "+
				"turn; %d handshakes failed",
				connected, float64(u.Evicted-before.Evicted)/took,
				float64(u.Refused-before.Refused)/took, float64(u.OutOfTurn-before.OutOfTurn)/took,
				u.FailedHandshakes-before.FailedHandshakes)
			testutil.True(t, connected >= 23, "%d of 24 hosts connect", connected)
		})
	}
}
