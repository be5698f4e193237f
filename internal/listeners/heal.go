package listeners

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

// This file follows addresses, interfaces and devices that come and go.

// Network has the addresses of a machine; see netif.Machine.
type Network interface {
	Read(rdma ...string) (netif.State, error)
	Watch(changed func()) (stop func(), err error)
	Handshakes() ([]netif.Handshake, error)
	Route(from, to netip.Addr) (string, error)
}

// Pauses: between an event and the reaction, which grows while events keep coming; and without an
// event, which grows while there are none.
const (
	settleFirst = 20 * time.Millisecond
	settleMax   = 2 * time.Second
	retryFirst  = 100 * time.Millisecond
	retryMax    = 30 * time.Second
)

// mostLogged limits the ports that are logged when many change together.
const mostLogged = 16

// Start begins to follow the addresses of the machine.
func (ls *Listeners) Start() {
	unwatch, err := ls.Network.Watch(ls.try)
	if err != nil {
		ls.Log.Warn("listeners follow addresses and devices that come and go up to 30 s later",
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

// try makes heal look at everything soon.
func (ls *Listeners) try() {
	select {
	case ls.wake <- struct{}{}:
	default: // already pending
	}
}

// heal updates the ports after every event, and now and then: an error may pass without an event.
func (ls *Listeners) heal(quit <-chan struct{}) {
	first := cmp.Or(ls.Retry, retryFirst)
	calm := cmp.Or(ls.Settle, settleFirst)
	pause, settle, last := first, calm, time.Time{}
	for {
		select {
		case <-quit:
			return
		case <-time.After(pause):
			pause = min(2*pause, retryMax)
		case <-ls.wake:
			// Events come in groups. If they do not end, the pauses grow.
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
			ls.Up(addr) // which may wait for a goroutine that changes a listener
		}
		if _, waiting := ls.Addrs(); len(waiting) == 0 {
			pause = retryMax
		}
	}
}

// look reads the addresses, updates the ports, and returns the addresses of opened ones.
func (ls *Listeners) look() []fabric.Addr {
	ls.changing.Lock()
	defer ls.changing.Unlock()
	if ls.stopped || ls.frozen {
		return nil
	}
	ls.read(nil)
	up, gone, err := ls.update()
	if err != nil {
		ls.Log.Warn("a listener cannot be closed", "err", err)
	}
	ls.report("listener is closed, this machine no longer has its address", gone)
	ls.report("listener is up", up)
	open, _ := ls.Addrs()
	ls.announce(open, &ls.machine)
	return up[:min(len(up), mostLogged)]
}

// report logs a message for each port, mostLogged of them at most.
func (ls *Listeners) report(message string, addrs []fabric.Addr) {
	for i, addr := range addrs {
		if i == mostLogged {
			ls.Log.Info("log lines were dropped", "lines", len(addrs)-i, "message", message)
			return
		}
		ls.Log.Info(message, "listener", addr.String())
	}
}

// read reads the addresses for the listeners and the next ones; after an error the last ones stay.
func (ls *Listeners) read(next []config.Listener) {
	list := slices.Clone(next)
	ls.mu.Lock()
	for _, l := range ls.list {
		list = append(list, l.Listener)
	}
	ls.mu.Unlock()
	m, err := ls.Network.Read(Devices(list)...)
	if err == nil {
		ls.machine, ls.unread = m, false
		return
	}
	if !ls.unread { // once, not at every look
		ls.Log.Warn("listeners do not follow addresses that come and go", "err", err)
	}
	ls.unread = true
}

// Devices returns the names in listeners that may be names of RDMA devices.
func Devices(list []config.Listener) (names []string) {
	for _, l := range list {
		if l.Address.Device != "" && l.Transport == nvme.TransportRDMA {
			names = append(names, l.Address.Device)
		}
	}
	return names
}
