package verbs

import "testing"

func TestEventNames(t *testing.T) {
	for ev, want := range map[EventType]string{
		EventAddrResolved: "ADDR_RESOLVED", EventConnectRequest: "CONNECT_REQUEST",
		EventRejected:    "REJECTED",
		EventEstablished: "ESTABLISHED", EventDisconnected: "DISCONNECTED",
		EventDeviceRemoval: "DEVICE_REMOVAL",
		EventTimewaitExit:  "TIMEWAIT_EXIT", EventTimewaitExit + 1: "UNKNOWN",
	} {
		if got := ev.String(); got != want {
			t.Errorf("event %d is %q, want %q", uint32(ev), got, want)
		}
	}
}
