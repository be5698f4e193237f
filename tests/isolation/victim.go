package isolation

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// victim is an ordinary host. It reads and writes blocks of 4 KiB of healthy namespaces, one at a
// time, checks the data that it reads, and sends keep-alives. One goroutine uses it.
type victim struct {
	e       *env
	link    nvme.TransportType
	options host.Options
	from    netip.Addr
	first   uint64 // first block of its own range of rangeBlocks
	c       *host.Controller
	q       *host.Queue
	buf     []byte
	// generation of each of its blocks, by namespace; 0 means never written.
	generation map[uint32][]uint32
	step       int
}

const (
	rangeBlocks = 64
	pace        = 300 * time.Microsecond // between commands
	aliveEvery  = 100                    // commands between keep-alives
)

// victimKATO is the keep alive timeout of victims.
const victimKATO = 30 * time.Second

// newVictim connects victim i over the link of the test and writes its blocks.
func newVictim(e *env, i int) *victim { return newVictimOver(e, e.link, i, victimKATO) }

func newVictimOver(e *env, link nvme.TransportType, i int, kato time.Duration) *victim {
	nqn := []string{victimNQN, victimNQN2}[i]
	v := &victim{
		e: e, link: link, options: hostOptions(nqn), first: uint64(i) * rangeBlocks,
		generation: map[uint32][]uint32{},
	}
	if link == nvme.TransportTCP {
		v.from = address(i)
	}
	v.options.KATO = kato
	for _, nsid := range []uint32{nsRAM, nsPool} {
		v.generation[nsid] = make([]uint32, rangeBlocks)
	}
	e.must(v.connect())
	e.t.Cleanup(v.disconnect)
	for nsid := range v.generation {
		for block := range uint64(rangeBlocks) {
			e.must(v.write(nsid, block))
		}
	}
	return v
}

func (v *victim) connect() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
	defer cancel()
	transport := v.e.transportOver(v.link, v.from, "host")
	if v.c, err = host.Connect(ctx, transport, v.options); err != nil {
		return err
	}
	if v.buf, err = v.c.Map(blockSize); err == nil {
		v.q, err = v.c.OpenQueue(ctx, 1, 32)
	}
	return err
}

func (v *victim) disconnect() {
	if v.q != nil {
		_ = v.q.Close()
	}
	if v.c != nil {
		v.c.Close()
	}
	v.q, v.c = nil, nil
}

// stamp fills the buffer with the content of a block: its number, generation and namespace.
func (v *victim) stamp(nsid uint32, block uint64, generation uint32) {
	for i := 0; i < len(v.buf); i += 16 {
		binary.LittleEndian.PutUint64(v.buf[i:], (v.first+block)<<16|uint64(i))
		binary.LittleEndian.PutUint64(v.buf[i+8:], uint64(generation)<<32|uint64(nsid))
	}
}

func (v *victim) write(nsid uint32, block uint64) error {
	next := v.generation[nsid][block] + 1
	v.stamp(nsid, block, next)
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
	defer cancel()
	err := hosttest.Write(ctx, v.q, nsid, v.first+block, 1, v.buf, 0)
	if err == nil {
		v.generation[nsid][block] = next
	}
	return err
}

// errData means wrong content, which is never just slow.
var errData = errors.New("wrong data")

func (v *victim) read(nsid uint32, block uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
	defer cancel()
	clear(v.buf)
	if err := hosttest.Read(ctx, v.q, nsid, v.first+block, 1, v.buf); err != nil {
		return err
	}
	generation := v.generation[nsid][block]
	for i := 0; i < len(v.buf); i += 16 {
		place := binary.LittleEndian.Uint64(v.buf[i:])
		is := binary.LittleEndian.Uint64(v.buf[i+8:])
		if place != (v.first+block)<<16|uint64(i) || is != uint64(generation)<<32|uint64(nsid) {
			return fmt.Errorf("%w in namespace %d, block %d, byte %d: % x, want generation %d",
				errData, nsid, v.first+block, i, v.buf[i:i+16], generation)
		}
	}
	return nil
}

// sweep checks all blocks of the victim.
func (v *victim) sweep() error {
	for nsid := range v.generation {
		for block := range uint64(rangeBlocks) {
			if err := v.read(nsid, block); err != nil {
				return err
			}
		}
	}
	return nil
}

// next makes one command.
func (v *victim) next() error {
	v.step++
	nsid, block := uint32(nsRAM), uint64(v.step*7%rangeBlocks)
	if v.step&1 != 0 {
		nsid = nsPool
	}
	if v.step&2 != 0 {
		return v.write(nsid, block)
	}
	return v.read(nsid, block)
}

// run makes commands for a window and returns their latencies. After a connection has ended it
// connects again.
func (v *victim) run(w window) (took latencies, o outcome) {
	ctx, cancel := context.WithTimeout(context.Background(), w.length)
	defer cancel()
	for n := 0; n < max(w.commands, few.commands) || ctx.Err() == nil; n++ {
		time.Sleep(pace)
		if v.q == nil {
			if err := v.connect(); err != nil {
				o.ended = append(o.ended, fmt.Errorf("reconnect: %w", err))
				v.disconnect()
				continue
			}
		}
		began := time.Now()
		err := v.next()
		took.note(time.Since(began))
		if err == nil && v.step%aliveEvery == 0 {
			began = time.Now()
			err = hosttest.KeepAlive(context.Background(), v.c)
			o.keepAlives.note(time.Since(began))
		}
		switch {
		case err == nil:
		case v.q.Err() != nil || v.c.Err() != nil:
			o.ended = append(o.ended, err)
			v.disconnect()
		default:
			o.failed = append(o.failed, err)
		}
	}
	return took, o
}
