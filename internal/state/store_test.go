package state

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/marks"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// someHosts returns reservations of n hosts.
func someHosts(n int, rnd *rand.Rand) *reservation.State {
	r := &reservation.State{Generation: rnd.Uint32(), PTPL: true}
	for i := range n {
		r.Registrants = append(r.Registrants, reservation.Registrant{
			Host: reservation.Host{
				HostID: [16]byte{byte(i), byte(i >> 8), 15: 1}, NQN: fmt.Sprint(i % 3),
			},
			Key: rnd.Uint64() | 1,
		})
	}
	if n > 0 {
		if r.Type = nvme.ReservationType(rnd.IntN(7)); r.Type > 0 && !r.Type.AllRegistrants() {
			r.Holder = r.Registrants[rnd.IntN(n)].Host
		}
	}
	return r
}

// TestPorts: listeners keep their port IDs, and the discovery log never repeats a generation.
func TestPorts(t *testing.T) {
	s := opened(t, filepath.Join(t.TempDir(), "a", "new", "one"))
	ports := func(want map[string]uint16) {
		t.Helper()
		var names []string
		for name := range want {
			names = append(names, name)
		}
		slices.Sort(names)
		got, err := s.Ports(names)
		testutil.True(t, err == nil && reflect.DeepEqual(got, want), "%v, want %v; %v", got, want,
			err)
	}
	ports(map[string]uint16{"a": 1, "b": 2, "c": 3})
	ports(map[string]uint16{"c": 3})
	s = reopened(t, s)
	ports(map[string]uint16{"b": 2, "d": 4})
	first := testutil.Value(s.NextGeneration())(t)
	s = reopened(t, s)
	if next, err := s.NextGeneration(); err != nil || first != 1 || next <= first+1000 {
		t.Errorf("first generation %d, %d after a restart; %v", first, next, err)
	}
	for _, raised := range []uint64{1 << 40, 5} {
		must(t, s.RaiseGeneration(raised))
		s = reopened(t, s)
	}
	next := testutil.Value(s.NextGeneration())(t)
	testutil.True(t, next > 1<<40 && next < 1<<41, "generation %d after one of others", next)
	list, err := os.ReadDir(s.path)
	testutil.True(t, err == nil && len(list) == 1, "files: %v, %v", list, err)
	must(t, s.Close())
	testutil.True(t, testutil.Err(s.Ports([]string{"e"})) != nil && s.Failed(),
		"written after the end")
}

// TestManyPorts: listeners that come and go do not make the file grow without bound.
func TestManyPorts(t *testing.T) {
	s := opened(t, "")
	for i := range 2 * mostPorts {
		testutil.Value(s.Ports([]string{"kept", strconv.Itoa(i)}))(t)
	}
	if ids, _ := s.Ports([]string{"kept"}); ids["kept"] != 1 || len(s.data.Ports) > mostPorts {
		t.Errorf("%d ports, the one that was kept is %d", len(s.data.Ports), ids["kept"])
	}
	testutil.True(t, !s.Failed() && s.Check(Name{"a", 1}, "") == nil,
		"nothing is to be kept, and an alert would say so for ever")
	for _, d := range []stateData{
		{Generation: 0},
		{Generation: 1, Ports: []statePort{{"a", 0}}},
		{Generation: 1, Ports: []statePort{{"a", 1}, {"a", 2}}},
		{Generation: 1, Ports: []statePort{{"a", 1}, {"b", 1}}},
		{Generation: 1, Ports: make([]statePort, mostPorts+1)},
	} {
		testutil.True(t, d.validate() != nil, "%.100v is taken", d)
	}
}

