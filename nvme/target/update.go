package target

import (
	"errors"
	"fmt"
	"maps"
)

// UpdateSubsystem changes everything of the subsystem cfg.NQN but its namespaces, which cfg does
// not list. Controllers that exist keep what their hosts know of them (serial and model, queues,
// transfer size, CNTLID) until they connect again. Hosts that are no longer allowed are
// disconnected; gone is closed when the last of their queues has ended, with the I/O that the
// storage had.
func (t *Target) UpdateSubsystem(cfg SubsystemConfig) (gone <-chan struct{}, err error) {
	cfg.SetDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := (*t.table.Load())[cfg.NQN]
	if s == nil {
		return nil, fmt.Errorf("subsystem %q does not exist", cfg.NQN)
	}
	now, before := newSettings(cfg), s.settings.Load()
	refused := s.update(now)
	for _, c := range refused {
		c.fail(errors.New("the host is no longer allowed to use the subsystem"))
	}
	if !now.sameHosts(before) {
		t.discoveryChanged()
	}
	done := make(chan struct{})
	go func() {
		for _, c := range refused {
			<-c.gone
		}
		close(done)
	}()
	return done, nil
}

// update changes the settings and returns the controllers whose hosts are no longer allowed. No
// more of them are admitted.
func (s *subsystem) update(now *settings) (refused []*controller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settings.Store(now)
	if s.nextCNTLID < now.CNTLIDMin || s.nextCNTLID > now.CNTLIDMax {
		s.nextCNTLID = now.CNTLIDMin
	}
	for _, c := range s.controllers {
		if !now.allows(c.hostNQN) {
			refused = append(refused, c)
		}
	}
	return refused
}

// sameHosts says whether s allows the same hosts as o.
func (s *settings) sameHosts(o *settings) bool {
	if s.AllowAnyHost || o.AllowAnyHost {
		return s.AllowAnyHost == o.AllowAnyHost
	}
	return maps.Equal(s.hosts, o.hosts)
}
