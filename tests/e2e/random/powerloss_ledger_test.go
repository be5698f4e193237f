package random

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/tests/e2e"
)

// place is a block of a namespace.
type place struct {
	nsid uint32
	lba  uint64
}

// blockWrite is a write to one block as seen by the host. Times increase with every message that
// the host sends or receives.
type blockWrite struct {
	id          uint64 // 0: zeroes
	sent, acked uint64 // acked is 0 if it was not acknowledged
	durable     bool   // acknowledged with FUA, or before an acknowledged flush was sent
}

// ledger records the writes acknowledged to hosts.
type ledger struct {
	mu     sync.Mutex
	clock  uint64
	blocks map[place][]*blockWrite
}

func newLedger() *ledger { return &ledger{blocks: map[place][]*blockWrite{}} }

// send records a write that is about to be sent, as a blockWrite for each block with the same id.
func (l *ledger) send(id uint64, nsid uint32, slba uint64, blocks uint32) (sent []*blockWrite) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock++
	for i := range blocks {
		p, d := place{nsid, slba + uint64(i)}, &blockWrite{id: id, sent: l.clock}
		if l.blocks[p] == nil { // never written, so it is zero
			l.blocks[p] = []*blockWrite{{acked: l.clock, durable: true}}
			l.clock++
			d.sent = l.clock
		}
		l.blocks[p] = append(l.blocks[p], d)
		sent = append(sent, d)
	}
	return sent
}

// acked records the completion of a write.
func (l *ledger) acked(writes []*blockWrite, durable bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock++
	for _, d := range writes {
		d.acked, d.durable = l.clock, durable
	}
}

// now returns the time for a flush that is about to be sent.
func (l *ledger) now() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock++
	return l.clock
}

// flushed records the completion of a flush that was sent at that time.
func (l *ledger) flushed(nsid uint32, sent uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, writes := range l.blocks {
		if p.nsid != nsid && nsid != nvme.NSIDAll {
			continue
		}
		for _, d := range writes {
			d.durable = d.durable || d.acked != 0 && d.acked < sent
		}
	}
}

// check compares the blocks written with their content after a power failure, which is durable from
// then on. It returns the errors found.
func (l *ledger) check(survived func(place) []byte) (wrong []error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock++
	for _, p := range slices.SortedFunc(maps.Keys(l.blocks), comparePlaces) {
		id, err := identify(survived(p), p)
		if err == nil {
			err = checkBlock(l.blocks[p], id)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("block %d of namespace %d: %w", p.lba, p.nsid, err))
		}
		l.blocks[p] = []*blockWrite{{id: id, sent: l.clock, acked: l.clock, durable: true}}
	}
	return wrong
}

func comparePlaces(a, b place) int {
	return cmp.Or(cmp.Compare(a.nsid, b.nsid), cmp.Compare(a.lba, b.lba))
}

// checkBlock returns an error if a block cannot contain the write with this id, because a durable
// write was sent after its acknowledgement.
func checkBlock(writes []*blockWrite, id uint64) error {
	err := fmt.Errorf("its content, write %d, was never written there", id)
	for _, d := range writes {
		if d.id != id {
			continue
		}
		i := slices.IndexFunc(writes,
			func(o *blockWrite) bool { return o.durable && d.acked != 0 && o.sent > d.acked })
		if i < 0 {
			return nil
		}
		err = fmt.Errorf("write %d is lost, which was durable: there is write %d", writes[i].id, id)
	}
	return err
}

// recordSize is the size of a stamp in bytes. Copies of the stamp fill a block.
const recordSize = 32

// stampBlock fills a block with its place and the write.
func stampBlock(b []byte, p place, id uint64) {
	binary.LittleEndian.PutUint64(b, id)
	binary.LittleEndian.PutUint64(b[8:], ^id)
	binary.LittleEndian.PutUint64(b[16:], p.lba)
	binary.LittleEndian.PutUint64(b[24:], uint64(p.nsid))
	for n := recordSize; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// identify returns the write that has filled a block.
func identify(b []byte, p place) (id uint64, err error) {
	id = binary.LittleEndian.Uint64(b)
	want := make([]byte, len(b))
	if id != 0 {
		stampBlock(want, p, id)
	}
	if !bytes.Equal(b, want) {
		return id, fmt.Errorf("it is torn: %s of write %d", e2e.Differ(b, want), id)
	}
	return id, nil
}
