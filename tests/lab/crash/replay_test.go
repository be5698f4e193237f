package crash

import (
	"cmp"
	"encoding/gob"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// cut is a power failure. The entries before durable are on the disk. The entries from durable to
// cached are in its volatile cache: any of their blocks may be on the disk, too, in any order.
type cut struct{ durable, cached int }

// cuts returns the places in the log where a power failure makes a difference, from the first mark
// on: behind each flush, mark and write with FUA, without later entries; and before each flush,
// with parts of the entries that it makes durable. Between two flushes the log first has the
// entries that were durable at once, then the cached ones.
func cuts(log []entry) (all []cut) {
	begun, end := false, 0 // end is behind the last entry that was not cached
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
			return rep, fmt.Errorf("crash %d, behind entry %d of %d, with %d in the cache: %w",
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

const piece = 1 << 20 // bytes copied at once

// Mounted is a Reader of a namespace in a file. It writes the image to the device scratch, mounts
// the file system, which recovers as after a crash, and reads the file name.
func Mounted(fs, scratch, dir, name string) Reader {
	return func(image []byte) (content []byte, err error) {
		if err := put(scratch, image); err != nil {
			return nil, err
		}
		if err := unix.Mount(scratch, dir, fs, 0, ""); err != nil {
			return nil, fmt.Errorf("mount after the crash: %w", err)
		}
		defer func() { err = errors.Join(err, unix.Unmount(dir, 0)) }()
		content, err = os.ReadFile(dir + "/" + name)
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w: %w", err, errLost)
		}
		return content, err
	}
}

// put writes the image to a block device.
func put(dev string, image []byte) error {
	f, err := os.OpenFile(dev, os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	for at := 0; at < len(image) && err == nil; at += piece {
		_, err = f.WriteAt(image[at:min(at+piece, len(image))], int64(at))
	}
	return errors.Join(err, f.Close())
}

const ioctlTargetMessage = 0xc138fd0e // DM_TARGET_MSG

// mapperMessage is struct dm_ioctl of linux/dm-ioctl.h, followed by struct dm_target_msg.
type mapperMessage struct {
	version                [3]uint32
	dataSize, dataStart    uint32
	targets                uint32
	open                   int32
	flags, event, reserved uint32
	dev                    uint64
	name                   [128]byte
	uuid                   [129]byte
	padding                [7]byte
	target                 uint64
	text                   [64]byte
}

// Marker returns a function that puts marks into the log of a device of dm-log-writes.
func Marker(device string) (mark func(id int) error, close func() error, err error) {
	control, err := os.OpenFile("/dev/mapper/control", os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	mark = func(id int) error {
		m := mapperMessage{
			version:   [3]uint32{4},
			dataStart: uint32(unsafe.Offsetof(mapperMessage{}.target)),
		}
		m.dataSize = uint32(unsafe.Sizeof(m))
		copy(m.name[:], device)
		copy(m.text[:], "mark "+strconv.Itoa(id))
		_, _, e := unix.Syscall(unix.SYS_IOCTL, control.Fd(), ioctlTargetMessage,
			uintptr(unsafe.Pointer(&m)))
		if e != 0 {
			return fmt.Errorf("mark %d in the log of %s: %w", id, device, e)
		}
		return nil
	}
	return mark, control.Close, nil
}

// env returns an environment variable set by the scenario that runs the test.
func env(t *testing.T, name string) string {
	t.Helper()
	if os.Getenv("CRASH_JOURNAL") == "" {
		t.Skip("needs a disk below dm-log-writes, which tests/lab/scenarios/powerloss.sh creates " +
			"and names in CRASH_JOURNAL and other variables")
	}
	v := os.Getenv(name)
	testutil.MustTrue(t, v != "", "%v", name+" is not set")
	return v
}

func envInt(t *testing.T, name string) int {
	t.Helper()
	n, err := strconv.Atoi(env(t, name))
	testutil.MustTrue(t, err == nil, "%v %v", name, err)
	return n
}

// TestWrite runs a Writer on the namespace CRASH_DEV. Its disk is the device CRASH_DM of
// dm-log-writes. The test writes the file CRASH_JOURNAL.
func TestWrite(t *testing.T) {
	dev := env(t, "CRASH_DEV")
	mark, done, err := Marker(env(t, "CRASH_DM"))
	testutil.Must(t, err)
	w := testutil.Value(NewWriter(dev, 1024, uint64(envInt(t, "CRASH_SEED")), mark))(t)
	j := testutil.Value(w.Run(envInt(t, "CRASH_OPS")))(t)
	testutil.Must(t, done())
	f := testutil.Value(os.Create(env(t, "CRASH_JOURNAL")))(t)
	testutil.Must(t, gob.NewEncoder(f).Encode(j))
	testutil.Must(t, f.Close())
}

// TestReplay makes CRASH_COUNT crashes of the log that TestWrite has left on the device CRASH_LOG,
// of a disk of CRASH_SIZE bytes, and checks them with CRASH_JOURNAL. With CRASH_FS, the type of the
// file system on the disk, the namespace is the file 1.img in it, and CRASH_SCRATCH a disk of the
// same size.
func TestReplay(t *testing.T) {
	name, dev, size := env(t, "CRASH_JOURNAL"), env(t, "CRASH_LOG"), envInt(t, "CRASH_SIZE")
	f := testutil.Value(os.Open(name))(t)
	defer f.Close()
	var j Journal
	testutil.Must(t, gob.NewDecoder(f).Decode(&j))
	disk := testutil.Value(os.Open(dev))(t)
	defer disk.Close()
	log := testutil.Value(readLog(disk))(t)
	read := Reader(func(image []byte) ([]byte, error) { return image, nil })
	if fs := os.Getenv("CRASH_FS"); fs != "" {
		read = Mounted(fs, env(t, "CRASH_SCRATCH"), t.TempDir(), "1.img")
	}
	rep, err := Replay(log, &j, make([]byte, size), read, envInt(t, "CRASH_COUNT"), j.Seed)
	t.Logf("%d entries, %d marks, %d places: %+v", len(log), len(j.Marks), len(cuts(log)), rep)
	testutil.Must(t, err)
	testutil.MustTrue(t, rep.Crashes != 0 && rep.Promised != 0 && rep.Dropped != 0 && rep.Kept != 0,
		"the crashes show nothing")
}
