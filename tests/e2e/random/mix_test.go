package random

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/backend/file"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/e2e"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

const (
	mixBlock  = 16384
	mixBlocks = 4   // shared by all commands
	mixAll    = 256 // covered by some commands
	mixSlots  = 4   // commands in flight of a queue
	mixSlot   = mixBlocks * mixBlock
)

// TestMixOnFewBlocks mixes all I/O commands at random on the same few blocks, on 128 queues of
// eight hosts over both transports, on each backend. Every command completes, and each block has
// the content of a single write.
func TestMixOnFewBlocks(t *testing.T) {
	t.Parallel()
	const hosts, queues = 8, 16
	each := testutil.Rounds(1600, 100000) / hosts
	open := func(cfg file.Config) func(t *testing.T) backend.Device {
		return func(t *testing.T) backend.Device {
			cfg.Path = filepath.Join(t.TempDir(), "disk")
			cfg.Size, cfg.BlockSize = mixAll*mixBlock, mixBlock
			d := testutil.Value(file.Open(cfg))(t)
			return d
		}
	}
	for name, open := range map[string]func(t *testing.T) backend.Device{
		"ram": func(t *testing.T) backend.Device {
			return harness.OpenRAM(t, mixAll*mixBlock, mixBlock)
		},
		"file":         open(file.Config{}),
		"file threads": open(file.Config{Buffered: true, Engine: disk.Engine{Name: disk.Threads}}),
	} {
		t.Run(name, func(t *testing.T) {
			h := e2e.New(t, e2e.Options{Reactors: 2, Devices: []backend.Device{open(t)}})
			var wg sync.WaitGroup
			var list []*mixer
			for i := range hosts {
				c := h.Dial(e2e.Plain[i%len(e2e.Plain)], func(o *host.Options) {
					o.HostNQN = fmt.Sprintf("%s%d", e2e.HostNQN[:len(e2e.HostNQN)-1], i)
					o.HostID[0] = byte(i)
				})
				m := &mixer{
					t: t, rnd: rand.New(rand.NewPCG(uint64(i), 7)),
					buf: h.Buffer(c, queues*mixSlots*mixSlot),
				}
				for qid := range queues {
					m.queues = append(m.queues, h.Open(c, uint16(qid+1), 4*mixSlots))
				}
				list = append(list, m)
			}
			for _, m := range list {
				wg.Go(func() { m.run(each) })
			}
			wg.Wait()
			buf := list[0].buf[:mixAll*mixBlock]
			const blocks = e2e.MDTS / mixBlock
			for at := 0; at < mixAll; at += blocks {
				part := buf[at*mixBlock:][:e2e.MDTS]
				q := list[0].queues[0]
				h.Must(hosttest.Read(testutil.Context(t), q, 1, uint64(at), blocks, part))
				e2e.WantWholeBlocks(t, part, mixBlock)
			}
		})
	}
}

// mixer is a host that keeps its queues full of random commands. One goroutine uses it.
type mixer struct {
	t      *testing.T
	rnd    *rand.Rand
	queues []*host.Queue
	buf    []byte // mixSlots parts of mixSlot bytes for each queue
	used   [16][mixSlots]bool
	reads  [16][mixSlots]int // bytes that the command of a slot reads
}

func (m *mixer) run(commands int) {
	done := make([]host.Completion, 2*mixSlots)
	ctx := testutil.Context(m.t)
	for left := commands; left > 0 || m.outstanding() > 0; {
		got := 0
		for i, q := range m.queues {
			for slot := range mixSlots {
				if left > 0 && !m.used[i][slot] {
					if err := m.submit(i, slot); err != nil {
						m.t.Error(err)
						return
					}
					left--
				}
			}
			n, err := q.Poll(done)
			if err != nil {
				m.t.Errorf("queue %d: %v", i+1, err)
				return
			}
			got += n
			for _, c := range done[:n] {
				if !m.completed(i, c) {
					return
				}
			}
		}
		switch {
		case got > 0:
		case ctx.Err() != nil:
			m.t.Errorf("%d commands do not complete", m.outstanding())
			return
		default:
			if err := m.queues[0].Wait(time.Millisecond); err != nil {
				m.t.Error(err)
				return
			}
		}
	}
}

