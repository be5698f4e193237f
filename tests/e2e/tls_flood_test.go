package e2e

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

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
