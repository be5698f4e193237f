package crash

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
)

// cut is a power failure. The entries before durable are on the disk. The entries from durable to
// cached are in its volatile cache: any of their blocks may be on the disk, too, in any order.
type cut struct{ durable, cached int }

// cuts returns the places in the log where a power failure makes a difference, from the first mark
// on: after each flush, mark and write with FUA, without later entries; and before each flush,
// with parts of the entries that it makes durable. Between two flushes the log first has the
// entries that were durable at once, then the cached ones.
func cuts(log []entry) (all []cut) {
	begun, end := false, 0 // end is after the last entry that was not cached
	for i := range log {
		e := &log[i]
		if e.cached() {
			continue
		}
		if begun && i > end && (e.flags&flagFlush != 0 || i == len(log)-1) {
			all = append(all, cut{end, i})
		}
		end = i + 1
		begun = begun || e.flags&flagMark != 0 && e.mark >= 0
		if begun {
			all = append(all, cut{end, end})
		}
	}
	return all
}

// choose returns n cuts, in order. Half of them have data in the cache, if there are any. Cuts may
// be repeated.
func choose(all []cut, n int, r *rand.Rand) []cut {
	var plain, cached []cut
	for _, c := range all {
		if c.cached > c.durable {
			cached = append(cached, c)
		} else {
			plain = append(plain, c)
		}
	}
	var out []cut
	for len(out) < n && len(all) > 0 {
		from := plain
		if len(cached) > 0 && (len(out)%2 == 0 || len(plain) == 0) {
			from = cached
		}
		out = append(out, from[r.IntN(len(from))])
	}
	slices.SortFunc(out,
		func(a, b cut) int { return cmp.Or(a.durable-b.durable, a.cached-b.cached) })
	return out
}

// Report is the result of Replay.
type Report struct {
	Crashes       int
	Kept, Dropped int // blocks in the cache of the disk
	Promised      int // blocks acknowledged as durable, over all crashes
}

// Reader returns the content of the namespace on image, the content of the disk after a crash.
type Reader func(image []byte) ([]byte, error)

// Replay makes n crashes of a log, chosen by seed, and checks the namespace after each of them.
// image is the content of the disk before the log; Replay changes it.
func Replay(log []entry, j *Journal, image []byte, read Reader, n int, seed uint64) (Report,
	error,
) {
	r := rand.New(rand.NewPCG(seed, 0))
	var rep Report
	known := newKnowledge(log, j)
	done := 0
	for _, c := range choose(cuts(log), n, r) {
		for ; done < c.durable; done++ {
			if err := apply(image, &log[done], nil); err != nil {
				return rep, fmt.Errorf("entry %d: %w", done, err)
			}
		}
		known.at(c)
		after, err := rep.crash(log[c.durable:c.cached], image, r)
		if err != nil {
			return rep, err
		}
		content, err := read(after)
		if err == nil {
			err = rep.check(content, j, known)
		}
		if err != nil {
			return rep, fmt.Errorf("crash %d, after entry %d of %d, with %d in the cache: %w",
				rep.Crashes, c.durable, len(log), c.cached-c.durable, err)
		}
		rep.Crashes++
	}
	return rep, nil
}

// knowledge is the state of the blocks after a crash according to the journal.
type knowledge struct {
	j      *Journal
	places []int // of the marks in the log
	// want has the durable generation of each block, limit the last one that may be on the disk.
	want, limit    []uint32
	durable, begun int // marks that are included in want and limit
}

func newKnowledge(log []entry, j *Journal) *knowledge {
	k := &knowledge{j: j, want: make([]uint32, len(j.Zero)), limit: make([]uint32, len(j.Zero))}
	for i := range log {
		if log[i].flags&flagMark != 0 && log[i].mark >= 0 {
			k.places = append(k.places, i)
		}
	}
	return k
}

// at advances to a cut; it is called with cuts in order. A begun generation is known from the
// second mark after the cut, because the first mark may have been created before the cut.
func (k *knowledge) at(c cut) {
	for ; k.durable < len(k.places) && k.places[k.durable] < c.durable; k.durable++ {
		raise(k.want, k.j.Marks[k.durable].Durable)
	}
	next, _ := slices.BinarySearch(k.places, c.cached)
	for ; k.begun < min(next+2, len(k.places)); k.begun++ {
		raise(k.limit, k.j.Marks[k.begun].Begun)
	}
	if next+2 > len(k.places) {
		for b, zero := range k.j.Zero {
			k.limit[b] = uint32(len(zero))
		}
	}
}

func raise(to []uint32, gens []Gen) {
	for _, g := range gens {
		to[g.Block] = max(to[g.Block], g.Gen)
	}
}

// crash returns the image with a random part of the cached entries.
func (rep *Report) crash(cached []entry, image []byte, r *rand.Rand) ([]byte, error) {
	if len(cached) == 0 {
		return image, nil
	}
	after := slices.Clone(image)
	chance := r.Float64() // of a block being on the disk
	for i := range cached {
		err := apply(after, &cached[i], func() bool {
			keep := r.Float64() < chance
			if keep {
				rep.Kept++
			} else {
				rep.Dropped++
			}
			return keep
		})
		if err != nil {
			return nil, err
		}
	}
	return after, nil
}

// apply applies e to image: to the blocks for which keep returns true, or to all if keep is nil.
func apply(image []byte, e *entry, keep func() bool) error {
	if e.flags&flagMark != 0 {
		return nil
	}
	if e.off < 0 || e.off+e.length > int64(len(image)) {
		return fmt.Errorf("%d bytes at %d are outside of a disk of %d", e.length, e.off, len(image))
	}
	for at := int64(0); at < e.length; {
		n := min(BlockSize-(e.off+at)%BlockSize, e.length-at)
		if keep == nil || keep() {
			block := image[e.off+at:][:n]
			if e.flags&flagDiscard != 0 {
				clear(block)
			} else {
				copy(block, e.data[at:])
			}
		}
		at += n
	}
	return nil
}

// check compares the content of a namespace with the journal.
func (rep *Report) check(content []byte, j *Journal, k *knowledge) error {
	if len(content) < len(k.want)*BlockSize {
		return fmt.Errorf("the namespace has %d bytes: %w", len(content), errLost)
	}
	var errs []error
	for b, gen := range k.want {
		if gen > 0 {
			rep.Promised++
		}
		if err := j.check(content[b*BlockSize:][:BlockSize], uint32(b), gen,
			k.limit[b]); err != nil {
			if errs = append(errs, err); len(errs) == 4 {
				break
			}
		}
	}
	return errors.Join(errs...)
}