// TestProtection: write protection survives a restart.
func TestProtection(t *testing.T) {
	s := opened(t, t.TempDir())
	set := func(nqn string, nsid uint32, protected bool) {
		t.Helper()
		must(t, s.Protection.SetProtected(nqn, nsid, protected))
	}
	expect := func(a1, a2, b1 bool) {
		t.Helper()
		s = reopened(t, s)
		p := s.Protection
		testutil.True(t, p.Protected("a", 1) == a1 && p.Protected("a", 2) == a2 && p.Protected("b",
			1) == b1, "protected: %v", p.kept)
	}
	expect(false, false, false)
	set("a", 1, true)
	set("b", 1, true)
	set("a", 1, true)
	expect(true, false, true)
	set("a", 2, true)
	set("a", 1, false)
	expect(false, true, true)
	must(t, s.Close())
}

// TestRepeated: a change that failed halfway is repeated, even though the value stays the same.
func TestRepeated(t *testing.T) {
	s := opened(t, t.TempDir())
	must(t, s.Protection.SetProtected("a", 1, true))
	s.step = func(what string, fn func() error) error {
		if err := fn(); err != nil || what != "sync directory" {
			return err
		}
		return unix.EIO
	}
	testutil.Is(t, s.Protection.SetProtected("a", 1, false), unix.EIO, "")
	s.step = Direct
	testutil.True(t, s.Protection.Protected("a", 1), "the change has failed, and holds")
	must(t, s.Protection.SetProtected("a", 1, true))
	s = reopened(t, s)
	testutil.True(t, s.Protection.Protected("a", 1), "what was acknowledged was lost")
	must(t, s.Close())
}

// crash ends a change before one of its operations, like the end of the process.
type crash struct{}

// TestCrash ends changes of all kinds before each of their operations, and loses everything not yet
// durable. Afterwards a file has its old content or the new one, and the new one if the change had
// succeeded. Other files are untouched.
func TestCrash(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 1))
	rounds := testutil.Rounds(50, 2000)
	for round := range rounds {
		s := opened(t, filepath.Join(t.TempDir(), "new"))
		other := someHosts(3, rnd)
		must(t, s.Reservations.Save(testNQN, 2, other))
		var old, now *reservation.State
		if round%3 > 0 {
			old = someHosts(rnd.IntN(5), rnd)
			must(t, s.Reservations.Save(testNQN, 1, old))
		}
		if round%4 > 0 || old == nil {
			now = someHosts(rnd.IntN(5), rnd)
		}
		saved := s.crashIn(t, rnd, s.Reservations.file(Name{testNQN, 1}), func() error {
			return s.Reservations.Save(testNQN, 1, now)
		})
		s = reopened(t, s)
		must(t, s.Check(Name{testNQN, 1}, ""))
		l := s.Reservations.Load(testNQN, 1)
		testutil.MustTrue(t, reflect.DeepEqual(l, now) || !saved && reflect.DeepEqual(l, old),
			"round %d: %+v, want %+v (saved %v) or %+v", round, l, now, saved, old)
		// The leftovers of the crash do no harm.
		must(t, s.Reservations.Save(testNQN, 1, now))
		crashedPorts(t, s, rnd)
		s = reopened(t, s)
		l = s.Reservations.Load(testNQN, 1)
		testutil.MustTrue(t, reflect.DeepEqual(l, now), "round %d: %+v after another try", round, l)
		if l := s.Reservations.Load(testNQN, 2); !reflect.DeepEqual(l, other) {
			t.Fatalf("round %d: another namespace has %+v", round, l)
		}
		must(t, s.Close())
	}
}

// crashedPorts does the same with port IDs: hosts never see a port ID change.
func crashedPorts(t *testing.T, s *Store, rnd *rand.Rand) {
	t.Helper()
	testutil.Value(s.Ports([]string{"a"}))(t)
	var ids map[string]uint16
	saved := s.crashIn(t, rnd, stateFile, func() (err error) {
		ids, err = s.Ports([]string{"b", "c"})
		return err
	})
	again := reopened(t, s)
	after, err := again.Ports([]string{"a", "c", "b"})
	testutil.MustTrue(t, err == nil && after["a"] == 1 &&
		(!saved || after["b"] == ids["b"] && after["c"] == ids["c"]), "%v, before the crash %v; %v",
		after, ids, err)
	*s = Store{path: s.path} // closed
	must(t, again.Close())
}

