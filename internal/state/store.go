package state

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend/marks"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// Store is the state of one target. Any goroutine may use it between Open and Close.
type Store struct {
	path string   // of the directory; "": nothing survives the process
	root *os.Root // the directory
	lock *os.File // the locked directory
	step Step

	// The promises of namespaces. They implement the stores of package target.
	Protection    *Protection
	Reservations  *Reservations
	Uncorrectable *Uncorrectable
	places        *places

	making sync.Mutex // held while directories are made

	mu     sync.Mutex // guards the fields below, and the file "state"
	data   stateData
	own    map[Connection]bool // connections of this process
	failed bool                // the last change failed

	lost atomic.Bool // the last Restore failed
}

// ErrInUse is the error of Open if another process uses the directory.
var ErrInUse = errors.New("another target uses it")

// Open reads the state in a directory, which it creates if it is missing, and locks it until Close.
// With dir "" nothing survives the process, and the stores of promises are nil.
func Open(dir string) (*Store, error) {
	s := &Store{
		path: dir, step: Direct, data: stateData{Generation: 1}, own: map[Connection]bool{},
	}
	if dir == "" {
		return s, nil
	}
	s.Protection = &Protection{newKind[protectedData, protectedData](s, "protected",
		"hosts can write to the namespace, although they have write protected it")}
	s.Reservations = &Reservations{newKind[reservation.State, reservationsData](s, reservationsKind,
		"no host is registered with the namespace, and hosts that were locked out can write again")}
	s.Uncorrectable = &Uncorrectable{newKind[marks.Kept, uncorrectableData](s, "uncorrectable",
		"blocks that hosts have marked uncorrectable can be read again, with old data")}
	s.places = &places{kind: newKind[placeData, placeData](s, "shared", withoutPlace)}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Store) open() error {
	if !filepath.IsAbs(s.path) {
		return fmt.Errorf("state directory %q: it depends on the working directory. Name an "+
			"absolute path in STATE_DIRECTORY", s.path)
	}
	err := makeDir(s.path)
	if err == nil {
		s.root, err = os.OpenRoot(s.path)
	}
	if err == nil {
		s.lock, err = s.root.Open(".")
	}
	if err != nil {
		return s.fault(err)
	}
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == unix.EWOULDBLOCK {
		return fmt.Errorf("state directory %s: %w. Stop that one, or name another directory in "+
			"STATE_DIRECTORY", s.path, ErrInUse)
	} else if err != nil {
		return s.fault(err)
	}
	if err := s.read(); err != nil {
		return err
	}
	for _, load := range []func() error{
		s.Protection.load, s.Reservations.load, s.Uncorrectable.load, s.places.load,
	} {
		if err := load(); err != nil {
			return s.fault(err)
		}
	}
	return nil
}

// fault wraps an error about all promises, with a hint.
func (s *Store) fault(err error) error {
	do := "Repair it"
	switch {
	case forbidden(err):
		do = fmt.Sprintf("Let the user of the target (ID %d) read and write it and its files",
			os.Geteuid())
	case errors.Is(err, unix.EROFS):
		do = "Make its file system writable"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		do = "Make room on its file system"
	case errors.Is(err, unix.ENOTDIR):
		do = "Move away the file in its place"
	}
	return fmt.Errorf("state directory %s cannot be used: %w. %s, or name another directory in "+
		"STATE_DIRECTORY: then the port IDs, write protection, reservations and uncorrectable "+
		"blocks in that one apply", s.path, err, do)
}

// forbidden reports whether an error means that this user lacks a permission.
func forbidden(err error) bool {
	return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
}

// restore returns a hint for an unusable file.
func restore(err error) string {
	if forbidden(err) {
		return fmt.Sprintf("Let the user of the target (ID %d) read it", os.Geteuid())
	}
	return "Restore it"
}

