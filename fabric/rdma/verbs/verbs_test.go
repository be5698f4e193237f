package verbs

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestEventNames(t *testing.T) {
	for ev, want := range map[EventType]string{
		EventAddrResolved: "ADDR_RESOLVED", EventConnectRequest: "CONNECT_REQUEST",
		EventRejected:    "REJECTED",
		EventEstablished: "ESTABLISHED", EventDisconnected: "DISCONNECTED",
		EventDeviceRemoval: "DEVICE_REMOVAL",
		EventTimewaitExit:  "TIMEWAIT_EXIT", EventTimewaitExit + 1: "UNKNOWN",
	} {
		testutil.Equal(t, ev.String(), want, "event %d", uint32(ev))
	}
}