// crashIn makes a change and ends before a random operation, or never. It reports whether the
// change has succeeded. Content and names that were not synced are lost.
func (s *Store) crashIn(t *testing.T, rnd *rand.Rand, file string, change func() error,
) (saved bool) {
	t.Helper()
	file = s.at(file)
	before, readErr := os.ReadFile(file)
	stop, synced, durable, renamed := rnd.IntN(7), false, true, false
	s.step = func(what string, fn func() error) error {
		if stop--; stop < 0 {
			panic(crash{})
		}
		err := fn()
		switch what {
		case "sync":
			synced = true
		case "rename", "remove":
			durable, renamed = false, what == "rename"
		case "sync directory":
			durable = true
		}
		return err
	}
	defer func() {
		s.step = Direct
		_, crashed := recover().(crash)
		saved = !crashed
		lose := func(file string) {
			if text, err := os.ReadFile(file); err == nil {
				_ = os.WriteFile(file, text[:rnd.IntN(len(text)+1)], 0o644)
			}
		}
		if lose(file + ".new"); renamed && !synced {
			lose(file)
		}
		if !durable && rnd.IntN(2) == 0 { // the directory still has the old name
			if _ = os.Remove(file); readErr == nil {
				_ = os.WriteFile(file, before, 0o644)
			}
		}
		testutil.True(t, durable || !saved, "saved, but not durable")
	}()
	must(t, change())
	return true
}

// TestErrors: an error of any operation fails the change, the file keeps its content until the
// rename, and nothing is left over.
func TestErrors(t *testing.T) {
	rnd := rand.New(rand.NewPCG(2, 2))
	for _, what := range []string{"create", "write", "sync", "rename", "sync directory", "remove"} {
		s := opened(t, t.TempDir())
		old, now := someHosts(2, rnd), someHosts(3, rnd)
		must(t, s.Reservations.Save(testNQN, 1, old))
		testutil.Value(s.Ports([]string{"a"}))(t)
		if what == "remove" {
			now = nil
		}
		s.step = func(step string, fn func() error) error {
			if step == what {
				return unix.ENOSPC
			}
			return fn()
		}
		if err := s.Reservations.Save(testNQN, 1, now); !errors.Is(err, unix.ENOSPC) ||
			!strings.Contains(err.Error(), s.at(s.Reservations.file(Name{testNQN, 1}))) {
			t.Errorf("%s: %v", what, err)
		}
		l := s.Reservations.Load(testNQN, 1)
		testutil.True(t, reflect.DeepEqual(l, old) && s.Failed(), "%s: %+v", what, l)
		if ids, err := s.Ports([]string{"b"}); what != "remove" && (err == nil || ids != nil) {
			t.Errorf("%s: hosts would see port IDs that are not stored: %v", what, ids)
		}
		_, err := s.NextGeneration()
		testutil.True(t, what == "remove" || err != nil && strings.Contains(err.Error(),
			"Make room"), "%s: %v", what, err)
		list, err := os.ReadDir(s.at("reservations"))
		testutil.True(t, err == nil && len(list) == 1, "%s: files left: %v, %v", what, list, err)
		must(t, s.Close())
	}
}

