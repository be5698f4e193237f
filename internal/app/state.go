package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// stateVersion is that of the format of the state file.
const stateVersion = 1

// mostPorts is how many port IDs are remembered, those of listeners included that are no longer
// configured and may come back.
const mostPorts = 1024

// generations is how many generations of the discovery log a state file leaves room for: the log
// changes more often than the file is written, also while the program is being killed.
const generations = 1 << 20

// state is what hosts know and no configuration says. It outlives the program in a file. If that
// cannot be written, the log says so, and hosts may see other port IDs after a restart.
type state struct {
	file     string // "": it ends with the program
	unusable bool   // it does so although it should not
	dir      int    // the directory of file, locked; negative: none
	log      *slog.Logger
	// others say whether other files could not be written at last. Set before there are hosts.
	others []*atomic.Bool

	mu      sync.Mutex
	data    stateData
	unsaved bool // the file does not have data
}

type stateData struct {
	Version int `json:"version"`
	// Generation is one that no discovery log has had.
	Generation uint64 `json:"generation"`
	// Ports has the port IDs of listeners, the ones used last at the end.
	Ports []statePort `json:"ports"`
	// Protected are the namespaces that hosts have write protected.
	Protected []stateNamespace `json:"protected,omitempty"`
}

type stateNamespace struct {
	Subsystem string `json:"subsystem"`
	NSID      uint32 `json:"nsid"`
}

type statePort struct {
	Listener string `json:"listener"`
	ID       uint16 `json:"id"`
}

// loadState reads the state file. One that does not exist is empty; one that another target uses is
// left to it. The state must be closed.
func loadState(file string, log *slog.Logger) (*state, error) {
	s := &state{file: file, dir: -1, log: log}
	s.data = stateData{Version: stateVersion, Generation: 1}
	if file == "" {
		return s, nil
	}
	if err := s.lock(); err != nil {
		s.file, s.unusable = "", true
		s.warn(err)
		return s, nil
	}
	if err := s.read(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// lock keeps other targets from using the directory of the file.
func (s *state) lock() error {
	dir := filepath.Dir(s.file)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	fd, err := openDir(dir)
	if err != nil {
		return err
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if err == unix.EWOULDBLOCK {
			err = errors.New("another target uses it")
		}
		return errors.Join(fmt.Errorf("directory %s: %w", dir, err), unix.Close(fd))
	}
	s.dir = fd
	return nil
}

// close leaves the file to others.
func (s *state) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dir < 0 {
		return nil
	}
	fd := s.dir
	s.dir = -1
	return unix.Close(fd)
}

func (s *state) warn(err error) {
	s.log.Warn("state file cannot be written: hosts may see other port IDs after a restart; "+
		"name a directory that can be written in STATE_DIRECTORY", "err", err)
}

// read reads the file.
func (s *state) read() error {
	file := s.file
	text, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("state file: %w", err)
	}
	var d stateData
	err = json.Unmarshal(text, &d)
	if err == nil && (d.Version != stateVersion || d.Generation == 0 || len(d.Ports) > mostPorts) {
		err = fmt.Errorf("version %d, generation %d, %d ports", d.Version, d.Generation,
			len(d.Ports))
	}
	for i, p := range d.Ports {
		if err == nil && (p.ID == 0 || slices.ContainsFunc(d.Ports[:i], func(o statePort) bool {
			return o.ID == p.ID || o.Listener == p.Listener
		})) {
			err = fmt.Errorf("port ID %d of %s", p.ID, p.Listener)
		}
	}
	if err != nil {
		return fmt.Errorf("state file %s cannot be used: %w. Hosts may see other "+
			"port IDs if you delete it", file, err)
	}
	s.data = d
	return nil
}

// ports returns the port IDs of listeners: those that they had before, or new ones. The file has
// them when it returns.
func (s *state) ports(names []string) map[string]uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids, d := map[string]uint16{}, s.data
	d.Ports = slices.Clone(d.Ports)
	for _, name := range names {
		i := slices.IndexFunc(d.Ports, func(p statePort) bool { return p.Listener == name })
		p := statePort{name, 0}
		if i >= 0 {
			p = d.Ports[i]
			d.Ports = slices.Delete(d.Ports, i, i+1)
		} else {
			if len(d.Ports) == mostPorts {
				d.Ports = d.Ports[1:]
			}
			p.ID = d.free()
		}
		d.Ports = append(d.Ports, p)
		ids[name] = p.ID
	}
	if s.unsaved || !slices.Equal(d.Ports, s.data.Ports) {
		s.store(d)
	}
	return ids
}

// free returns the lowest port ID that is not used. 0 is none of ours.
func (d *stateData) free() uint16 {
	used := make(map[uint16]bool, len(d.Ports))
	for _, p := range d.Ports {
		used[p.ID] = true
	}
	id := uint16(1)
	for used[id] {
		id++
	}
	return id
}

// generation returns a generation for the discovery log that it has never had, and leaves room for
// those that follow.
func (s *state) generation() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, next := s.data, s.data.Generation
	d.Generation += generations
	s.store(d)
	return next
}

// Protected implements target.ProtectionStore.
func (s *state) Protected(nqn string, nsid uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.data.Protected, stateNamespace{nqn, nsid})
}

// SetProtected implements target.ProtectionStore.
func (s *state) SetProtected(nqn string, nsid uint32, protected bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns, d := stateNamespace{nqn, nsid}, s.data
	if slices.Contains(d.Protected, ns) == protected {
		return nil
	}
	d.Protected = slices.DeleteFunc(slices.Clone(d.Protected),
		func(o stateNamespace) bool { return o == ns })
	if protected {
		d.Protected = append(d.Protected, ns)
	}
	if s.dir < 0 {
		return errors.New("the state file is another target's")
	}
	if err := s.write(d); err != nil {
		return err
	}
	s.data = d
	return nil
}

// store replaces the state, and the file if that is possible.
func (s *state) store(d stateData) {
	s.data = d
	err := s.write(d)
	if s.unsaved = err != nil; s.unsaved {
		s.warn(err)
	}
}

// write replaces the file as a whole: after a crash it has the old content or the new one.
func (s *state) write(d stateData) error {
	if s.file == "" {
		return nil
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(s.file, append(text, '\n'), direct)
}

// fileStep carries out one operation on a file. Tests let it fail, or stop there.
type fileStep func(what string, fn func() error) error

func direct(_ string, fn func() error) error { return fn() }

// replaceFile writes a file so that after a crash it has its old content or the new one.
func replaceFile(path string, content []byte, step fileStep) error {
	dir, next := filepath.Dir(path), path+".new" // one that a crash has left is replaced
	if err := makeDir(dir); err != nil {
		return err
	}
	if err := writeDurably(next, content, step); err != nil {
		return err
	}
	if err := step("rename", func() error { return os.Rename(next, path) }); err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return step("sync directory", func() error { return syncDir(dir) })
}

// writeDurably writes a file whose name is not durable yet.
func writeDurably(path string, content []byte, step fileStep) error {
	var f *os.File
	err := step("create", func() (err error) {
		f, err = os.Create(path)
		return err
	})
	if err != nil {
		return err
	}
	err = step("write", func() error {
		_, err := f.Write(content)
		return err
	})
	if err == nil {
		err = step("sync", f.Sync)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// makeDir makes a directory that is there after a crash, unless it exists.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

// syncDir makes a renamed file durable.
func syncDir(dir string) error {
	fd, err := openDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fsync(fd), unix.Close(fd))
}

func openDir(dir string) (int, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	return fd, nil
}
