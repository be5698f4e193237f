// Package hostgo tests nvme/host over rdma-core with a target elsewhere in the lab.
package hostgo

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/ibv"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

const (
	block     = 512
	regions   = 128      // of the namespace, each with one command at a time
	regionLen = 64 << 10 // bytes
	timeout   = 2 * time.Minute
)

const hostNQN = "nqn.2014-08.org.nvmexpress:uuid:12345678-0000-4000-8000-00000000000b"

// testTarget returns the parameters of the connection: NVMF_TEST_TARGET is ADDRESS:PORT, and
// NVMF_TEST_NQN a subsystem. Its namespace 1 has blocks of 512 bytes and at least 16 MiB, which are
// overwritten.
func testTarget(t *testing.T) (transport host.RDMA, o host.Options) {
	t.Helper()
	text, nqn := os.Getenv("NVMF_TEST_TARGET"), os.Getenv("NVMF_TEST_NQN")
	if text == "" || nqn == "" {
		t.Skip("needs a target over RDMA in NVMF_TEST_TARGET and NVMF_TEST_NQN, which " +
			"tests/lab/scenarios/host-go.sh starts")
	}
	addr := testutil.Value(netip.ParseAddrPort(text))(t)
	o = host.Options{HostNQN: hostNQN, HostID: [16]byte{1}, SubNQN: nqn, KATO: timeout}
	return host.RDMA{Provider: ibv.New(), Addr: addr}, o
}

// connect connects and requests a number of I/O queues.
func connect(t *testing.T, tr host.RDMA, o host.Options, queues int) *host.Controller {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c := testutil.Value(host.Connect(ctx, tr, o))(t)
	t.Cleanup(c.Close)
	n, err := c.SetQueueCount(ctx, queues)
	testutil.MustTrue(t, err == nil && n >= queues, "%d queues: %v", n, err)
	return c
}

func open(t *testing.T, c *host.Controller, qid uint16, size int) *host.Queue {
	t.Helper()
	q := testutil.Value(c.OpenQueue(context.Background(), qid, size))(t)
	t.Cleanup(func() { testutil.Equal(t, q.Close(), nil, "close queue %d", qid) })
	return q
}

func TestSizes(t *testing.T) {
	tr, o := testTarget(t)
	c := connect(t, tr, o, 4)
	q := open(t, c, 1, 32)
	largest := 1 << 20
	if c.MaxTransfer() > 0 {
		largest = min(largest, c.MaxTransfer())
	}
	buf := testutil.Value(c.Map(2 * largest))(t)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	random := rand.NewChaCha8([32]byte{})
	for n := block; n <= largest; n *= 2 {
		for _, size := range []int{n, min(n+block, largest)} {
			data, back := buf[:size], buf[largest:largest+size]
			_, _ = random.Read(data)
			testutil.MustEqual(t, hosttest.Write(ctx, q, 1, 3, uint32(size/block), data, 0), nil,
				"write %d bytes", size)
			testutil.MustEqual(t, hosttest.Read(ctx, q, 1, 3, uint32(size/block), back), nil,
				"read %d bytes", size)
			testutil.MustTrue(t, bytes.Equal(data, back), "%d bytes read back differ", size)
		}
	}
	testutil.Check(t, hosttest.Flush(ctx, q, 1))
}

// lane is one region of the namespace: its content, and its part of the memory.
type lane struct {
	slba    uint64
	data    []byte
	version uint64 // of the last write
	size    int
	reading bool
}

// stamp fills data with a pattern of this lane and version.
func (l *lane) stamp() {
	for i := 0; i < l.size; i += 8 {
		binary.LittleEndian.PutUint64(l.data[i:], l.slba<<40^l.version<<20^uint64(i))
	}
}

func (l *lane) intact() bool {
	for i := 0; i < l.size; i += 8 {
		if binary.LittleEndian.Uint64(l.data[i:]) != l.slba<<40^l.version<<20^uint64(i) {
			return false
		}
	}
	return true
}

// next prepares the next command of the lane: a write of a new version, or a read of the last one.
func (l *lane) next(op *host.Op, token int, random *rand.Rand) {
	l.reading = l.size > 0 && random.IntN(2) == 0
	if l.reading {
		clear(l.data[:l.size])
		op.Read(1, l.slba, uint32(l.size/block), l.data[:l.size])
	} else {
		l.size = []int{block, 4096, 4096 + block, 16 << 10, regionLen}[random.IntN(5)]
		l.version++
		l.stamp()
		op.Write(1, l.slba, uint32(l.size/block), l.data[:l.size], 0)
	}
	op.Token = uint64(token)
}

