package app

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/netif"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// This file keeps the ports what they should be while addresses, interfaces and devices come and
// go.

// Network is what a machine has of addresses; see netif.Machine.
type Network interface {
	Read(rdma ...string) (netif.State, error)
	Watch(changed func()) (stop func(), err error)
	Handshakes() ([]netif.Handshake, error)
	Route(from, to netip.Addr) (string, error)
}

// Pauses: between an event and what is done about it, which grows while events keep coming; and
// without an event, which grows while there are none.
const (
	settleFirst = 20 * time.Millisecond
	settleMax   = 2 * time.Second
	retryFirst  = 100 * time.Millisecond
	retryMax    = 30 * time.Second
)

// mostLogged is how many ports are logged that change in the same way at the same time.
const mostLogged = 16

// start begins to follow what becomes of the addresses.
func (ls *listeners) start() {
	unwatch, err := ls.s.opts.Network.Watch(ls.try)
	if err != nil {
		ls.s.log.Warn("listeners follow addresses and devices that come and go up to 30 s later",
			"err", err)
		unwatch = func() {}
	}
	quit := make(chan struct{})
	go ls.heal(quit)
	go ls.watchHandshakes(quit)
	ls.stop = func() {
		close(quit)
		unwatch()
	}
}

// try has heal look at everything soon.
func (ls *listeners) try() {
	select {
	case ls.wake <- struct{}{}:
	default: // it will
	}
}

// heal makes the ports what they should be after every event, and now and then: an error may pass
// without an event.
func (ls *listeners) heal(quit <-chan struct{}) {
	first := cmp.Or(ls.s.opts.Retry, retryFirst)
	calm := cmp.Or(ls.s.opts.Settle, settleFirst)
	pause, settle, last := first, calm, time.Time{}
	for {
		select {
		case <-quit:
			return
		case <-time.After(pause):
			pause = min(2*pause, retryMax)
		case <-ls.wake:
			// Events come in groups. When they do not end, there is less and less hurry.
			if pause = first; time.Since(last) > 4*settle {
				settle = calm
			}
			select {
			case <-quit:
				return
			case <-time.After(settle):
			}
			settle, last = min(2*settle, settleMax), time.Now()
			select {
			case <-ls.wake:
			default:
			}
		}
		for _, addr := range ls.look() {
			ls.s.opts.ListenerUp(addr) // which may wait for a goroutine that changes a listener
		}
		if _, waiting := ls.addrs(); len(waiting) == 0 {
			pause = retryMax
		}
	}
}

// look reads what the machine has, and updates the ports. It returns the addresses of those that
// are open now and were not before.
func (ls *listeners) look() []fabric.Addr {
	ls.changing.Lock()
	defer ls.changing.Unlock()
	if ls.stopped {
		return nil
	}
	ls.read(nil)
	up, gone, err := ls.update()
	if err != nil {
		ls.s.log.Warn("a listener cannot be closed", "err", err)
	}
	ls.report("listener is closed, this machine no longer has its address", gone)
	ls.report("listener is up", up)
	open, _ := ls.addrs()
	ls.s.announce(open, &ls.machine)
	return up[:min(len(up), mostLogged)]
}

// report logs what has happened to ports, but not without end.
func (ls *listeners) report(message string, addrs []fabric.Addr) {
	for i, addr := range addrs {
		if i == mostLogged {
			ls.s.log.Info("log lines were dropped", "lines", len(addrs)-i, "message", message)
			return
		}
		ls.s.log.Info(message, "listener", addr.String())
	}
}

// read reads what the machine has for the listeners and the next ones. If it cannot, that is taken
// to be as before.
func (ls *listeners) read(next []config.Listener) {
	list := slices.Clone(next)
	ls.mu.Lock()
	for _, l := range ls.list {
		list = append(list, l.Listener)
	}
	ls.mu.Unlock()
	m, err := ls.s.opts.Network.Read(devices(list)...)
	if err == nil {
		ls.machine, ls.unread = m, false
		return
	}
	if !ls.unread { // once, not at every look
		ls.s.log.Warn("listeners do not follow addresses that come and go", "err", err)
	}
	ls.unread = true
}

// devices are the names that listeners have for what may be RDMA devices.
func devices(list []config.Listener) (names []string) {
	for _, l := range list {
		if l.Address.Device != "" && l.Transport == nvme.TransportRDMA {
			names = append(names, l.Address.Device)
		}
	}
	return names
}
