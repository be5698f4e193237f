package admin

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// EventKind is an asynchronous event that controllers send.
type EventKind uint8

// The events.
const (
	EventNamespace EventKind = iota
	EventDiscovery
	EventReliability
	EventTemperature
	EventSpare
	EventReservation
	EventANA
	EventPersistentError // asks the host for a reset
	eventKinds
)

// eventInfo has the value of each event, the feature bits that enable it, and whether discovery
// controllers send it or the others.
var eventInfo = [eventKinds]struct {
	event     nvme.AsyncEvent
	mask      nvme.EventMask
	discovery bool
}{
	EventNamespace: {nvme.AsyncNamespaceChanged, nvme.EventNamespaceChanged, false},
	EventDiscovery: {nvme.AsyncDiscoveryChanged, nvme.EventDiscoveryChanged, true},
	EventReliability: {
		nvme.AsyncReliability,
		nvme.EventReliability | nvme.EventReadOnly | nvme.EventVolatileMemory, false,
	},
	EventTemperature: {nvme.AsyncTemperature, nvme.EventTemperature, false},
	EventSpare:       {nvme.AsyncSpareLow, nvme.EventSpareLow, false},
	EventReservation: {nvme.AsyncReservation, 0, false}, // FID 82h masks it instead
	EventANA:         {nvme.AsyncANAChanged, nvme.EventANAChanged, false},
	// Errors are always enabled (Base section 5.1.2.1).
	EventPersistentError: {nvme.AsyncPersistentError, 0, false},
}

// SupportedEvents is OAES. Warnings of the health log are always supported and not listed.
func SupportedEvents(discovery bool) (m nvme.EventMask) {
	for _, i := range eventInfo {
		if i.discovery == discovery {
			m |= i.mask
		}
	}
	return m &^ nvme.EventSMARTMask
}

// Warns returns the events of critical warnings of the health log.
func Warns(warning uint8) (list []EventKind) {
	for k := range eventKinds {
		if uint8(eventInfo[k].mask&nvme.EventSMARTMask)&warning != 0 {
			list = append(list, k)
		}
	}
	return list
}

// Events is the state of the asynchronous events of a controller (Base section 5.1.2). An event
// that was sent is masked until its log page is read, so each is sent exactly once.
type Events struct {
	Discovery bool           // the controller is a discovery controller
	Enabled   nvme.EventMask // by the host
	waiting   [eventKinds]bool
	masked    [eventKinds]bool
}

// Reset makes no event enabled, waiting or masked.
func (e *Events) Reset() { *e = Events{Discovery: e.Discovery} }

// Reports reports whether an event would be reported now: it is enabled and not masked.
func (e *Events) Reports(k EventKind) bool {
	info := &eventInfo[k]
	return (info.mask == 0 || e.Enabled&info.mask != 0) && info.discovery == e.Discovery &&
		!e.masked[k]
}

// Waits reports whether an event waits for a request of the host.
func (e *Events) Waits(k EventKind) bool { return e.waiting[k] }

// Raise reports an event if the host has enabled it. The caller then sends the result of Next.
func (e *Events) Raise(k EventKind) {
	if e.Reports(k) {
		e.waiting[k] = true
	}
}

// Next returns the next event that waits, which the caller sends. ok is false if there is none.
func (e *Events) Next() (event nvme.AsyncEvent, ok bool) {
	k := slices.Index(e.waiting[:], true)
	if k < 0 {
		return 0, false
	}
	e.waiting[k], e.masked[k] = false, true
	return eventInfo[k].event, true
}

// Unmask ends the masking of the event that belongs to a log page.
func (e *Events) Unmask(lid nvme.LID) {
	for k := range eventKinds {
		if eventInfo[k].event.LID() == lid {
			e.masked[k], e.waiting[k] = false, false
		}
	}
}

// ChangedNamespaces is the content of log 04h.
type ChangedNamespaces struct {
	nsids    []uint32 // ascending
	overflow bool
}

// Add adds a namespace that has changed.
func (l *ChangedNamespaces) Add(nsid uint32) {
	i, found := slices.BinarySearch(l.nsids, nsid)
	switch {
	case found:
	case len(l.nsids) == nvme.NamespacesPerList:
		l.overflow = true
	default:
		l.nsids = slices.Insert(l.nsids, i, nsid)
	}
}

// Page makes log 04h.
func (l *ChangedNamespaces) Page() []byte {
	nsids := l.nsids
	if l.overflow {
		nsids = []uint32{nvme.ChangedNamespacesOverflow}
	}
	return nvme.AppendNamespaceList(nil, nsids)
}
