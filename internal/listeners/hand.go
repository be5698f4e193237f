package listeners

import (
	"errors"
	"net/netip"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
)

// This file hands ports of RDMA devices to the next process before this one ends (ADR 0047).

// Handed is a port that the next process opens.
type Handed struct {
	At  netip.AddrPort
	TOS uint8
}

// Freeze keeps the ports as they are: the next process has their sockets already. Otherwise the
// service manager would keep others at the same addresses.
func (ls *Listeners) Freeze(on bool) {
	ls.changing.Lock()
	defer ls.changing.Unlock()
	ls.frozen = on
	ls.try()
}

// HandOver closes the ports of RDMA devices, so that the next process can open them. Their
// connections stay, and hosts are told nothing.
func (ls *Listeners) HandOver() (list []Handed, err error) {
	ls.changing.Lock()
	defer ls.changing.Unlock()
	ls.mu.Lock()
	ports := ls.byID()
	ls.mu.Unlock()
	for _, p := range ports {
		if stackOf(p.open) != fabric.DeviceStack || p.l.Port == 0 { // it gets another port
			continue
		}
		err = errors.Join(err, p.open.Close())
		ls.mu.Lock()
		p.handed = true
		list = append(list, Handed{p.addr.AddrPort, p.l.TOS})
		ls.mu.Unlock()
	}
	return list, err
}

const (
	takeBackTries = 100 // of all ports together
	takeBackPause = 10 * time.Millisecond
)

// TakeBack opens the ports of HandOver again, because the next process has failed. The connections
// of ports that cannot be opened soon end.
func (ls *Listeners) TakeBack() {
	ls.changing.Lock()
	defer ls.changing.Unlock()
	ls.mu.Lock()
	ports := ls.byID()
	ls.mu.Unlock()
	tries := takeBackTries
	for _, p := range ports {
		if !p.handed || p.open == nil || ls.stopped {
			continue
		}
		err := ls.listen(p)
		for ; err != nil && tries > 0; tries-- {
			time.Sleep(takeBackPause)
			err = ls.listen(p)
		}
		ls.mu.Lock()
		p.err = errors.Join(err, ls.publish(p))
		ls.mu.Unlock()
	}
	ls.complain()
	ls.try()
}
