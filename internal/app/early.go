package app

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/listeners"
)

// early is the RDMA stack of the devices for a process that listens before its predecessor ends.
// Its first communication manager has these listeners: requests of hosts wait in them until settle
// is called.
type early struct {
	verbs.Provider
	cm    *earlyCM // nil: there are no listeners
	given atomic.Bool
}

func (e *early) NewCM() (verbs.CM, error) {
	if e.cm != nil && e.given.CompareAndSwap(false, true) {
		return e.cm, nil
	}
	return e.Provider.NewCM()
}

// settle releases the waiting requests, after the configured listeners were opened.
func (e *early) settle() {
	if e.cm == nil {
		return
	}
	if e.given.CompareAndSwap(false, true) { // no listener is for RDMA devices
		_ = e.cm.Close()
	}
	_ = e.cm.settle() // the process has listeners that nobody uses
}

// earlyCM is a communication manager with open listeners.
type earlyCM struct {
	verbs.CM
	once    sync.Once
	settled chan struct{} // closed when all listeners have their users

	mu  sync.Mutex
	ids map[listeners.Handed]verbs.ID // which nobody has taken
}

// open listens. The predecessor has closed its listeners, which takes effect after a moment.
func (e *early) open(list []listeners.Handed) error {
	if len(list) == 0 {
		return nil
	}
	cm, err := e.Provider.NewCM()
	if err != nil {
		return err
	}
	e.cm = &earlyCM{CM: cm, settled: make(chan struct{}), ids: map[listeners.Handed]verbs.ID{}}
	for until := time.Now().Add(patience); len(list) > 0; {
		id, err := cm.Listen(list[0].At, rdma.Backlog, list[0].TOS)
		switch {
		case err == nil:
			e.cm.ids[list[0]] = id
			list = list[1:]
		case !errors.Is(err, unix.EADDRINUSE) || time.Now().After(until):
			return fmt.Errorf("listen at %v: %w", list[0].At, err)
		default:
			time.Sleep(patiencePause)
		}
	}
	return nil
}

func (c *earlyCM) Listen(at netip.AddrPort, backlog int, tos uint8) (verbs.ID, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := listeners.Handed{At: at, TOS: tos}
	if id := c.ids[key]; id != nil {
		delete(c.ids, key)
		return id, nil
	}
	id, err := c.CM.Listen(at, backlog, tos)
	if errors.Is(err, unix.EADDRINUSE) && len(c.ids) > 0 { // the configuration has changed
		if err = c.drop(); err == nil {
			id, err = c.CM.Listen(at, backlog, tos)
		}
	}
	return id, err
}

// drop closes the unused listeners. c.mu is held.
func (c *earlyCM) drop() (err error) {
	for _, id := range c.ids {
		err = errors.Join(err, id.Destroy())
	}
	clear(c.ids)
	return err
}

// Next returns no event before settle is called: a request needs the user of its listener.
func (c *earlyCM) Next() (verbs.Event, error) {
	<-c.settled
	return c.CM.Next()
}

func (c *earlyCM) settle() (err error) {
	c.once.Do(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		err = c.drop()
		close(c.settled)
	})
	return err
}

func (c *earlyCM) Close() error { return errors.Join(c.settle(), c.CM.Close()) }
