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
	file string // "": it ends with the program
	log  *slog.Logger

	mu   sync.Mutex
	data stateData
}

type stateData struct {
	Version int `json:"version"`
	// Generation is one that no discovery log has had.
	Generation uint64 `json:"generation"`
	// Ports has the port IDs of listeners, the ones used last at the end.
	Ports []statePort `json:"ports"`
}

type statePort struct {
	Listener string `json:"listener"`
	ID       uint16 `json:"id"`
}

// loadState reads the state file. One that does not exist is empty.
func loadState(file string, log *slog.Logger) (*state, error) {
	s := &state{file: file, log: log, data: stateData{Version: stateVersion, Generation: 1}}
	if file == "" {
		return s, nil
	}
	text, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, nil
	case err != nil:
		return nil, fmt.Errorf("state file: %w", err)
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
		return nil, fmt.Errorf("state file %s cannot be used: %w. Hosts may see other "+
			"port IDs if you delete it", file, err)
	}
	s.data = d
	return s, nil
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
	s.store(d)
	return ids
}

// free returns the lowest port ID that is not used. 0 is none of ours.
func (d *stateData) free() uint16 {
	for id := uint16(1); ; id++ {
		if !slices.ContainsFunc(d.Ports, func(p statePort) bool { return p.ID == id }) {
			return id
		}
	}
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

// store replaces the file as a whole: after a crash it has the old content or the new one.
func (s *state) store(d stateData) {
	s.data = d
	if s.file == "" {
		return
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err == nil {
		err = replaceFile(s.file, append(text, '\n'), direct)
	}
	if err != nil {
		s.log.Warn("state file cannot be written: hosts may see other port IDs after a restart; "+
			"name a directory that can be written in STATE_DIRECTORY", "err", err)
	}
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
	var f *os.File
	err := step("create", func() (err error) {
		f, err = os.Create(next)
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
	err = errors.Join(err, f.Close())
	if err == nil {
		err = step("rename", func() error { return os.Rename(next, path) })
	}
	if err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return step("sync directory", func() error { return syncDir(dir) })
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
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	return errors.Join(unix.Fsync(fd), unix.Close(fd))
}
