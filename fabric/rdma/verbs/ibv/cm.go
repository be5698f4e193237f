//go:build cgo

package ibv

/*
#include <stdlib.h>
#include "bind.h"
*/
import "C"

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// cm is an event channel.
type cm struct {
	p  *provider
	ch *C.struct_rdma_event_channel
	// file is a duplicate of the channel's descriptor for the runtime to watch; raw waits on it.
	file *os.File
	raw  syscall.RawConn

	// inEvent is held while librdmacm uses an ID: from an event's reading to its acknowledgement.
	inEvent sync.Mutex
	closed  bool // under inEvent

	mu  sync.Mutex
	ids map[*C.struct_rdma_cm_id]*id
}

func (p *provider) NewCM() (verbs.CM, error) {
	const call = "rdma_create_event_channel"
	ch, err := C.rdma_create_event_channel()
	if ch == nil {
		return nil, noDevice(failErr(call, err, ""), unix.ENOENT, unix.ENODEV, unix.ENOSYS,
			unix.ENXIO)
	}
	c := &cm{p: p, ch: ch, ids: map[*C.struct_rdma_cm_id]*id{}}
	if c.file, c.raw, err = watchable(int(ch.fd), "rdma event channel"); err != nil {
		C.rdma_destroy_event_channel(ch)
		return nil, failErr("fcntl", err, "event channel")
	}
	return c, nil
}

func (c *cm) Close() error {
	c.mu.Lock()
	n := len(c.ids)
	c.mu.Unlock()
	if n > 0 {
		return fail("rdma_destroy_event_channel", unix.EBUSY, "with %d IDs", n)
	}
	c.inEvent.Lock()
	was := c.closed
	c.closed = true
	c.inEvent.Unlock()
	if was {
		return nil
	}
	err := c.file.Close() // ends Next, and waits until it no longer uses the descriptor
	C.rdma_destroy_event_channel(c.ch)
	return err
}

func (c *cm) Next() (verbs.Event, error) {
	for {
		var ev verbs.Event
		var ok bool
		var failed error
		err := c.raw.Read(func(uintptr) bool {
			var again bool
			ev, ok, again, failed = c.take()
			return !again
		})
		switch {
		case err != nil && c.isClosed(): // os exports no error for a wait that Close ended
			return verbs.Event{}, verbs.ErrClosed
		case err != nil:
			return verbs.Event{}, fmt.Errorf("wait for an event: %w", err)
		case failed != nil:
			return verbs.Event{}, failed
		case ok:
			return ev, nil
		}
	}
}

func (c *cm) isClosed() bool {
	c.inEvent.Lock()
	defer c.inEvent.Unlock()
	return c.closed
}

// take reads and acknowledges an event. again: there is none yet; ok: it belongs to an ID.
func (c *cm) take() (ev verbs.Event, ok, again bool, err error) {
	c.inEvent.Lock()
	defer c.inEvent.Unlock()
	if c.closed {
		return ev, false, false, verbs.ErrClosed
	}
	var e C.struct_vb_event
	switch errno := unix.Errno(C.vb_get_event(c.ch, &e)); errno {
	case 0:
	case unix.EAGAIN:
		return ev, false, true, nil
	case unix.EINTR:
		return ev, false, false, nil
	default:
		return ev, false, false, fail("rdma_get_cm_event", errno, "")
	}
	// C IDs are not freed before the acknowledgement, so no other ID has the same address.
	ev = verbs.Event{Type: verbs.EventType(e._type), Status: int(e.status), Param: param(&e.param)}
	var unwanted *C.struct_rdma_cm_id
	c.mu.Lock()
	if ev.Type == verbs.EventConnectRequest {
		if l := c.ids[e.listen_id]; l != nil {
			i := c.add(e.id)
			i.refresh()
			ev.ID, ev.Listener, ok = i, l, true
		} else {
			unwanted = e.id // its listener is being destroyed
		}
	} else if i := c.ids[e.id]; i != nil {
		if ev.Type == verbs.EventAddrResolved {
			i.refresh()
		}
		ev.ID, ok = i, true
	}
	c.mu.Unlock()
	C.rdma_ack_cm_event(e.event)
	if unwanted != nil {
		C.rdma_destroy_id(unwanted)
	}
	return ev, ok, false, nil
}

// add makes the ID of a C ID, with c.mu held.
func (c *cm) add(cid *C.struct_rdma_cm_id) *id {
	i := &id{cm: c, c: cid}
	c.ids[cid] = i
	return i
}

func (c *cm) createC() (*C.struct_rdma_cm_id, error) {
	var cid *C.struct_rdma_cm_id
	if r, err := C.rdma_create_id(c.ch, &cid, nil, C.RDMA_PS_TCP); r != 0 {
		return nil, noDevice(failErr("rdma_create_id", err, ""), unix.ENODEV)
	}
	return cid, nil
}

func (c *cm) create() (*id, error) {
	cid, err := c.createC()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.add(cid), nil
}

func (c *cm) NewID() (verbs.ID, error) {
	i, err := c.create()
	if err != nil {
		return nil, err
	}
	return i, nil
}
