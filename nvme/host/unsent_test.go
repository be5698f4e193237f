package host

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestCompletionsOfUnsentCommands completes commands by guessing their identifiers, without reading
// any. The commands must not pile up in the link.
func TestCompletionsOfUnsentCommands(t *testing.T) {
	fd, controller := socketPair(t)
	l := newTCPLink(fd, linkParams{qid: 1, size: 4, tolerant: true})
	q := newQueue(l, 1, 4, 8192)
	q.tolerant = true
	var op Op
	for range 10000 {
		op.Write(1, 0, 16, make([]byte, 8192), 0)
		cid, err := q.Submit(&op)
		if err == nil {
			var (
				resp pdu.CapsuleResp
				cqe  nvme.CQE
				done [4]Completion
			)
			cqe.Fill(0, 0, cid, nvme.Success)
			resp.Set(&l.p, &cqe)
			testutil.Value(unix.Write(controller, resp[:pdu.CapsuleRespSize]))(t)
			_, err = q.Poll(done[:])
		}
		if v, ok := errors.AsType[*Violation](err); ok {
			t.Log(v)
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("no violation")
}
