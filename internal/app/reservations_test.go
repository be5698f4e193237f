package app

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

const reservedSub = "nqn.2026-11.io.nvmf-target:a"

// someHosts has reservations of n hosts.
func someHosts(n int, rnd *rand.Rand) *target.Reservations {
	r := &target.Reservations{Generation: rnd.Uint32(), PTPL: true}
	for i := range n {
		r.Registrants = append(r.Registrants, target.Registrant{
			HostIdentity: target.HostIdentity{
				HostID: [16]byte{byte(i), byte(i >> 8), 15: 1}, NQN: fmt.Sprint(i % 3),
			},
			Key: rnd.Uint64() | 1,
		})
	}
	if n > 0 {
		if r.Type = nvme.ReservationType(rnd.IntN(7)); r.Type > 0 && !r.Type.AllRegistrants() {
			r.Holder = r.Registrants[rnd.IntN(n)].HostIdentity
		}
	}
	return r
}

func loaded(t *testing.T, dir string) *reservations {
	t.Helper()
	r, err := loadReservations(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// crash ends a call of Save before one of its operations, as the end of the process would.
type crash struct{}

// TestReservationsCrash stops Save before each of its operations, and loses what was not made
// durable until then: afterwards the namespace has its old reservations or the new ones, and the
// new ones if Save had returned; others are not touched.
func TestReservationsCrash(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 1))
	rounds := 100
	if testutil.Soaking() {
		rounds = 1000
	}
	for round := range rounds {
		dir := filepath.Join(t.TempDir(), "reservations")
		r := loaded(t, dir)
		other := someHosts(3, rnd)
		if err := r.Save(reservedSub, 2, other); err != nil {
			t.Fatal(err)
		}
		var old, now *target.Reservations
		if round%3 > 0 {
			old = someHosts(rnd.IntN(5), rnd)
			if err := r.Save(reservedSub, 1, old); err != nil {
				t.Fatal(err)
			}
		}
		if round%4 > 0 || old == nil {
			now = someHosts(rnd.IntN(5), rnd)
		}
		saved := r.crashInSave(t, rnd, now)
		got := loaded(t, dir)
		if l := got.Load(reservedSub, 1); !reflect.DeepEqual(l, now) &&
			(saved || !reflect.DeepEqual(l, old)) {
			t.Fatalf("round %d: %+v, want %+v (saved %v) or %+v", round, l, now, saved, old)
		}
		if l := got.Load(reservedSub, 2); !reflect.DeepEqual(l, other) {
			t.Fatalf("round %d: another namespace has %+v", round, l)
		}
		// What the crash has left is no obstacle.
		if err := got.Save(reservedSub, 1, now); err != nil {
			t.Fatal(err)
		}
		if l := loaded(t, dir).Load(reservedSub, 1); !reflect.DeepEqual(l, now) {
			t.Fatalf("round %d: %+v after another try", round, l)
		}
	}
}

// crashInSave saves reservations and ends before a random operation, or never. It says whether Save
// has returned. Content that was not synced is lost, and so are names that were not.
func (r *reservations) crashInSave(t *testing.T, rnd *rand.Rand, now *target.Reservations,
) (saved bool) {
	t.Helper()
	path := r.file(reservedName{reservedSub, 1})
	before, readErr := os.ReadFile(path)
	stop, synced, durable, renamed := rnd.IntN(7), false, true, false
	r.step = func(what string, fn func() error) error {
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
		r.step = direct
		_, crashed := recover().(crash)
		saved = !crashed
		lose := func(file string) {
			if text, err := os.ReadFile(file); err == nil {
				_ = os.WriteFile(file, text[:rnd.IntN(len(text)+1)], 0o644)
			}
		}
		if lose(path + ".new"); renamed && !synced {
			lose(path)
		}
		if !durable && rnd.IntN(2) == 0 { // the old name is still in the directory
			if _ = os.Remove(path); readErr == nil {
				_ = os.WriteFile(path, before, 0o644)
			}
		}
		if !durable && saved {
			t.Error("saved, but not durable")
		}
	}()
	if err := r.Save(reservedSub, 1, now); err != nil {
		t.Fatal(err)
	}
	return true
}

// TestReservationsErrors: an error of each operation is one of Save, the file keeps its content
// until the rename, and nothing is left over.
func TestReservationsErrors(t *testing.T) {
	rnd := rand.New(rand.NewPCG(2, 2))
	for _, what := range []string{"create", "write", "sync", "rename", "sync directory", "remove"} {
		dir := filepath.Join(t.TempDir(), "reservations")
		r := loaded(t, dir)
		old, now := someHosts(2, rnd), someHosts(3, rnd)
		if err := r.Save(reservedSub, 1, old); err != nil {
			t.Fatal(err)
		}
		if what == "remove" {
			now = nil
		}
		full := errors.New("the disk is full")
		r.step = func(step string, fn func() error) error {
			if step == what {
				return full
			}
			return fn()
		}
		if err := r.Save(reservedSub, 1, now); !errors.Is(err, full) {
			t.Errorf("%s: %v", what, err)
		}
		if l := r.Load(reservedSub, 1); !reflect.DeepEqual(l, old) {
			t.Errorf("%s: %+v", what, l)
		}
		list, err := os.ReadDir(dir)
		if err != nil || len(list) != 1 {
			t.Errorf("%s: files left: %v, %v", what, list, err)
		}
	}
}

