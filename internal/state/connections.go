package state

import (
	"errors"
	"slices"
)

// mostConnections is the number of connections that are remembered. Those to clusters that are no
// longer used stay.
const mostConnections = 1024

// Connection is a connection to a storage cluster. Until it is removed, the cluster may carry out
// its writes, even after the process has ended.
type Connection struct {
	Cluster string `json:"cluster"`
	Address string `json:"address"`
}

// Earlier returns the addresses of connections to a cluster that earlier processes have recorded
// and not removed.
func (s *Store) Earlier(cluster string) (addrs []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.data.Connections {
		if c.Cluster == cluster && !s.own[c] {
			addrs = append(addrs, c.Address)
		}
	}
	return addrs
}

// AddConnection records a connection of this process durably.
func (s *Store) AddConnection(cluster, address string) error {
	c := Connection{cluster, address}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.data
	if len(d.Connections) >= mostConnections {
		return errors.New("connections of earlier processes fill the state file. Stop the " +
			"target, make sure that no data of theirs is on its way, and move the file away: " +
			"then hosts may see other port IDs")
	}
	d.Connections = append(slices.Clip(d.Connections), c)
	if err := s.write(d); err != nil {
		return err
	}
	s.own[c] = true
	return nil
}

// RemoveConnection removes a connection. Its writes have ended or are refused.
func (s *Store) RemoveConnection(cluster, address string) error {
	c := Connection{cluster, address}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.data
	d.Connections = slices.DeleteFunc(slices.Clone(d.Connections), func(x Connection) bool {
		return x == c
	})
	delete(s.own, c)
	return s.write(d)
}
