package uring

import "sync"

// shared are the rings in use, by eventfd and kind: one of each kind per reactor.
var shared = struct {
	sync.Mutex
	rings map[key]*entry
}{rings: map[key]*entry{}}

type key struct {
	eventFD  int
	commands bool
}

type entry struct {
	users int // under shared
	once  sync.Once
	ring  *Ring
	err   error
}

// Acquire returns the ring of the reactor with cfg.EventFD. The first caller makes it. Any
// goroutine may call it. Each success is followed by one Release.
func Acquire(cfg Config) (*Ring, error) {
	k := cfg.key()
	shared.Lock()
	e := shared.rings[k]
	if e == nil {
		e = &entry{}
		shared.rings[k] = e
	}
	e.users++
	shared.Unlock()
	e.once.Do(func() { e.ring, e.err = create(cfg, entries, slots) })
	if e.err != nil {
		_ = e.leave(k)
		return nil, e.err
	}
	return e.ring, nil
}

// Release undoes an Acquire on the thread that used the ring. The last one closes it.
func (r *Ring) Release() error {
	k := r.cfg.key()
	shared.Lock()
	e := shared.rings[k]
	shared.Unlock()
	return e.leave(k)
}

func (c *Config) key() key { return key{c.EventFD, c.Commands} }

func (e *entry) leave(k key) error {
	shared.Lock()
	e.users--
	last := e.users == 0
	if last && shared.rings[k] == e {
		delete(shared.rings, k)
	}
	shared.Unlock()
	if last && e.ring != nil {
		return e.ring.Close()
	}
	return nil
}
