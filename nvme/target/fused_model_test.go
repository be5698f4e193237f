package target

import (
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// fusedModel is a model of blocks that are changed by Compare and Write and by plain writes. Each
// value is written once, so a block is a chain of values, each of which one other replaces.
type fusedModel struct {
	cores []*core
	last  atomic.Uint64 // value
	mu    sync.Mutex
	// pairs has what each successful pair has replaced, by what it wrote; after has what was read
	// after a plain write, with what was written.
	pairs map[uint64]uint64
	after [][2]uint64
	late  int // pairs that failed because another came first
}

const (
	fusedBlocks = 3 // adjacent, from LBA 7 on: two physical blocks
	fusedHosts  = 3
	fusedRounds = 3000
)

// TestFusedModel: hosts on several reactors replace values by Compare and Write, while another one
// writes the same blocks: no update is lost, and no write comes between the two commands of a pair.
func TestFusedModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	target := New(Options{Log: slog.New(slog.DiscardHandler)})
	if err := target.AddSubsystem(ramSubsystem(t, 1)); err != nil {
		t.Fatal(err)
	}
	cores, stop := startCores(t, target, 3)
	x := &fusedModel{cores: cores, pairs: map[uint64]uint64{}}
	var hosts sync.WaitGroup
	for i := range fusedHosts + 1 {
		h := &stressHost{t: t, cores: cores, rnd: rand.New(rand.NewPCG(seed, uint64(i)))}
		hosts.Go(func() {
			io := h.connect(i)
			for range fusedRounds {
				if q := io[h.rnd.IntN(len(io))]; i < fusedHosts {
					x.pair(h, q)
				} else {
					x.write(h, q)
				}
			}
			h.end()
		})
	}
	hosts.Wait()
	x.check(t)
	if err := target.Close(); err != nil {
		t.Error(err)
	}
	stop()
}

// values makes blocks with new values.
func (x *fusedModel) values(n int) (data []byte) {
	data = make([]byte, n*512)
	for i := range n {
		binary.LittleEndian.PutUint64(data[i*512:], x.last.Add(1))
	}
	return data
}

// read returns the value of a block.
func (x *fusedModel) read(h *stressHost, q *stressQueue, slba uint64) []byte {
	c := rw(nvme.NVMRead, 1, slba, 1, make([]byte, 512))
	h.must(q, c)
	return c.Data
}

// pair replaces the value of a block, if it is still there.
func (x *fusedModel) pair(h *stressHost, q *stressQueue) {
	slba := 7 + uint64(h.rnd.IntN(fusedBlocks))
	old, data := x.read(h, q, slba), x.values(1)
	p := pairOf(slba, old, data)
	<-q.send(p...)
	first, second := p[0].CQE.Status().Code(), p[1].CQE.Status().Code()
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case first == nvme.Success && second == nvme.Success:
		x.pairs[binary.LittleEndian.Uint64(data)] = binary.LittleEndian.Uint64(old)
	case first == nvme.CompareFailure && second == nvme.AbortedFailedFused:
		x.late++
	default:
		h.t.Errorf("%v, %v", first, second)
	}
}

// write changes some blocks, and looks what is there afterwards.
func (x *fusedModel) write(h *stressHost, q *stressQueue) {
	n := 1 + h.rnd.IntN(fusedBlocks)
	data := x.values(n)
	h.must(q, rw(nvme.NVMWrite, 1, 7, uint32(n), data))
	for i := range n {
		now := binary.LittleEndian.Uint64(x.read(h, q, 7+uint64(i)))
		x.mu.Lock()
		x.after = append(x.after, [2]uint64{now, binary.LittleEndian.Uint64(data[i*512:])})
		x.mu.Unlock()
	}
}

// check looks for a value that was replaced twice, or that was lost without being replaced.
func (x *fusedModel) check(t *testing.T) {
	replaced := map[uint64]uint64{}
	for v, old := range x.pairs {
		if w, twice := replaced[old]; twice && old != 0 {
			t.Errorf("%d was replaced by %d and by %d: an update is lost", old, v, w)
		}
		replaced[old] = v
	}
	for _, a := range x.after {
		v, ok := a[0], true
		for v != a[1] && ok {
			v, ok = x.pairs[v]
		}
		if !ok {
			t.Errorf("%d was written, but then there was %d, which has not replaced it", a[1], a[0])
		}
	}
	t.Logf("%d pairs have succeeded, %d came too late", len(x.pairs), x.late)
	if len(x.pairs) == 0 || x.late == 0 {
		t.Error("the hosts were not in each other's way")
	}
}