// Close unlocks the directory. It must be called once.
func (s *Store) Close() error {
	s.mu.Lock() // a late RemoveConnection would undo changes of the next process
	defer s.mu.Unlock()
	var errs []error
	if s.root != nil {
		errs = append(errs, s.root.Close())
	}
	if s.lock != nil {
		// A child process that has not yet executed its program shares the lock.
		_ = unix.Flock(int(s.lock.Fd()), unix.LOCK_UN)
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// Dir returns the directory, "" if there is none.
func (s *Store) Dir() string { return s.path }

func (s *Store) at(file string) string { return filepath.Join(s.path, file) }

// Check returns an error if a namespace must not be served because a promise about it cannot be
// read, or is not where it is looked for: in an object of pool, or with "" in this directory. Each
// call reads an unusable file again.
func (s *Store) Check(n Name, pool string) error {
	if s.path == "" {
		return nil
	}
	return cmp.Or(s.Protection.check(n), s.Reservations.check(n), s.Uncorrectable.check(n),
		s.places.check(n, pool))
}

// Note notes that the promises of a namespace are in an object of pool.
func (s *Store) Note(n Name, pool string) error {
	if s.path == "" {
		return nil
	}
	return s.places.note(n, pool, false)
}

// Found notes that the object of a namespace exists. It returns an error if it has existed, and
// does not now. If pool is "" it notes nothing about namespaces that Note was not called for.
func (s *Store) Found(n Name, pool string, exists bool) error {
	if s.path == "" {
		return nil
	}
	err := s.places.refuseIf(n, func(is *placeData) error {
		if exists || !is.Stored {
			return nil
		}
		return fmt.Errorf("it is missing, although it existed (%s says so)",
			s.at(s.places.file(n)))
	})
	if err == nil && exists {
		err = s.places.note(n, pool, true)
	}
	return err
}

// Each calls kept for every namespace with reservations, and bad with the errors of files of
// namespaces.
func (s *Store) Each(kept func(n Name, file string), bad func(error)) {
	if s.path == "" {
		return
	}
	s.Protection.each(func(Name, string) {}, bad)
	s.Reservations.each(kept, bad)
	s.Uncorrectable.each(func(Name, string) {}, bad)
	s.places.each(func(Name, string) {}, bad)
}

// Restore writes the files again that were deleted, and calls restored for each. The promises are
// in memory, and would be lost with the next start. It reports a directory that is no longer in its
// place, or of each kind of promise the first error. One goroutine at a time; it blocks while files
// are made durable.
func (s *Store) Restore(restored func(file string, err error)) {
	if s.path == "" {
		return
	}
	err := s.usable()
	if err != nil {
		restored(s.path, err)
	} else {
		err = errors.Join(s.restore(restored), s.Protection.restore(restored),
			s.Reservations.restore(restored), s.Uncorrectable.restore(restored),
			s.places.restore(restored))
	}
	s.lost.Store(err != nil)
}

// restore writes the state file again if it is missing.
func (s *Store) restore(restored func(file string, err error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rewrite(stateFile, stateKind, s.data, restored)
}

// rewrite writes a file again if it is missing. Nothing else may change it meanwhile.
func (s *Store) rewrite(file, kind string, data any, restored func(string, error)) error {
	if !s.isMissing(file) {
		return nil
	}
	text, err := encode(kind, data)
	if err == nil {
		err = s.replace(file, text)
	}
	restored(s.at(file), err)
	return err
}

// isMissing reports whether a file does not exist.
func (s *Store) isMissing(file string) bool {
	_, err := s.root.Lstat(file)
	return errors.Is(err, fs.ErrNotExist)
}

// Failed reports whether the most recent write of something failed, or the last Restore.
func (s *Store) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed || s.lost.Load() || s.path != "" && (s.Protection.failed.Load() ||
		s.Reservations.failed.Load() || s.Uncorrectable.failed.Load() || s.places.failed.Load())
}

// usable returns an error unless the directory is still where the next start looks for it.
func (s *Store) usable() error {
	here, err := s.root.Stat(".")
	if err != nil {
		return err // closed
	}
	if there, err := os.Stat(s.path); err != nil || !os.SameFile(here, there) {
		return errors.New("the state directory is no longer the one that the target has opened: " +
			"it was moved or deleted, or something is mounted there. Undo that, or restart the " +
			"target")
	}
	return nil
}

// replace writes a file so that after a crash it has its old content or the new one.
func (s *Store) replace(file string, content []byte) error {
	dir, next := path.Dir(file), file+".new" // replaces one left by a crash
	err := s.usable()
	if err == nil {
		err = s.makeSub(dir)
	}
	if err == nil {
		err = create(content, s.step, func() (*os.File, error) { return s.root.Create(next) })
		if err == nil {
			err = s.step("rename", func() error { return s.root.Rename(next, file) })
		}
		if err != nil {
			err = errors.Join(err, unlessMissing(s.root.Remove(next)))
		}
	}
	if err == nil {
		err = s.sync(dir)
	}
	if err != nil {
		return fmt.Errorf("%s cannot be written: %w", s.at(file), err)
	}
	return nil
}

// remove removes a file, if it exists, so that it does not come back after a crash.
func (s *Store) remove(file string) error {
	err := s.usable()
	if err == nil {
		err = unlessMissing(s.step("remove", func() error { return s.root.Remove(file) }))
	}
	if err == nil {
		err = unlessMissing(s.sync(path.Dir(file))) // the directory may be missing, too
	}
	if err != nil {
		return fmt.Errorf("%s cannot be removed: %w", s.at(file), err)
	}
	return nil
}

// sync makes the names in a directory durable.
func (s *Store) sync(dir string) error {
	return s.step("sync directory", func() error {
		f, err := s.root.Open(dir)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
}

// makeSub makes a directory below the state directory, durably.
func (s *Store) makeSub(dir string) error {
	s.making.Lock() // so that nobody uses it before it is durable
	defer s.making.Unlock()
	if _, err := s.root.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.root.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return s.sync(".")
}

// DefaultDir returns the directory of the state of the program: the one given by the service
// manager (systemd.exec(5), StateDirectory; the first of several), or the standard directory of
// Linux, for users of the XDG base directory specification.
func DefaultDir(env func(string) string) string {
	dir, _, _ := strings.Cut(env("STATE_DIRECTORY"), ":")
	switch {
	case dir != "":
		return dir
	case os.Geteuid() == 0:
		return "/var/lib/nvmf-target"
	case env("XDG_STATE_HOME") != "":
		return filepath.Join(env("XDG_STATE_HOME"), "nvmf-target")
	}
	return filepath.Join(env("HOME"), ".local/state/nvmf-target")
}