func (m *mixer) outstanding() (n int) {
	for _, q := range m.queues {
		n += q.Outstanding()
	}
	return n
}

// slotBuf returns the memory of a slot of queue i.
func (m *mixer) slotBuf(i, slot int) []byte {
	return m.buf[(i*mixSlots+slot)*mixSlot:][:mixSlot]
}

// submit submits a random command, or a fused pair, in a slot of queue i.
func (m *mixer) submit(i, slot int) error {
	q, buf := m.queues[i], m.slotBuf(i, slot)
	slba := m.rnd.IntN(mixBlocks)
	blocks := 1 + m.rnd.IntN(mixBlocks-slba)
	data := buf[:blocks*mixBlock]
	at, n := uint64(slba), uint32(blocks)
	m.used[i][slot], m.reads[i][slot] = true, 0
	op := host.Op{Token: uint64(slot)}
	fill := func(b []byte) {
		for ; len(b) > 0; b = b[mixBlock:] {
			copy(b[:mixBlock], bytes.Repeat([]byte{byte(m.rnd.IntN(4))}, mixBlock))
		}
	}
	switch m.rnd.IntN(16) {
	case 0, 1, 2, 3:
		m.reads[i][slot] = len(data)
		op.Read(1, at, n, data)
	case 4, 5, 6, 7:
		fill(data)
		op.Write(1, at, n, data, nvme.RWFlags(m.rnd.IntN(2))*nvme.RWFUA)
	case 8:
		hosttest.SetWriteZeroes(&op, 1, at, n, 0)
	case 9:
		hosttest.SetWriteZeroes(&op, 1, at, mixAll-uint32(slba), nvme.RWDeallocate)
	case 10:
		data = buf[:nvme.DSMRangeSize*(1+m.rnd.IntN(8))]
		for r := 0; r < len(data); r += nvme.DSMRangeSize {
			(*nvme.DSMRange)(data[r:]).Set(uint64(r/nvme.DSMRangeSize), mixAll-uint32(r))
		}
		hosttest.SetDiscard(&op, 1, data)
	case 11:
		op.Flush(1)
	case 12:
		fill(data)
		hosttest.SetCompare(&op, 1, at, n, data)
	case 13:
		hosttest.SetVerify(&op, 1, at, n)
	case 14:
		data = buf[:nvme.CopyRangeSize]
		(*nvme.CopyRange)(data).Set(1, uint64(m.rnd.IntN(mixBlocks/2)), 1)
		hosttest.SetCopy(&op, 1, mixBlocks/2+uint64(m.rnd.IntN(mixBlocks/2)), nvme.CopyRanges, data,
			0)
	case 15:
		fill(buf[:2*mixBlock])
		hosttest.SetCompare(&op, 1, at, 1, buf[:mixBlock])
		op.SQE.SetFlags(1)
		op.Token = mixSlots // the second command ends the pair
		if _, err := q.Submit(&op); err != nil {
			return err
		}
		op.Write(1, at, 1, buf[mixBlock:2*mixBlock], 0)
		op.SQE.SetFlags(2)
		op.Token = uint64(slot)
	}
	_, err := q.Submit(&op)
	return err
}

// completed checks a completion of queue i.
func (m *mixer) completed(i int, c host.Completion) bool {
	switch st := c.Status().Code(); st {
	case nvme.Success, nvme.CompareFailure, nvme.AbortedFailedFused:
	default:
		m.t.Errorf("queue %d: %v", i+1, c.Status())
		return false
	}
	if c.Token == mixSlots {
		return true
	}
	m.used[i][c.Token] = false
	return e2e.WantWholeBlocks(m.t, m.slotBuf(i, int(c.Token))[:m.reads[i][c.Token]], mixBlock)
}
