package state

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

const (
	// stateFile has the promises of the whole target, and is of the kind stateKind.
	stateFile = "state"
	stateKind = "target"
	// mostState is the size limit of the file, in bytes.
	mostState = 16 << 20
	// mostPorts is the number of port IDs that are remembered, including listeners that are no
	// longer configured and may come back.
	mostPorts = 1024
	// generations is the number of discovery log generations that one write reserves: the log
	// changes more often than the file, even while the program is being killed.
	generations = 1 << 20
)

type stateData struct {
	// Generation is a generation that no discovery log has had.
	Generation uint64 `json:"generation"`
	// Ports has the port IDs of listeners, most recently used last.
	Ports []statePort `json:"ports"`
	// Managed is the managed directory, if it has objects.
	Managed string `json:"managed,omitempty"`
	// Connections has the connections to storage clusters that may write.
	Connections []Connection `json:"connections,omitempty"`
}

type statePort struct {
	Listener string `json:"listener"`
	ID       uint16 `json:"id"`
}

func (d *stateData) validate() error {
	if d.Generation == 0 || len(d.Ports) > mostPorts || len(d.Connections) > mostConnections {
		return fmt.Errorf("it has generation %d, %d port IDs and %d connections, which cannot be",
			d.Generation, len(d.Ports), len(d.Connections))
	}
	for i, p := range d.Ports {
		if p.ID == 0 || slices.ContainsFunc(d.Ports[:i], func(o statePort) bool {
			return o.ID == p.ID || o.Listener == p.Listener
		}) {
			return fmt.Errorf("its port ID %d of %s is 0, or appears twice", p.ID, p.Listener)
		}
	}
	return nil
}

func (s *Store) read() error {
	text, err := readAll(s.root, stateFile, mostState)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var d stateData
	if err == nil {
		err = decode(stateKind, text, &d)
	}
	if err == nil {
		err = d.validate()
	}
	if err != nil {
		without := "hosts may see other port IDs"
		if errors.Is(err, otherFormat(1)) { // it has the write protections, too
			without += ", and can write to namespaces that they have write protected"
		} else {
			without += ", and late writes of a target that was killed can reach images of Ceph"
		}
		return fmt.Errorf("state file %s cannot be used: %w. %s, or move it away: then %s",
			s.at(stateFile), err, restore(err), without)
	}
	s.data = d
	return nil
}

// write replaces both the state and its file, or neither. The caller holds s.mu, or nobody else has
// s.
func (s *Store) write(d stateData) error {
	if s.path != "" {
		text, err := encode(stateKind, d)
		if err == nil {
			err = s.replace(stateFile, text)
		}
		if s.failed = err != nil; err != nil {
			return err
		}
	}
	s.data = d
	return nil
}

// Ports returns the port IDs of listeners, earlier or new ones, once they are durable.
func (s *Store) Ports(names []string) (map[string]uint16, error) {
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
	if slices.Equal(d.Ports, s.data.Ports) {
		return ids, nil
	}
	if err := s.write(d); err != nil {
		return nil, fmt.Errorf("port IDs cannot be stored: %w", err)
	}
	return ids, nil
}

// free returns the lowest unused port ID, which is not 0.
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

// NextGeneration returns a generation that the discovery log has never had, and reserves the
// following ones. So every start writes the state file.
func (s *Store) NextGeneration() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, next := s.data, s.data.Generation
	d.Generation += generations
	if err := s.write(d); err != nil {
		return 0, s.fault(err)
	}
	return next, nil
}

// RaiseGeneration makes NextGeneration return more than a generation.
func (s *Store) RaiseGeneration(to uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.data
	if to < d.Generation {
		return nil
	}
	d.Generation = to + generations
	return s.write(d)
}

// Managed returns the managed directory that has objects, "" if there is none.
func (s *Store) Managed() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data.Managed
}

// SetManaged records durably that a managed directory has objects, or that there is none.
func (s *Store) SetManaged(dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.data
	if d.Managed = dir; dir == s.data.Managed {
		return nil
	}
	return s.write(d)
}
