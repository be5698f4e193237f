package crash

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	workers   = 8
	mostPlain = 16 // blocks of a write, or of zeroes
	mostFUA   = 4

	ioctlSubmitIO = 0x40304e42 // NVME_IOCTL_SUBMIT_IO
	opWrite       = 1
	// bit 30 of command dword 12: NVM Command Set Specification 1.0, section 3.2.6
	controlFUA = 1 << 14
)

// Writer writes, zeroes and flushes randomly from several threads.
type Writer struct {
	f     *os.File
	lba   int // bytes
	mark  func(id int) error
	mu    sync.Mutex
	j     Journal
	acked []uint32 // completed generation of each block
	safe  []uint32 // generation of each block acknowledged as durable
	begun []uint32 // generation of each block begun at the last mark

	marking sync.Mutex // held from the creation of a mark until it is in the log
}

// NewWriter creates a Writer to the first blocks of the namespace dev, which are zeroes. mark
// writes a mark with that number to the log of the disk.
func NewWriter(dev string, blocks int, seed uint64, mark func(id int) error) (*Writer, error) {
	f, err := os.OpenFile(dev, os.O_RDWR|unix.O_DIRECT|unix.O_EXCL, 0)
	if err != nil {
		return nil, err
	}
	lba, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKSSZGET)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Writer{
		f: f, lba: lba, mark: mark, j: Journal{Seed: seed, Zero: make([][]bool, blocks)},
		acked: make([]uint32, blocks), safe: make([]uint32, blocks), begun: make([]uint32, blocks),
	}, nil
}

// Run runs ops operations in each thread and returns the journal.
func (w *Writer) Run(ops int) (*Journal, error) {
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for id := range workers {
		wg.Go(func() { errs[id] = w.work(id, ops) })
	}
	wg.Wait()
	errs = append(errs, w.f.Close())
	return &w.j, errors.Join(errs...)
}

func (w *Writer) work(id, ops int) error {
	buf, err := unix.Mmap(-1, 0, mostPlain*BlockSize, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(buf) }()
	r := rand.New(rand.NewPCG(w.j.Seed, uint64(id)))
	// The last quarter of the blocks of a thread is only for writes with FUA: dm-log-writes logs
	// these at once, before earlier unflushed writes to the same blocks.
	region := len(w.acked) / workers
	plain := region * 3 / 4
	place := func(from, size, most int) (first, n int) {
		n = 1 + r.IntN(most)
		return id*region + from + r.IntN(size-n+1), n
	}
	for range ops {
		var err error
		switch kind := r.IntN(100); {
		case kind < 60:
			first, n := place(0, plain, mostPlain)
			err = w.write(buf, first, n, false)
		case kind < 75:
			first, n := place(plain, region-plain, mostFUA)
			err = w.write(buf, first, n, true)
		case kind < 90:
			first, n := place(0, plain, mostPlain)
			err = w.zero(first, n, kind%2 == 0)
		default:
			err = w.flush()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// begin creates the next generation of n blocks.
func (w *Writer) begin(first, n int, zero bool) (gens [mostPlain]uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range n {
		b := first + i
		w.j.Zero[b] = append(w.j.Zero[b], zero)
		gens[i] = uint32(len(w.j.Zero[b]))
	}
	return gens
}

// end records the completion.
func (w *Writer) end(first int, gens []uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	copy(w.acked[first:], gens)
}

func (w *Writer) write(buf []byte, first, n int, fua bool) error {
	gens := w.begin(first, n, false)
	buf = buf[:n*BlockSize]
	for i := range n {
		w.j.stamp(buf[i*BlockSize:][:BlockSize], uint32(first+i), gens[i])
	}
	if fua {
		if err := w.writeFUA(buf, first); err != nil {
			return fmt.Errorf("write of %d blocks at %d with FUA: %w", n, first, err)
		}
		w.end(first, gens[:n])
		return w.promise(func(promise func(block int, gen uint32)) {
			for i, gen := range gens[:n] {
				promise(first+i, gen)
			}
		})
	}
	if _, err := w.f.WriteAt(buf, int64(first)*BlockSize); err != nil {
		return fmt.Errorf("write of %d blocks at %d: %w", n, first, err)
	}
	w.end(first, gens[:n])
	return nil
}

// userIO is struct nvme_user_io of linux/nvme_ioctl.h.
type userIO struct {
	opcode, flags               uint8
	control, blocks, reserved   uint16
	metadata, addr, slba        uint64
	dataset, reference          uint32
	application, applicationTag uint16
}

// writeFUA sends a single Write with FUA. O_DSYNC on a block device would add a Flush.
func (w *Writer) writeFUA(buf []byte, first int) error {
	io := userIO{
		// buf is mapped memory, which does not move.
		opcode: opWrite, control: controlFUA, addr: uint64(uintptr(unsafe.Pointer(&buf[0]))),
		slba: uint64(first * BlockSize / w.lba), blocks: uint16(len(buf)/w.lba - 1),
	}
	status, _, e := unix.Syscall(unix.SYS_IOCTL, w.f.Fd(), ioctlSubmitIO,
		uintptr(unsafe.Pointer(&io)))
	switch {
	case e != 0:
		return e
	case status != 0:
		return fmt.Errorf("status %#x", status)
	}
	return nil
}

// zero overwrites the blocks with zeroes; punch allows deallocating them.
func (w *Writer) zero(first, n int, punch bool) error {
	gens := w.begin(first, n, true)
	mode := uint32(unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE)
	if punch {
		mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	}
	if err := unix.Fallocate(int(w.f.Fd()), mode, int64(first)*BlockSize,
		int64(n)*BlockSize); err != nil {
		return fmt.Errorf("zeroes to %d blocks at %d: %w", n, first, err)
	}
	w.end(first, gens[:n])
	return nil
}

func (w *Writer) flush() error {
	w.mu.Lock()
	acked := slices.Clone(w.acked)
	w.mu.Unlock()
	if err := unix.Fdatasync(int(w.f.Fd())); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	return w.promise(func(promise func(block int, gen uint32)) {
		for b, gen := range acked {
			promise(b, gen)
		}
	})
}

// promise records the generations that are durable from now on, and marks the place in the log.
func (w *Writer) promise(each func(promise func(block int, gen uint32))) error {
	w.marking.Lock()
	defer w.marking.Unlock()
	w.mu.Lock()
	var m Mark
	each(func(block int, gen uint32) {
		if gen > w.safe[block] {
			w.safe[block] = gen
			m.Durable = append(m.Durable, Gen{uint32(block), gen})
		}
	})
	for b, zero := range w.j.Zero {
		if gen := uint32(len(zero)); gen > w.begun[b] {
			w.begun[b] = gen
			m.Begun = append(m.Begun, Gen{uint32(b), gen})
		}
	}
	id := len(w.j.Marks)
	w.j.Marks = append(w.j.Marks, m)
	w.mu.Unlock()
	return w.mark(id)
}
