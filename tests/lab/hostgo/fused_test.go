package hostgo

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestCompareAndWrite increments a block concurrently on several queues. No increment is lost.
func TestCompareAndWrite(t *testing.T) {
	const queues, rounds = 4, 250
	tr, o := testTarget(t)
	c := connect(t, tr, o, queues+1)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	done := make(chan error)
	var bufs [queues][]byte
	for i := range queues {
		q := open(t, c, uint16(i+1), 32)
		buf := testutil.Value(c.Map(3 * block))(t)
		bufs[i] = buf
		if i == 0 {
			testutil.Must(t, hosttest.WriteZeroes(ctx, q, 1, 0, 1, 0))
		}
		go func() { done <- increments(ctx, q, buf, rounds) }()
	}
	for range queues {
		testutil.Check(t, <-done)
	}
	q := open(t, c, queues+1, 32)
	testutil.Must(t, hosttest.Read(ctx, q, 1, 0, 1, bufs[0][:block]))
	n := binary.LittleEndian.Uint64(bufs[0])
	testutil.True(t, n == queues*rounds, "%d increments, %d were counted", queues*rounds, n)
}

// increments increments block 0 rounds times.
func increments(ctx context.Context, q *host.Queue, buf []byte, rounds int) error {
	now, next := buf[:block], buf[block:2*block]
	for range rounds {
		for {
			if err := hosttest.Read(ctx, q, 1, 0, 1, now); err != nil {
				return err
			}
			binary.LittleEndian.PutUint64(next, binary.LittleEndian.Uint64(now)+1)
			st, err := hosttest.CompareAndWrite(ctx, q, 1, 0, 1, now, next)
			if err != nil {
				return err
			}
			if st[0].OK() && st[1].OK() {
				break
			}
			if st[0].Code() != nvme.CompareFailure || st[1].Code() != nvme.AbortedFailedFused {
				return errors.Join(fmt.Errorf("pair: %w", st[0]), st[1])
			}
		}
	}
	return nil
}
