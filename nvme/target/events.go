package target

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// asyncLimit is AERL+1: how many Asynchronous Event Requests a host may have outstanding.
const asyncLimit = 4

// eventKind is an asynchronous event that this controller sends.
type eventKind uint8

const (
	eventNamespace eventKind = iota
	eventDiscovery
	eventReliability
	eventTemperature
	eventSpare
	eventReservation
	eventANA
	eventPersistentError // asks the host for a reset
	eventKinds
)

// eventInfo has the value of each event, the feature bits that enable it, and whether discovery
// controllers send it or the others.
var eventInfo = [eventKinds]struct {
	event     nvme.AsyncEvent
	mask      nvme.EventMask
	discovery bool
}{
	eventNamespace: {nvme.AsyncNamespaceChanged, nvme.EventNamespaceChanged, false},
	eventDiscovery: {nvme.AsyncDiscoveryChanged, nvme.EventDiscoveryChanged, true},
	eventReliability: {
		nvme.AsyncReliability,
		nvme.EventReliability | nvme.EventReadOnly | nvme.EventVolatileMemory, false,
	},
	eventTemperature: {nvme.AsyncTemperature, nvme.EventTemperature, false},
	eventSpare:       {nvme.AsyncSpareLow, nvme.EventSpareLow, false},
	eventReservation: {nvme.AsyncReservation, 0, false}, // FID 82h masks it instead
	eventANA:         {nvme.AsyncANAChanged, nvme.EventANAChanged, false},
	// Errors are always enabled (Base section 5.1.2.1).
	eventPersistentError: {nvme.AsyncPersistentError, 0, false},
}

// supportedEvents is OAES, which does not list the warnings of the health log: they are always
// supported.
func (c *controller) supportedEvents() (m nvme.EventMask) {
	for _, i := range eventInfo {
		if i.discovery == c.sub.discovery {
			m |= i.mask
		}
	}
	return m &^ nvme.EventSMARTMask
}

// events is the state of asynchronous events of a controller (Base section 5.1.2): an event that
// was sent is masked until its log page is read, so each is sent exactly once.
type events struct {
	requests []*cmd
	waiting  [eventKinds]bool
	masked   [eventKinds]bool
}

// reports reports whether an event is reported if it happens now: the host has enabled it, and it
// is not masked.
func (c *controller) reports(k eventKind) bool {
	info := &eventInfo[k]
	on := nvme.EventMask(c.features[nvme.FeatureAsyncEventConfig])
	enabled := info.mask == 0 || on&info.mask != 0
	return enabled && info.discovery == c.sub.discovery && !c.events.masked[k]
}

// raise reports an event if the host has enabled it.
func (c *controller) raise(k eventKind) {
	if c.reports(k) {
		c.events.waiting[k] = true
		c.sendEvents()
	}
}

// sendEvents completes requests with waiting events.
func (c *controller) sendEvents() {
	e := &c.events
	for k := range eventKinds {
		if !e.waiting[k] || len(e.requests) == 0 {
			continue
		}
		e.waiting[k], e.masked[k] = false, true
		r := e.requests[0]
		e.requests = slices.Delete(e.requests, 0, 1)
		c.h.finish(r, uint64(eventInfo[k].event), nvme.Success)
	}
}

// unmask ends the masking of the event that belongs to a log page.
func (c *controller) unmask(lid nvme.LID) {
	for k := range eventKinds {
		if eventInfo[k].event.LID() == lid {
			c.events.masked[k], c.events.waiting[k] = false, false
		}
	}
}

// abortEvents completes the outstanding requests because the controller is reset or the queue has
// ended.
func (c *controller) abortEvents() {
	requests := c.events.requests
	c.events.requests = nil
	for _, r := range requests {
		c.h.finish(r, 0, nvme.AbortRequested)
	}
}

// asyncEventRequest holds the command until there is an event.
func asyncEventRequest(h *Handler, cm *cmd) {
	c := cm.s.ctrl
	if len(c.events.requests) >= asyncLimit {
		h.finish(cm, 0, nvme.AERLimitExceeded|nvme.DNR)
		return
	}
	c.events.requests = append(c.events.requests, cm)
	c.sendEvents()
}

// changedNamespaces is the content of log 04h.
type changedNamespaces struct {
	nsids    []uint32 // ascending
	overflow bool
}

func (l *changedNamespaces) add(nsid uint32) {
	i, found := slices.BinarySearch(l.nsids, nsid)
	switch {
	case found:
	case len(l.nsids) == nvme.NamespacesPerList:
		l.overflow = true
	default:
		l.nsids = slices.Insert(l.nsids, i, nsid)
	}
}

func (c *controller) namespaceChanged(nsid uint32) {
	c.changed.add(nsid)
	c.raise(eventNamespace)
	if c.ana.Changes() > 0 && !c.anaStale {
		c.anaStale = true
		// Once for all that are added or removed together.
		c.h.post(func() { c.gatherANA(c.namespacesChanged) })
	}
}

// namespacesChanged reports that log 0Ch is another one because of that.
func (c *controller) namespacesChanged(now []nvme.ANAGroup) {
	if c.anaStale = false; c.ana.Refresh(now) {
		c.raise(eventANA)
	}
}