// TestBrokenReservations: files that cannot be ours are errors that name them.
func TestBrokenReservations(t *testing.T) {
	dir := t.TempDir()
	r := loaded(t, dir)
	if err := r.Save(reservedSub, 1, someHosts(256, rand.New(rand.NewPCG(3, 3)))); err != nil {
		t.Fatal(err)
	}
	file := r.file(reservedName{reservedSub, 1})
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	loaded(t, dir)
	const host = "01000000000000000000000000000001"
	content := func(typ int, holder string, registrants ...string) string {
		return fmt.Sprintf(`{"version": 1, "subsystem": %q, "nsid": 1, "type": %d, "holder": %q,
			"registrants": [%s]}`, reservedSub, typ, holder, strings.Join(registrants, ","))
	}
	one := fmt.Sprintf(`{"hostid": %q, "key": 1}`, host)
	if err := os.WriteFile(file, []byte(content(1, host, one)), 0o644); err != nil {
		t.Fatal(err)
	}
	loaded(t, dir)
	for name, text := range map[string]string{
		"empty": "", "cut": string(good[:len(good)/2]), "another version": `{"version": 2}`,
		"another namespace": strings.Replace(string(good), `"nsid": 1`, `"nsid": 2`, 1),
		"an unknown key":    strings.Replace(string(good), `"nsid"`, `"nsids"`, 1),
		"huge":              strings.Repeat(" ", 2<<20) + string(good),
		"type 7":            content(7, host, one),
		"no holder":         content(1, "", one),
		"a holder too many": content(5, host, one),
		"a foreign holder":  content(1, strings.Replace(host, "0", "2", 1), one),
		"nobody":            content(5, ""),
		"twice":             content(0, "", one, one),
		"key 0":             content(0, "", strings.Replace(one, `"key": 1`, `"key": 0`, 1)),
		"short host":        content(0, "", strings.Replace(one, "01", "1", 1)),
		"long host":         content(0, "", strings.Replace(one, "01", "0101", 1)),
		"257 hosts": strings.Replace(string(good), `"registrants": [`,
			`"registrants": [`+one+`,`, 1),
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := loadReservations(dir); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestReservationsOutOfReach: a target that must not use the reservations of its namespaces does
// not start, and it says if some are kept for another one.
func TestReservationsOutOfReach(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	r := loaded(t, filepath.Join(filepath.Dir(file), reservationsDir))
	if err := r.Save(reservedSub, 1, someHosts(2, rand.New(rand.NewPCG(4, 4)))); err != nil {
		t.Fatal(err)
	}
	for nsid := range uint32(2) {
		c := &config.Config{Subsystems: []config.Subsystem{{Namespaces: []config.Namespace{{}}}}}
		c.Subsystems[0].NQN, c.Subsystems[0].Namespaces[0].NSID = reservedSub, nsid
		log := new(testutil.Log)
		s := &Server{opts: Options{StateFile: file}, log: log.Logger(), atStart: c}
		s.state = &state{file: file, dir: -1, log: quiet(), data: stateData{Generation: 1}}
		if _, err := s.targetOptions(); err != nil || (nsid == 0) != strings.Contains(log.String(),
			"reservations are kept for a namespace that is not configured") {
			t.Errorf("NSID %d: %v, the log:\n%s", nsid, err, log)
		}
		s.state.file = "" // another target uses it
		if _, err := s.targetOptions(); (nsid == 1) != (err != nil) {
			t.Errorf("NSID %d without the directory: %v", nsid, err)
		}
	}
}

// TestReservationsAtOnce: however many namespaces hosts change, threads that write files are few,
// and so are files that are written in a second.
func TestReservationsAtOnce(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) { reservationsAtOnce(t, dir) })
}

func reservationsAtOnce(t *testing.T, dir string) {
	t.Helper()
	r := loaded(t, dir)
	var now, most, saves atomic.Int32
	full, once := make(chan struct{}), new(sync.Once)
	r.step = func(what string, fn func() error) error {
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
			if err := r.Save(reservedSub, i, &target.Reservations{PTPL: true}); err == nil {
				saves.Add(1)
			}
		})
	}
	all.Wait()
	if most.Load() > writersAtOnce || saves.Load() != 2*writersAtOnce {
		t.Errorf("%d at once, %d in all", most.Load(), saves.Load())
	}
	if pause := time.Now().Equal(begin.Add(writerPause)); !pause {
		t.Errorf("from %v to %v, not after %v", begin, time.Now(), writerPause)
	}
}
