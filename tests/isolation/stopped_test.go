package isolation

import (
	"context"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestStoppedTarget: a target whose process stands still for longer than the keep alive timeout of
// its hosts (SIGSTOP) does not blame them for it. When it continues, no command has failed, no
// connection ends, and what hosts read is what they wrote.
func TestStoppedTarget(t *testing.T) {
	const kato, pause = 2 * time.Second, 3 * time.Second
	ctx, cancel := context.WithCancel(context.Background())
	cmd, addr, err := startChild(ctx, asTarget)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
	})
	e := &env{t: t, link: nvme.TransportTCP, addrs: map[nvme.TransportType]netip.AddrPort{
		nvme.TransportTCP: netip.MustParseAddrPort(addr),
	}}
	v := newVictimOver(e, e.link, 0, kato)
	_, all := v.run(100 * time.Millisecond)
	e.must(cmd.Process.Signal(syscall.SIGSTOP))
	resumed := make(chan error, 1)
	time.AfterFunc(pause, func() { resumed <- cmd.Process.Signal(syscall.SIGCONT) })
	took, o := v.run(pause + 2*kato)
	all.add(o)
	e.must(<-resumed)
	if len(all.failed)+len(all.ended) > 0 {
		t.Errorf("failed commands: %v; ended connections: %v", all.failed, all.ended)
	}
	if took.worst() < pause/2 {
		t.Errorf("the target was never seen to stand still: %v", took.worst())
	}
	if err := v.sweep(); err != nil {
		t.Error(err)
	}
}
