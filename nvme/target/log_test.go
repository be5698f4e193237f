package target

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestLogUnderAttack: refused Connect commands leave a few lines, which are escaped, for any number
// of them. The rest is counted. The lines that operators must see, and the lines about hosts,
// appear in full (X08).
func TestLogUnderAttack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seconds = 2
		each := testutil.Rounds(500, 10_000)
		r, h, dev := onHanging(t, 1, 1)
		r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
		a := adminArgs("evil\n\x1b[31m%s" + strings.Repeat("x", 200))
		attack := func() {
			for range each {
				q := r.dial(0)
				r.status(q, a.command(), nvme.ConnectInvalidParameters)
				q.HangUp()
				r.queues = r.queues[:len(r.queues)-1]
			}
		}
		for range seconds {
			attack()
			operate(r, h, dev)
			time.Sleep(time.Second)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		log := r.log.String()
		for text, want := range map[string]int{
			"does not answer": seconds, "answers again": seconds, "I/O failed": 1,
			"controller created": seconds + 1, "controller removed": seconds,
			"keep alive timer expired":                2 * seconds, // and as the reason
			"log lines were dropped":                  1,
			`message="connect refused"`:               1,
			fmt.Sprintf("lines=%d ", seconds*each-10): 1, `evil\n\x1b[31m%s`: 20,
		} {
			n := strings.Count(log, text)
			testutil.True(t, n == want, "the log says %d times %q, want %d", n, text, want)
		}
		testutil.True(t, !strings.Contains(log, "\x1b"), "what a peer sends is not escaped")
		n := strings.Count(log, "level=WARN") + strings.Count(log, "level=INFO")
		testutil.True(t, n <= 50, "%d lines", n)
	})
}

// operate makes lines that operators must see: the device hangs and fails, and a host connects and
// is lost.
func operate(r *harness, h *host, dev *backendtest.Faulty) {
	r.t.Helper()
	dev.Fail(func(*backend.IO) error { return backend.ErrIO })
	r.do(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	dev.Fail(nil)
	other := r.connectHost(0)
	r.target.find(testSub).lookup(other.cntlid).expire()
	r.w.Settle()
	dev.Hold(nil)
	read := r.send(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.w.Advance(3 * time.Second)
	dev.Release()
	r.until("the device answers again",
		func() bool { return read.Done && r.target.Stats()[0].Ready })
}

// TestControllerHasOneLine: the end of a controller is one line, with the reason and the lifetime
// of the controller, for any number of queues.
func TestControllerHasOneLine(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	for want, end := range map[string]func(h *host){
		`reason="the connection of the admin queue has ended" duration=`: (*host).hangUp,
		`reason="keep alive timer expired after `: func(h *host) {
			r.target.find(testSub).lookup(h.cntlid).expire()
		},
		`reason="the host shut it down" duration=`: func(h *host) {
			r.ok(h.admin, propertySetCommand(nvme.PropertyCC,
				uint64(nvme.CCLinux|nvme.CCShutdownNormal)))
			h.hangUp()
		},
	} {
		h := r.connectHost(4)
		before := len(r.log.String())
		end(h)
		r.until("the controller is gone", func() bool { return len(r.target.Controllers()) == 0 })
		log := r.log.String()[before:]
		testutil.True(t, strings.Count(log, want) == 1 && strings.Count(log, "\n") <= 2 &&
			strings.Count(log, "controller removed") == 1, "no %s, or more than that:\n%s", want,
			log)
	}
}
