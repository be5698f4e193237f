package isolation

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// StoppedTarget checks that a target process that is stopped (SIGSTOP) for longer than the keep
// alive timeout of its hosts does not blame them for it. When it continues, no command has failed,
// no connection ends, and hosts read the data that they wrote.
func StoppedTarget(t *testing.T) {
	const kato, pause = 3 * time.Second, 3750 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	cmd, addr, err := startChild(ctx, asTarget)
	testutil.Must(t, err)
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // killed
	})
	e := &env{t: t, kind: kind{link: nvme.TransportTCP}}
	e.addrs = map[nvme.TransportType]netip.AddrPort{
		nvme.TransportTCP: netip.MustParseAddrPort(addr),
	}
	v := newVictimOver(e, e.link, 0, kato)
	_, all := v.run(few)
	e.must(cmd.Process.Signal(syscall.SIGSTOP))
	resumed := make(chan error, 1)
	time.AfterFunc(pause, func() {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err == nil && !strings.Contains(string(stat), ") T ") {
			err = fmt.Errorf("the target did not stand still: %s", stat)
		}
		resumed <- errors.Join(err, cmd.Process.Signal(syscall.SIGCONT))
	})
	_, o := v.run(window{length: pause + kato/2}) // the target checks twice per kato
	all.add(o)
	e.must(<-resumed)
	testutil.True(t, len(all.failed)+len(all.ended) == 0,
		"failed commands: %v; ended connections: %v", all.failed, all.ended)
	testutil.Check(t, v.sweep())
}
