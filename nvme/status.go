package nvme

import "fmt"

// Status is the status field of a completion queue entry without the phase tag (Base figure 100):
// SC in bits 7:0, SCT in bits 10:8, CRD in bits 12:11, More in bit 13, DNR in bit 14.
type Status uint16

// DNR is the Do Not Retry bit: the same command, resubmitted, is expected to fail again.
const DNR Status = 1 << 14

// More is the More bit: the error information log (LID 01h) has an entry about this error.
const More Status = 1 << 13

// Code returns the status without CRD, More and DNR, for comparison with the constants below.
func (s Status) Code() Status { return s & 0x7FF }

// SCT is the status code type.
func (s Status) SCT() uint8 { return uint8(s>>8) & 7 }

// SC is the status code.
func (s Status) SC() uint8 { return uint8(s) }

// OK reports whether the command succeeded.
func (s Status) OK() bool { return s&0x7FF == 0 }

// String is "Invalid Field in Command (0/02h) DNR".
func (s Status) String() string {
	name, ok := statusNames[s.Code()]
	if !ok {
		name = "status"
	}
	dnr := ""
	if s&DNR != 0 {
		dnr = " DNR"
	}
	return fmt.Sprintf("%s (%d/%02Xh)%s", name, s.SCT(), s.SC(), dnr)
}

// Error makes a Status usable as an error on the host side.
func (s Status) Error() string { return s.String() }
