package tcp

import (
	"errors"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// The queue waits for the response of an executing command, but not forever.
func TestDisconnectWaitsForExecuting(t *testing.T) {
	for _, completes := range []bool{true, false} {
		h, c := joined(t, options{hold: true}, pdu.Params{}, 8)
		h.send(c.held(nvme.NVMRead, 1, 0, 4096))
		h.queue().Disconnect(errors.New("test"))
		h.turn()
		testutil.True(t, h.d.Closed.Load() == 0 && len(h.recv()) == 0, "the end did not wait")
		if completes {
			h.d.Release()
			h.turn()
			if got, want := len(h.recv()), pdu.DataSize+4096+pdu.CapsuleRespSize; got != want {
				t.Errorf("%d bytes arrived, want %d", got, want)
			}
		} else {
			h.loop.advance(2 * time.Second)
			h.turn()
		}
		testutil.Equal(t, h.d.Closed.Load(), 1, "the session is still open")
		h.close()
	}
	h, c := joined(t, options{hold: true}, pdu.Params{}, 8)
	h.queue().setAdmin(true)
	h.send(c.held(nvme.NVMRead, 1, 0, 4096))
	h.queue().Disconnect(errors.New("test"))
	h.turn()
	testutil.Equal(t, h.d.Closed.Load(), 1, "an admin queue waits for what may never complete")
	h.close()
}
