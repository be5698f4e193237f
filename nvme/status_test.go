package nvme

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestStatus(t *testing.T) {
	for _, tc := range []struct {
		s    Status
		text string
		sct  uint8
		sc   uint8
		ok   bool
	}{
		{Success, "Success (0/00h)", 0, 0, true},
		{InvalidField | DNR, "Invalid Field in Command (0/02h) DNR", 0, 2, false},
		{ConnectInvalidHost, "Connect Invalid Host (1/84h)", 1, 0x84, false},
		{ANATransition, "Asymmetric Access Transition (3/03h)", 3, 3, false},
		{0x7FF, "status (7/FFh)", 7, 0xFF, false},
	} {
		if tc.s.String() != tc.text || tc.s.SCT() != tc.sct || tc.s.SC() != tc.sc ||
			tc.s.OK() != tc.ok || tc.s.Error() != tc.text {
			t.Errorf("%#x: %q %d %#x %t", uint16(tc.s), tc.s, tc.s.SCT(), tc.s.SC(), tc.s.OK())
		}
	}
	testutil.Equal(t, (InvalidOpcode | DNR | 1<<13).Code(), InvalidOpcode, "Code keeps flags")
}

// TestEveryStatusHasAName keeps logs readable.
func TestEveryStatusHasAName(t *testing.T) {
	for _, s := range []Status{
		Success, InvalidOpcode, InvalidField, CommandIDConflict, DataTransferError,
		AbortedPowerLoss, InternalError, AbortRequested,
		AbortedSQDeletion, AbortedFailedFused, AbortedMissingFused, InvalidNamespaceOrFormat,
		CommandSequenceError,
		InvalidSGLSegment, InvalidSGLCount, DataSGLLengthInvalid, SGLTypeInvalid, SGLOffsetInvalid,
		HostIDInconsistent, KATOExpired, AbortedPreempt,
		KATOInvalid, TransientTransportError, NamespaceWriteProtected, CommandInterrupted,
		LBAOutOfRange, CapacityExceeded,
		NamespaceNotReady, ReservationConflict, InvalidQueueIdentifier, AbortLimitExceeded,
		AERLimitExceeded, InvalidLogPage,
		FeatureNotSaveable, FeatureNotChangeable, SelfTestInProgress, CommandSetsRejected,
		ConnectIncompatibleFormat, ConnectControllerBusy,
		ConnectInvalidParameters,
		ConnectRestartDiscovery, ConnectInvalidHost, InvalidQueueType, DiscoveryRestart,
		AuthenticationRequired, WriteFault, UnrecoveredReadError,
		CompareFailure, InternalPathError, ANAPersistentLoss, ANAInaccessible, ANATransition,
		ControllerPathingError,
		HostPathingError, CommandAbortedByHost,
	} {
		testutil.True(t, statusNames[s] != "", "%#x has no name", uint16(s))
	}
}

func TestTransportType(t *testing.T) {
	for want, tt := range map[string]TransportType{
		"rdma": TransportRDMA, "fc": TransportFC,
		"tcp": TransportTCP, "loop": TransportLoop, "unknown": 9,
	} {
		testutil.Equal(t, tt.String(), want, "%d: %s", tt, tt)
	}
}