// TestContents: files with a valid checksum and impossible content are refused.
func TestContents(t *testing.T) {
	s := opened(t, t.TempDir())
	n := Name{testNQN, 1}
	host := strings.Repeat("01", 16)
	one := registrantData{HostID: host, Key: 1}
	for name, d := range map[string]reservationsData{
		"type 7":            {Type: 7, Holder: host, Registrants: []registrantData{one}},
		"no holder":         {Type: 1, Registrants: []registrantData{one}},
		"a holder too many": {Type: 5, Holder: host, Registrants: []registrantData{one}},
		"a foreign holder":  {Type: 1, Holder: "02" + host[2:], Registrants: []registrantData{one}},
		"nobody":            {Type: 5},
		"twice":             {Registrants: []registrantData{one, one}},
		"key 0":             {Registrants: []registrantData{{HostID: host}}},
		"short host":        {Registrants: []registrantData{{HostID: host[1:], Key: 1}}},
		"long host":         {Registrants: []registrantData{{HostID: host + "01", Key: 1}}},
		"257 hosts":         {Registrants: make([]registrantData, 257)},
	} {
		if d.Name = n; len(d.Registrants) > 256 {
			for i := range d.Registrants {
				d.Registrants[i] = registrantData{fmt.Sprintf("%032x", i+1), 1, fmt.Sprint(i)}
			}
		}
		refused(t, s, name, s.Reservations.kind, n, d)
	}
	for name, ranges := range map[string][][2]int64{
		"not ascending": {{1024, 1536}, {0, 512}}, "not apart": {{0, 512}, {512, 1024}},
		"no block": {{0, 100}}, "too much": {{0, 2097664}},
	} {
		d := uncorrectableData{n, marksData{"disk", ranges}}
		refused(t, s, name, s.Uncorrectable.kind, n, d)
	}
	must(t, s.Close())
}

func refused[V any, D content[V]](t *testing.T, s *Store, what string, k *kind[V, D], n Name, d D) {
	t.Helper()
	text := testutil.Value(encode(k.dir, d))(t)
	must(t, s.replace(k.file(n), text))
	k.read(k.file(n))
	testutil.True(t, k.wrong(k.file(n)) != nil, "%s: taken", what)
}

// mostMarks is the marks that take the most room.
func mostMarks() *marks.Kept {
	many := &marks.Kept{Identity: "disk"}
	for off := int64(0); len(many.Ranges) < marks.Max/512; off += 1024 {
		at := 1<<60 + off
		many.Ranges = append(many.Ranges, backend.Range{Off: at, End: at + 512})
	}
	return many
}

// TestUncorrectable: the maximum number of marks survives a restart.
func TestUncorrectable(t *testing.T) {
	s := opened(t, t.TempDir())
	many := mostMarks()
	one := &marks.Kept{Identity: "b", Ranges: []backend.Range{{Off: 0, End: 4096}}}
	for nsid, now := range map[uint32]*marks.Kept{1: many, 2: one, 3: one} {
		must(t, s.Uncorrectable.Save("a", nsid, now))
	}
	must(t, s.Uncorrectable.Save("a", 3, nil))
	s = reopened(t, s)
	for nsid, want := range map[uint32]*marks.Kept{1: many, 2: one, 3: nil} {
		must(t, s.Check(Name{"a", nsid}, ""))
		got := s.Uncorrectable.Load("a", nsid)
		testutil.True(t, reflect.DeepEqual(got, want), "namespace %d: %v, want %v", nsid, got, want)
	}
	must(t, s.Close())
}

// TestManyAtOnce: however many namespaces hosts change, few threads write files, and few files are
// written per second.
func TestManyAtOnce(t *testing.T) {
	s := opened(t, t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		var now, most, saves atomic.Int32
		full, once := make(chan struct{}), new(sync.Once)
		r := &Reservations{newKind[reservation.State, reservationsData](s, "reservations", "")}
		s.step = func(what string, fn func() error) error {
			if what != "create" {
				return fn()
			}
			if n := now.Add(1); n == writersAtOnce {
				once.Do(func() { close(full) })
			}
			<-full
			most.Store(max(most.Load(), now.Load()))
			defer now.Add(-1)
			return fn()
		}
		var all sync.WaitGroup
		begin := time.Now()
		for i := range uint32(2 * writersAtOnce) {
			all.Go(func() {
				if err := r.Save(testNQN, i, &reservation.State{PTPL: true}); err == nil {
					saves.Add(1)
				}
			})
		}
		all.Wait()
		testutil.True(t, most.Load() <= writersAtOnce && saves.Load() == 2*writersAtOnce,
			"%d at once, %d in all", most.Load(), saves.Load())
		testutil.True(t, time.Now().Equal(begin.Add(writerPause)), "from %v to %v, not after %v",
			begin, time.Now(), writerPause)
	})
	must(t, s.Close())
}

