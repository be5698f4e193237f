package target

import (
	"context"
	"fmt"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

func (r *harness) askForResets(port func(uint16) bool) (asked []*ResetRequest) {
	r.t.Helper()
	r.during(func() (err error) {
		asked, err = r.target.AskForResets(context.Background(), port)
		return err
	})
	return asked
}

func isGone(q *ResetRequest) bool {
	select {
	case <-q.Gone():
		return true
	default:
		return false
	}
}

// TestAskForResets: hosts of these ports get the event once, as soon as they have a request for it,
// with any events enabled. Discovery controllers and disabled controllers do not get it.
func TestAskForResets(t *testing.T) {
	r := newHarness(t, 2, ramSubsystem(t, 1))
	other := info(nvme.TransportTCP)
	other.PortID = 7
	h, elsewhere := r.connectHost(1), r.connectHostInfo(0, other)
	disabled := r.connectHost(0)
	r.ok(disabled.admin, propertySetCommand(nvme.PropertyCC, 0))
	discovery := r.connectHost(0, func(a *connectArgs) { a.sub = nvme.DiscoveryNQN })
	aer := func(h *host) *fabrictest.Command {
		return r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	}
	others := []*fabrictest.Command{aer(elsewhere), aer(discovery)}

	asked := r.askForResets(func(id uint16) bool { return id != 7 })
	r.w.Settle()
	testutil.MustTrue(t, len(asked) == 1 && !asked[0].Begun() && !isGone(asked[0]),
		"%d controllers were asked", len(asked))
	for i, c := range others {
		if c.Done {
			t.Errorf("event %#x of another controller, %d", c.CQE.DW0(), i)
		}
	}
	event := aer(h) // it has waited for a request
	r.w.Settle()
	if !event.Done || nvme.AsyncEvent(event.CQE.DW0()) != nvme.AsyncPersistentError {
		t.Fatalf("event %v %#x", event.Done, event.CQE.DW0())
	}
	testutil.True(t, !aer(h).Done, "the event came again")
	r.ok(h.io[0], readAt(0)) // the host decides when

	h.io[0].HangUp()
	r.w.Settle()
	testutil.True(t, asked[0].Begun(), "the end of a queue does not begin a reset")
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
	if r.w.Settle(); h.csts().RDY() || isGone(asked[0]) {
		t.Error("the controller is not reset, or gone already")
	}
	h.admin.HangUp()
	r.w.Settle()
	testutil.True(t, isGone(asked[0]), "the controller is not gone")
}

// TestPauseAll: the devices have no more commands of hosts, and new commands wait. A host that
// resets drops its commands. The commands of other hosts go on.
func TestPauseAll(t *testing.T) {
	sub, dev := faultySubsystem(t)
	r := newHarness(t, 1, sub)
	h, stays := r.connectHost(1), r.connectHost(1)
	dev.Hold(nil)
	read := r.send(h.io[0], readAt(0))
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })
	pauseAll := func(within time.Duration) (release func(), err error) {
		r.during(func() error {
			release, err = r.target.PauseAll(within)
			return nil
		})
		return release, err
	}
	// On a busy machine the time is over before anything was waited for, with another error.
	if _, err := pauseAll(time.Millisecond); err == nil || r.target.Stats()[0].State == "paused" {
		t.Fatalf("%v, %+v", err, r.target.Stats()[0])
	}
	dev.Release()
	r.until("the command completes", func() bool { return read.Done })

	release, err := pauseAll(time.Hour)
	testutil.MustTrue(t, err == nil && r.target.Stats()[0].State == "paused", "%v", err)
	lost, waits := r.send(h.io[0], readAt(0)), r.send(stays.io[0], readAt(0))
	r.w.Settle()
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
	if r.w.Settle(); h.csts().RDY() || waits.Done {
		t.Errorf("ready %v, done %v", h.csts().RDY(), waits.Done)
	}
	r.during(func() error {
		release()
		return nil
	})
	r.until("the command goes on", func() bool { return waits.Done })
	if !waits.CQE.Status().OK() || lost.Done && lost.CQE.Status().OK() ||
		r.target.Stats()[0].State == "paused" {
		t.Errorf("%v, %v, %+v", waits.CQE.Status(), lost.CQE.Status(), r.target.Stats()[0])
	}
	// A pause that was there before stays.
	r.pause()
	release, err = pauseAll(time.Hour)
	testutil.MustTrue(t, err == nil, "%v", err)
	release()
	testutil.True(t, r.target.Stats()[0].State == "paused", "the pause has ended")
	r.resume()
}

// TestPauseAllIsBounded: the goroutines that pause all namespaces, and their posts to a reactor, do
// not grow with the number of namespaces.
func TestPauseAllIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHarness(t, 1, ramSubsystem(t, 2*namespaces.PausedAtOnce))
		h := r.connectHost(1)
		// A read opens a channel, which a pause closes.
		for nsid := range uint32(2 * namespaces.PausedAtOnce) {
			r.ok(h.io[0], rw(nvme.NVMRead, nsid+1, 0, 1, make([]byte, 512)))
		}
		most, ended := 0, make(chan error, 1)
		go func() {
			pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels("test", t.Name())))
			release, err := r.target.PauseAll(time.Hour)
			if err == nil {
				release()
			}
			ended <- err
		}()
		for len(ended) == 0 {
			synctest.Wait()
			most = max(most, labelled(t, t.Name()))
			r.w.Settle()
		}
		testutil.Equal(t, <-ended, nil, "")
		testutil.Equal(t, most, 1+namespaces.PausedAtOnce, "goroutines")
	})
}

// labelled returns the number of goroutines with this label, which goroutines inherit.
func labelled(t *testing.T, label string) (count int) {
	t.Helper()
	var profile strings.Builder
	testutil.Must(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
	n := 0
	for line := range strings.Lines(profile.String()) {
		_, _ = fmt.Sscanf(line, "%d @", &n)
		if strings.HasPrefix(line, "# labels:") && strings.Contains(line, strconv.Quote(label)) {
			count += n
		}
	}
	return count
}
