package e2e

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// place is a block of a namespace.
type place struct {
	nsid uint32
	lba  uint64
}

// deed is a write to one block as the host knows it. Times count up with all that the host sends
// and learns.
type deed struct {
	id          uint64 // 0: zeroes
	sent, acked uint64 // acked: when it was acknowledged, 0 if it was not
	durable     bool   // acknowledged with FUA, or before a flush was sent that was acknowledged
}

// ledger is what hosts were promised.
type ledger struct {
	mu     sync.Mutex
	clock  uint64
	blocks map[place][]*deed
}

func newLedger() *ledger { return &ledger{blocks: map[place][]*deed{}} }

// send notes a write of blocks that is about to be sent, each as a deed with the same id.
func (l *ledger) send(id uint64, nsid uint32, slba uint64, blocks uint32) (sent []*deed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock++
	for i := range blocks {
		p, d := place{nsid, slba + uint64(i)}, &deed{id: id, sent: l.clock}
		if l.blocks[p] == nil { // was never written, so it is zero
			l.blocks[p] = []*deed{{acked: l.clock, durable: true}}
			l.clock++
			d.sent = l.clock
		}
		l.blocks[p] = append(l.blocks[p], d)
		sent = append(sent, d)
	}
	return sent
}

// acked notes the answer to a write.
func (l *ledger) acked(deeds []*deed, durable bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock++
	for _, d := range deeds {
		d.acked, d.durable = l.clock, durable
	}
}

// now is the time of a flush that is about to be sent.
func (l *ledger) now() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock++
	return l.clock
}

// flushed notes the answer to a flush that was sent at a time.
func (l *ledger) flushed(nsid uint32, sent uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, deeds := range l.blocks {
		if p.nsid != nsid && nsid != nvme.NSIDAll {
			continue
		}
		for _, d := range deeds {
			d.durable = d.durable || d.acked != 0 && d.acked < sent
		}
	}
}

// settle compares the blocks that were written with what survived, which is from now on all there
// is of them. It returns what is wrong.
func (l *ledger) settle(survived func(place) []byte) (wrong []error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock++
	for _, p := range slices.SortedFunc(maps.Keys(l.blocks), comparePlaces) {
		id, err := recognise(survived(p), p)
		if err == nil {
			err = judge(l.blocks[p], id)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("block %d of namespace %d: %w", p.lba, p.nsid, err))
		}
		l.blocks[p] = []*deed{{id: id, sent: l.clock, acked: l.clock, durable: true}}
	}
	return wrong
}

func comparePlaces(a, b place) int {
	return cmp.Or(cmp.Compare(a.nsid, b.nsid), cmp.Compare(a.lba, b.lba))
}

// judge says whether a block may contain the write with this id: not if one is durable that was
// sent after its acknowledgement.
func judge(deeds []*deed, id uint64) error {
	err := fmt.Errorf("what is in it was never written there (%d)", id)
	for _, d := range deeds {
		if d.id != id {
			continue
		}
		i := slices.IndexFunc(deeds,
			func(o *deed) bool { return o.durable && d.acked != 0 && o.sent > d.acked })
		if i < 0 {
			return nil
		}
		err = fmt.Errorf("write %d is lost, which was durable: there is write %d", deeds[i].id, id)
	}
	return err
}

// recordSize is how often a block says what it is, in bytes.
const recordSize = 32

// describe fills the block with what it is.
func describe(b []byte, p place, id uint64) {
	binary.LittleEndian.PutUint64(b, id)
	binary.LittleEndian.PutUint64(b[8:], ^id)
	binary.LittleEndian.PutUint64(b[16:], p.lba)
	binary.LittleEndian.PutUint64(b[24:], uint64(p.nsid))
	for n := recordSize; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// recognise is the write that a block is from.
func recognise(b []byte, p place) (id uint64, err error) {
	id = binary.LittleEndian.Uint64(b)
	want := make([]byte, len(b))
	if id != 0 {
		describe(want, p, id)
	}
	if !bytes.Equal(b, want) {
		return id, fmt.Errorf("it is torn: %s of write %d", differ(b, want), id)
	}
	return id, nil
}
