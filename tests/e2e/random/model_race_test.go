package random

import (
	"bytes"
	"slices"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// race sends fused pairs that replace the same blocks, from several controllers at once. With them
// it sends reads, and a command that changes some of these blocks unconditionally. The winning pair
// is undetermined, but at most one pair succeeds, and before the other command.
func (x *modelRun) race() {
	x.T.Helper()
	ns, slba, n := x.somewhere()
	n = min(n, ns.atomic)
	var able []int
	for c := range x.hosts {
		if x.m.io(c, ns, slba, n, true).OK() {
			able = append(able, c)
		}
	}
	if len(able) == 0 || ns.Marked(slba, n) {
		return
	}
	old := bytes.Clone(ns.at(slba, n))
	var batch, pairs []*modelCommand
	add := func(name string) *modelCommand {
		c := &modelCommand{
			name: name, c: able[x.rnd.IntN(len(able))], queue: 1 + x.rnd.IntN(modelQueues),
			slot: len(batch),
		}
		batch = append(batch, c)
		return c
	}
	for range 1 + x.rnd.IntN(4) {
		c := add("Compare and Write")
		buf := x.memory(c, len(old))
		copy(buf, old)
		hosttest.SetCompare(c.add(), ns.nsid, slba, n, buf)
		buf = x.memory(c, len(old))
		x.random(buf)
		c.add().Write(ns.nsid, slba, n, buf, 0)
		c.ops[0].SQE.SetFlags(1)
		c.ops[1].SQE.SetFlags(2)
		pairs = append(pairs, c)
	}
	change := x.raceChange(add, ns, slba, n)
	for range x.rnd.IntN(3) {
		c := add("Read")
		c.add().Read(ns.nsid, slba, n, x.memory(c, len(old)))
	}
	x.rnd.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
	x.send(batch)
	x.trace(batch)
	x.raceResult(batch, pairs, change, ns, slba, n)
}

// raceChange adds a command that changes some of the blocks. It returns a function that makes the
// same change, nil if there is none.
func (x *modelRun) raceChange(add func(string) *modelCommand, ns *modelNamespace, slba uint64,
	n uint32,
) (change func(content []byte)) {
	first := x.rnd.Uint32N(n)
	count := 1 + x.rnd.Uint32N(n-first)
	at := slba + uint64(first)
	part := func(content []byte) []byte {
		return content[int(first)*ns.blockSize:][:int(count)*ns.blockSize]
	}
	zero := !slices.ContainsFunc(part(ns.at(slba, n)), func(b byte) bool { return b != 0 })
	switch k := x.rnd.IntN(4); {
	case k == 0:
		return nil
	case k == 1 && !zero:
		c := add("Write Zeroes")
		hosttest.SetWriteZeroes(c.add(), ns.nsid, at, count, 0)
		return func(content []byte) { clear(part(content)) }
	case k == 2 && !zero:
		c := add("Dataset Management")
		buf := x.memory(c, nvme.DSMRangeSize)
		(*nvme.DSMRange)(buf).Set(at, count)
		hosttest.SetDiscard(c.add(), ns.nsid, buf)
		return func(content []byte) { clear(part(content)) }
	}
	c := add("Write")
	buf := x.memory(c, int(count)*ns.blockSize)
	x.random(buf)
	c.add().Write(ns.nsid, at, count, buf, 0)
	return func(content []byte) { copy(part(content), buf) }
}

// raceResult checks the result of a race, and changes the model accordingly.
func (x *modelRun) raceResult(batch, pairs []*modelCommand, change func([]byte),
	ns *modelNamespace, slba uint64, n uint32,
) {
	x.T.Helper()
	content := ns.at(slba, n)
	possible := [][]byte{bytes.Clone(content)}
	wins := 0
	for _, c := range pairs {
		if d := c.differs(); d != "" {
			x.fatal(c, "%s", d)
		}
		switch first, second := c.status(0), c.status(1); {
		case first.OK() && second.OK():
			wins++
			copy(content, c.ops[1].Data)
			possible = append(possible, bytes.Clone(content))
		case first != nvme.CompareFailure|dnr || second != nvme.AbortedFailedFused:
			x.fatal(c, "in a race: %v, %v", first, second)
		}
	}
	if wins > 1 || wins == 0 && change == nil {
		x.fatal(pairs[0], "%d of %d pairs that replace the same blocks succeed", wins, len(pairs))
	}
	if change != nil {
		change(content)
		possible = append(possible, bytes.Clone(content))
	}
	for _, c := range batch {
		switch st := c.status(0); {
		case slices.Contains(pairs, c):
		case !st.OK():
			x.fatal(c, "in a race: %v", st)
		case c.name == "Read":
			x.untorn(c, possible, ns.blockSize)
		}
	}
	c := &modelCommand{name: "Read", c: batch[0].c, queue: 1, data: content}
	c.add().Read(ns.nsid, slba, n, x.memory(c, len(content)))
	x.check([]*modelCommand{c})
}

// untorn checks that each block that was read has a content that it had at some time.
func (x *modelRun) untorn(c *modelCommand, possible [][]byte, blockSize int) {
	x.T.Helper()
	got := c.ops[0].Data
	for off := 0; off < len(got); off += blockSize {
		if !slices.ContainsFunc(possible, func(p []byte) bool {
			return bytes.Equal(p[off:][:blockSize], got[off:][:blockSize])
		}) {
			x.fatal(c, "block %d has never had what was read: torn", off/blockSize)
		}
	}
}