// TestDirectories: an unusable directory is an error with a hint.
func TestDirectories(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	in := func(name string, make func(path string) error) string {
		path := filepath.Join(dir, name)
		must(t, os.Mkdir(path, 0o700))
		must(t, make(filepath.Join(path, "reservations")))
		return path
	}
	first := opened(t, filepath.Join(dir, "used"))
	for what, test := range map[string]struct{ dir, err string }{
		"a file":    {file, "not a directory. Move away the file in its place"},
		"below one": {filepath.Join(file, "new"), "not a directory"},
		"in use":    {first.path, "another target uses it. Stop that one"},
		"relative":  {"state", "Name an absolute path"},
		"a file in it": {
			in("a", func(p string) error { return os.WriteFile(p, nil, 0o600) }),
			"reservations",
		},
		"a FIFO in it": {
			in("b", func(p string) error { return syscall.Mkfifo(p, 0o600) }),
			"reservations",
		},
	} {
		s, err := Open(test.dir)
		testutil.True(t, err != nil && strings.Contains(err.Error(), test.err) &&
			strings.Contains(err.Error(), "STATE_DIRECTORY"), "%s: %v", what, err)
		if s != nil {
			_ = s.Close()
		}
	}
	testutil.Is(t, testutil.Err(Open(first.path)), ErrInUse, "")
	must(t, first.Close())
}

// TestOddFiles: something other than a regular file costs its namespace and does not block.
func TestOddFiles(t *testing.T) {
	s := opened(t, t.TempDir())
	must(t, s.makeSub("reservations"))
	for i, odd := range []func(string) error{
		func(p string) error { return syscall.Mkfifo(p, 0o600) },
		func(p string) error { return os.Mkdir(p, 0o700) },
		func(p string) error { return os.Symlink("/dev/zero", p) },
		func(p string) error { return os.Symlink("..", p) },
		func(p string) error { return os.WriteFile(p, make([]byte, 2<<20), 0o600) },
		func(p string) error { return os.WriteFile(p, nil, 0o600) },
	} {
		must(t, odd(s.at(s.Reservations.file(Name{"a", uint32(i)}))))
	}
	must(t, os.WriteFile(s.at("reservations/0-1.json.new"), nil, 0o600))
	s = reopened(t, s)
	for i := range uint32(6) {
		testutil.True(t, s.Check(Name{"a", i}, "") != nil &&
			s.Reservations.Save("a", i, nil) != nil, "file %d is taken", i)
	}
	bad := 0
	s.Each(func(Name, string) { t.Error("there are no reservations") }, func(error) { bad++ })
	testutil.Equal(t, bad, 6, "bad files")
	must(t, s.Close())
}

// TestForeignDirectories: a user does not get around a directory of another user, and a file of
// another user costs its namespace.
func TestForeignDirectories(t *testing.T) {
	var file string
	dir := asNobody(t, func(dir string) {
		for name, mode := range map[string]os.FileMode{"closed": 0o700, "read-only": 0o755} {
			s := opened(t, filepath.Join(dir, name))
			testutil.Value(s.NextGeneration())(t)
			must(t, s.Reservations.Save("a", 1, &reservation.State{PTPL: true}))
			must(t, os.Chmod(s.path, mode))
			must(t, s.Close())
		}
		s := opened(t, filepath.Join(dir, "file"))
		must(t, s.Reservations.Save("a", 1, &reservation.State{PTPL: true}))
		file = s.at(s.Reservations.file(Name{"a", 1}))
		must(t, os.Chmod(file, 0o600))
		must(t, os.Chown(s.path, 65534, 65534))
		must(t, s.Close())
	})
	if dir == "" {
		return
	}
	_, err := Open(filepath.Join(dir, "closed"))
	testutil.True(t, errors.Is(err, os.ErrPermission) && strings.Contains(err.Error(),
		"Let the user of the target (ID 65534)"), "mode 0700:  %v", err)
	testutil.Is(t, testutil.Err(Open(filepath.Join(dir, "not made"))), os.ErrPermission,
		"the directory above")
	s := opened(t, filepath.Join(dir, "read-only"))
	testutil.Is(t, testutil.Err(s.NextGeneration()), os.ErrPermission, "mode 0755")
	must(t, s.Close())
	s = opened(t, filepath.Join(dir, "file"))
	testutil.Is(t, s.Check(Name{"a", 1}, ""), os.ErrPermission, "a file of mode 0600")
	must(t, s.Check(Name{"a", 2}, ""))
	must(t, s.Close())
}