// TestDepth runs many commands concurrently, reads and writes of all sizes, and checks each read,
// at the depth of Linux hosts and at the maximum.
func TestDepth(t *testing.T) {
	for name, size := range map[string]int{"128": 128, "1024": 1024} {
		t.Run(name, func(t *testing.T) {
			tr, o := testTarget(t)
			c := connect(t, tr, o, 4)
			mqes := int(c.CAP().MQES()) + 1
			testutil.MustTrue(t, mqes >= size, "the target has queues of %d", mqes)
			q := open(t, c, 1, size)
			memory := testutil.Value(c.Map(regions * regionLen))(t)
			testutil.Must(t, churn(q, newLanes(memory), 20_000))
		})
	}
}

// newLanes divides memory into a lane for each region.
func newLanes(memory []byte) []lane {
	lanes := make([]lane, regions)
	for i := range lanes {
		lanes[i].slba = uint64(i) * regionLen / block
		lanes[i].data = memory[i*regionLen:][:regionLen]
	}
	return lanes
}

// idle is the number of consecutive waits of a second that may pass without a completion.
const idle = 120

// churn runs total commands on all lanes. Any goroutine may call it.
func churn(q *host.Queue, lanes []lane, total int) error {
	random := rand.New(rand.NewPCG(1, uint64(len(lanes))))
	var op host.Op
	free := make([]int, 0, len(lanes)) // lanes without a command
	for i := range lanes {
		free = append(free, i)
	}
	done := make([]host.Completion, 64)
	for outstanding, waits := 0, 0; outstanding > 0 || total > 0; {
		for len(free) > 0 && q.Outstanding() < q.Depth() && total > 0 {
			i := free[len(free)-1]
			lanes[i].next(&op, i, random)
			if _, err := q.Submit(&op); err != nil {
				return err
			}
			free = free[:len(free)-1]
			outstanding++
			total--
		}
		got, err := q.Poll(done)
		if err != nil {
			return err
		}
		for _, cp := range done[:got] {
			l := &lanes[cp.Token]
			if st := cp.Status(); !st.OK() {
				return fmt.Errorf("status %w", st)
			}
			if l.reading && !l.intact() {
				return fmt.Errorf("%d bytes at block %d are not what was written", l.size, l.slba)
			}
			free = append(free, int(cp.Token))
		}
		outstanding -= got
		if got > 0 {
			waits = 0
			continue
		}
		if err := q.Wait(time.Second); err != nil {
			return err
		}
		if waits++; waits > idle {
			return fmt.Errorf("%d commands do not complete", outstanding)
		}
	}
	return nil
}

// TestFullQueue fills the deepest queue with small commands: in-capsule writes, then reads.
func TestFullQueue(t *testing.T) {
	tr, o := testTarget(t)
	c := connect(t, tr, o, 4)
	const size = 1024
	q := open(t, c, 1, size)
	memory := testutil.Value(c.Map(size * block))(t)
	lanes := make([]lane, q.Depth())
	for i := range lanes {
		l := &lanes[i]
		l.slba, l.data, l.size, l.version = uint64(i), memory[i*block:(i+1)*block], block, 7
		l.stamp()
	}
	for round := range 3 {
		reading := round > 0
		for i := range lanes {
			var op host.Op
			if op.Write(1, lanes[i].slba, 1, lanes[i].data, 0); reading {
				clear(lanes[i].data)
				op.Read(1, lanes[i].slba, 1, lanes[i].data)
			}
			op.Token = uint64(i)
			testutil.MustEqual(t, testutil.Err(q.Submit(&op)), nil, "command %d", i)
		}
		collect(t, q, len(lanes))
		for i := range lanes {
			testutil.MustTrue(t, lanes[i].intact(), "round %d: block %d differs", round, i)
		}
	}
}

// collect waits for n successful completions.
func collect(t *testing.T, q *host.Queue, n int) {
	t.Helper()
	done := make([]host.Completion, 64)
	for waits := 0; n > 0; {
		got := testutil.Value(q.Poll(done))(t)
		for _, cp := range done[:got] {
			testutil.MustEqual(t, cp.Status(), nvme.Success, "status")
		}
		if n -= got; got > 0 {
			waits = 0
			continue
		}
		testutil.Must(t, q.Wait(time.Second))
		waits++
		testutil.MustTrue(t, waits <= idle, "%d commands do not complete", n)
	}
}

// TestReset connects and closes queues, and resets their controller.
func TestReset(t *testing.T) {
	tr, o := testTarget(t)
	c := connect(t, tr, o, 4)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	buf := testutil.Value(c.Map(4096))(t)
	for range 3 {
		for qid := range uint16(4) {
			q := open(t, c, qid+1, 64)
			testutil.Must(t, hosttest.Read(ctx, q, 1, 0, 8, buf))
		}
		testutil.Must(t, errors.Join(c.Reset(ctx), c.Enable(ctx)))
		n, err := c.SetQueueCount(ctx, 4)
		testutil.MustTrue(t, err == nil && n >= 4, "%d queues after a reset: %v", n, err)
	}
	testutil.Check(t, hosttest.KeepAlive(ctx, c))
	testutil.Check(t, c.Shutdown(ctx))
}
