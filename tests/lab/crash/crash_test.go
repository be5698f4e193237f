package crash

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// logBytes is a log in the format of dm-log-writes.
func logBytes(log []entry) []byte {
	le := binary.LittleEndian
	out := make([]byte, sector)
	le.PutUint64(out, logMagic)
	le.PutUint64(out[8:], logVersion)
	le.PutUint64(out[16:], uint64(len(log)))
	le.PutUint32(out[24:], sector)
	for _, e := range log {
		head := make([]byte, sector)
		le.PutUint64(head, uint64(e.off/sector))
		le.PutUint64(head[8:], uint64(e.length/sector))
		le.PutUint64(head[16:], e.flags)
		if e.flags&flagMark != 0 {
			text := "dm-log-writes-end"
			if e.mark >= 0 {
				text = fmt.Sprint(e.mark)
			}
			le.PutUint64(head[24:], uint64(copy(head[32:], text)))
		}
		out = append(append(out, head...), e.data...)
	}
	return out
}

// disk builds logs by hand: a journal and the commands of the disk.
type disk struct {
	j   Journal
	log []entry
}

func newDisk() *disk { return &disk{j: Journal{Seed: 7, Zero: make([][]bool, 8)}} }

// write adds the next generation of a block.
func (d *disk) write(block int, flags uint64) {
	d.j.Zero[block] = append(d.j.Zero[block], false)
	data := make([]byte, BlockSize)
	d.j.stamp(data, uint32(block), uint32(len(d.j.Zero[block])))
	d.log = append(d.log,
		entry{off: int64(block) * BlockSize, length: BlockSize, flags: flags, data: data})
}

func (d *disk) zero(block int) {
	d.j.Zero[block] = append(d.j.Zero[block], true)
	d.log = append(d.log,
		entry{off: int64(block) * BlockSize, length: BlockSize, flags: flagDiscard})
}

func (d *disk) flush() { d.log = append(d.log, entry{flags: flagFlush}) }

func (d *disk) mark(durable ...Gen) {
	d.log = append(d.log, entry{flags: flagMark, mark: len(d.j.Marks)})
	m := Mark{Durable: durable}
	for b, zero := range d.j.Zero {
		m.Begun = append(m.Begun, Gen{uint32(b), uint32(len(zero))})
	}
	d.j.Marks = append(d.j.Marks, m)
}

func (d *disk) replay(t *testing.T) (Report, error) {
	t.Helper()
	log := testutil.Value(
		readLog(bytes.NewReader(logBytes(append(d.log, entry{flags: flagMark, mark: -1})))))(t)
	whole := func(image []byte) ([]byte, error) { return image, nil }
	return Replay(log, &d.j, make([]byte, 8*BlockSize), whole, 100, 1)
}

// history is the log of a disk without faults.
func history() *disk {
	d := newDisk()
	d.write(0, 0)
	d.write(1, 0)
	d.flush()
	d.mark(Gen{0, 1}, Gen{1, 1})
	d.write(2, flagFUA)
	d.mark(Gen{2, 1})
	d.write(0, 0)
	d.zero(1)
	d.write(3, 0)
	d.flush()
	d.mark(Gen{0, 2}, Gen{1, 2}, Gen{3, 1})
	d.write(3, 0)
	return d
}

func TestPromisesKept(t *testing.T) {
	rep := testutil.Value(history().replay(t))(t)
	testutil.True(t, rep.Crashes == 100 && rep.Dropped != 0 && rep.Kept != 0 && rep.Promised != 0,
		"%+v", rep)
}

// TestPromisesBroken: entries that were not flushed are later in the log, or missing.
func TestPromisesBroken(t *testing.T) {
	for _, tc := range []struct {
		name  string
		order []int // of the entries of history
	}{
		{"a flush does nothing", []int{3, 4, 5, 0, 1, 6, 7, 8, 9, 10, 11}},
		{"FUA does nothing", []int{0, 1, 2, 3, 5, 6, 4, 7, 8, 9, 10, 11}},
		{"a flush comes late", []int{0, 1, 2, 3, 4, 5, 10, 6, 7, 8, 9, 11}},
		{"a write is forgotten", []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
		{"zeroes are forgotten", []int{0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11}},
	} {
		d := history()
		var log []entry
		for _, i := range tc.order {
			log = append(log, d.log[i])
		}
		d.log = log
		testutil.Is(t, testutil.Err(d.replay(t)), errLost, "%s", tc.name)
	}
}

// TestDamage: torn blocks and blocks that were never written are distinguished from older ones.
func TestDamage(t *testing.T) {
	j := &Journal{Seed: 1, Zero: [][]bool{{false, true, false}}}
	block := func(gen uint32) []byte {
		b := make([]byte, BlockSize)
		j.stamp(b, 0, gen)
		return b
	}
	torn := append(block(3)[:2048:2048], block(1)[2048:]...)
	for _, tc := range []struct {
		name string
		b    []byte
		want uint32
		ok   bool
		lost bool
	}{
		{"never written", make([]byte, BlockSize), 0, true, false},
		{"zeroes that came later", make([]byte, BlockSize), 1, true, false},
		{"zeroes in the place of data", make([]byte, BlockSize), 3, false, true},
		{"newer", block(3), 2, true, false},
		{"as promised", block(3), 3, true, false},
		{"older", block(1), 2, false, true},
		{"torn", torn, 0, false, false},
		{"of a generation that is zeroes", block(2), 0, false, false},
		{"of the future", block(4), 0, false, false},
	} {
		err := j.check(tc.b, 0, tc.want, 3)
		testutil.True(t, (err == nil) == tc.ok && errors.Is(err, errLost) == tc.lost, "%s: %v",
			tc.name, err)
	}
}

// TestCuts: no cut is before the first mark, and one is between a flush and the writes it covers.
func TestCuts(t *testing.T) {
	d := history()
	got := cuts(append(d.log, entry{flags: flagMark, mark: -1}))
	want := []cut{{4, 4}, {5, 5}, {6, 6}, {6, 9}, {10, 10}, {11, 11}, {11, 12}, {13, 13}}
	testutil.True(t, fmt.Sprint(got) == fmt.Sprint(want), "%v, want %v", got, want)
	chosen := choose(got, 20, rand.New(rand.NewPCG(1, 1)))
	cached := 0
	for _, c := range chosen {
		if c.cached > c.durable {
			cached++
		}
	}
	testutil.True(t, len(chosen) == 20 && cached == 10, "%d chosen, %d of them with a cache",
		len(chosen), cached)
}

func TestReadLogRefuses(t *testing.T) {
	good := logBytes(history().log)
	for name, change := range map[string]func(b []byte) []byte{
		"empty":         func(b []byte) []byte { return nil },
		"another magic": func(b []byte) []byte { b[0]++; return b },
		"cut short":     func(b []byte) []byte { return b[:len(b)-1] },
		"a huge entry": func(b []byte) []byte {
			binary.LittleEndian.PutUint64(b[sector+8:], 1<<40)
			return b
		},
		"no sectors": func(b []byte) []byte { clear(b[24:28]); return b },
	} {
		testutil.True(t, testutil.Err(readLog(bytes.NewReader(change(bytes.Clone(good))))) != nil,
			"%s: read", name)
	}
}