// TestDirectoryMoves: a change fails if the next start would look for it elsewhere.
func TestDirectoryMoves(t *testing.T) {
	s := opened(t, filepath.Join(t.TempDir(), "state"))
	must(t, s.Protection.SetProtected("a", 1, true))
	must(t, os.Rename(s.path, s.path+".old"))
	for range 2 { // first nothing is there, then something
		err := s.Protection.SetProtected("a", 2, true)
		testutil.True(t, err != nil && strings.Contains(err.Error(), "no longer the one") &&
			s.Failed(), "%v", err)
		must(t, os.MkdirAll(s.path, 0o755))
	}
	must(t, os.Remove(s.path))
	must(t, os.Rename(s.path+".old", s.path))
	must(t, s.Protection.SetProtected("a", 2, true))
	s = reopened(t, s)
	testutil.True(t, s.Protection.Protected("a", 1) && s.Protection.Protected("a", 2),
		"a protection was lost")
	must(t, s.Close())
}

// TestDeletedFiles: a file that is deleted while the target runs is written again, as it was. A
// promise that has been ended, and a bad file, are not. If that fails it is reported.
func TestDeletedFiles(t *testing.T) {
	s := full(t)
	must(t, s.Protection.SetProtected("ended", 1, true))
	must(t, s.Protection.SetProtected("ended", 1, false))
	good := map[string][]byte{}
	for _, d := range s.decoders() {
		good[s.at(d.file)] = s.content(t, d.file)
	}
	var restored []string
	var errs []error
	restore := func() {
		restored, errs = nil, nil
		s.Restore(func(file string, err error) {
			if err == nil {
				restored = append(restored, file)
			} else {
				errs = append(errs, err)
			}
		})
	}
	restore()
	testutil.True(t, len(restored) == 0 && len(errs) == 0, "%v %v", restored, errs)
	for file := range good {
		must(t, os.Remove(file))
	}
	must(t, os.RemoveAll(s.at("reservations")))
	restore()
	testutil.True(t, len(restored) == len(good) && len(errs) == 0, "%v %v", restored, errs)
	for file, want := range good {
		got := testutil.Value(os.ReadFile(file))(t)
		testutil.True(t, bytes.Equal(got, want), "%s: %s, want %s", file, got, want)
	}
	s = reopened(t, s)
	for _, deleted := range []bool{false, true} {
		must(t, os.Rename(s.path, s.path+".old"))
		for file := range good {
			if deleted {
				must(t, os.Remove(filepath.Join(s.path+".old", strings.TrimPrefix(file, s.path))))
			}
		}
		restore()
		testutil.True(t, len(restored) == 0 && len(errs) == 1 && s.Failed() &&
			strings.Contains(errs[0].Error(), "no longer the one"), "%v %v", restored, errs)
		must(t, os.Rename(s.path+".old", s.path))
		restore()
		testutil.True(t, (len(restored) == len(good)) == deleted && len(errs) == 0 && !s.Failed(),
			"%v %v", restored, errs)
	}
	must(t, s.Close())
}
