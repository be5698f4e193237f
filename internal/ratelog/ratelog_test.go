package ratelog

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

var (
	refused = &event.Kind{Level: slog.LevelWarn, Message: "refused", Refusal: true}
	created = &event.Kind{Message: "created"}
)

// addr is the n-th address.
func addr(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}),
		uint16(n))
}

// lines counts the lines of a log that contain all of these texts.
func lines(log *testutil.Log, texts ...string) (n int) {
	for line := range strings.Lines(log.String()) {
		all := true
		for _, text := range texts {
			all = all && strings.Contains(line, text)
		}
		if all {
			n++
		}
	}
	return n
}

// TestAttack: of 10,000 lines a second few are passed on and all others are counted. Lines of other
// addresses and of other kinds appear.
func TestAttack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seconds = 35
		log := new(testutil.Log)
		l := New(log.Logger())
		for s := range seconds {
			for range 10_000 {
				l.Peer(addr(1)).Report(refused, "err", "attack")
			}
			l.Peer(addr(2)).Report(refused, "err", fmt.Sprint("second", s))
			l.Peer(addr(1)).Report(created, "cntlid", s)
			time.Sleep(time.Second)
		}
		time.Sleep(periodLength)
		synctest.Wait()
		passed := lines(log, "refused", "attack")
		testutil.True(t, passed >= peerLines && passed <= (seconds/10+1)*peerLines,
			"%d lines of the attack", passed)
		n := lines(log, "second")
		testutil.True(t, n == seconds, "%d of %d lines of another address", n, seconds)
		n = lines(log, "msg=created")
		testutil.True(t, n == seconds, "%d of %d lines of another kind", n, seconds)
		dropped, reports := 0, 0
		for line := range strings.Lines(log.String()) {
			if _, rest, ok := strings.Cut(line, `msg="log lines were dropped" lines=`); ok {
				var n int
				_, err := fmt.Sscanf(rest, "%d message=refused remote=10.0.0.1", &n)
				testutil.Equal(t, err, nil, "%q", rest)
				dropped += n
				reports++
			}
		}
		testutil.Equal(t, dropped+passed, seconds*10_000,
			"%d lines appear and %d are said to be dropped, of", passed, dropped)
		testutil.True(t, reports <= seconds/10+1, "%d reports", reports)
	})
}

// TestManyAddresses: lines and memory are bounded for any number of addresses.
func TestManyAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(testutil.Log)
		l := New(log.Logger())
		for i := range 100_000 {
			l.Peer(addr(i)).Report(refused)
		}
		n := len(l.now.kinds[refused].peers)
		testutil.True(t, n <= kindLines, "%d addresses are remembered", n)
		l.Peer(addr(7)).Report(event.KeepAliveExpired)
		time.Sleep(periodLength)
		synctest.Wait()
		testutil.Equal(t, lines(log, "msg=refused"), kindLines, "lines")
		testutil.Equal(t, lines(log, "timer expired"), 1, "a line of another kind is missing")
		testutil.True(t, lines(log, "dropped", fmt.Sprintf("lines=%d ", 100_000-kindLines)) == 1,
			"the log does not say how many were dropped: %s", log.String()[len(log.String())-200:])
		testutil.True(t, l.now == nil, "something is left after the period")
		l.Peer(addr(1)).Report(refused)
		testutil.Equal(t, lines(log, "msg=refused"), kindLines+1,
			"a line of the next period is missing")
	})
}

// TestNetworks: all addresses of an IPv6 /64 share the lines and refusals of one network.
func TestNetworks(t *testing.T) {
	log := new(testutil.Log)
	r := NewRecorder(log.Logger().Handler())
	l := New(slog.New(r))
	peer := func(n int) Peer {
		return l.Peer(netip.AddrPortFrom(netip.AddrFrom16([16]byte{
			0x20, 1, 0xD, 0xB8, 7: 1, 14: byte(n >> 8), 15: byte(n),
		}), 1))
	}
	l.Peer(addr(1)).Report(refused, "err", "other")
	for n := range maxRefusals {
		peer(n).Report(refused, "err", "attack")
	}
	l.Peer(addr(1)).Report(refused, "err", "other")
	testutil.Equal(t, lines(log, "refused", "attack"), peerLines, "lines of the attack")
	testutil.Equal(t, lines(log, "refused", "other"), 2, "of 2 lines of another address")
	testutil.Equal(t, len(r.Refusals()), peerRefusals+1, "refusals are remembered")
}

// TestMappedAddresses: an IPv4 address is the same on an IPv6 socket, and the port does not matter.
func TestMappedAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(testutil.Log)
		l := New(log.Logger())
		for i := range 2 * peerLines {
			a := addr(1).Addr()
			if i%2 == 0 {
				a = netip.AddrFrom16(a.As16())
			}
			l.Peer(netip.AddrPortFrom(a, uint16(i))).Report(refused)
		}
		time.Sleep(periodLength)
		synctest.Wait()
		testutil.Equal(t, lines(log, "msg=refused"), peerLines, "lines of one address")
	})
}
