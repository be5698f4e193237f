package nvme

import (
	"encoding/binary"
	"fmt"
)

// ReservationSQE is a Reservation Register, Acquire, Release or Report command (Base sections 7.5
// to 7.8).
type ReservationSQE SQE

// Reservation views s as a reservation command.
func (s *SQE) Reservation() *ReservationSQE { return (*ReservationSQE)(s) }

// Action is RREGA, RACQA or RRELA (CDW10 bits 2:0).
func (s *ReservationSQE) Action() ReservationAction { return ReservationAction(s[40] & 7) }

// IEKEY asks to ignore the existing key (CDW10 bit 3).
func (s *ReservationSQE) IEKEY() bool { return s[40]&8 != 0 }

// Type is RTYPE of Acquire and Release (CDW10 bits 15:8).
func (s *ReservationSQE) Type() ReservationType { return ReservationType(s[41]) }

// CPTPL changes the Persist Through Power Loss state (Register, CDW10 bits 31:30).
func (s *ReservationSQE) CPTPL() ChangePTPL { return ChangePTPL(s[43] >> 6) }

// Set writes the action, IEKEY, RTYPE and CPTPL.
func (s *ReservationSQE) Set(a ReservationAction, iekey bool, t ReservationType, p ChangePTPL) {
	s[40], s[41], s[42], s[43] = byte(a), byte(t), 0, byte(p)<<6
	if iekey {
		s[40] |= 8
	}
}

// Bytes is the number of bytes that Report asks for: NUMD counts dwords, 0-based (CDW10).
func (s *ReservationSQE) Bytes() uint64 { return (uint64((*SQE)(s).CDW(10)) + 1) * 4 }

// EDS asks Report for the extended data structure (CDW11 bit 0).
func (s *ReservationSQE) EDS() bool { return s[44]&1 != 0 }

// SetReport writes the number of bytes, a multiple of 4 of at least 4, and EDS.
func (s *ReservationSQE) SetReport(bytes int, eds bool) {
	(*SQE)(s).SetCDW(10, uint32(bytes/4-1))
	s[44] = 0
	if eds {
		s[44] = 1
	}
}

// ReservationAction is the action of a reservation command.
type ReservationAction uint8

// The actions of Register, Acquire and Release.
const (
	ReservationRegister   ReservationAction = 0
	ReservationUnregister ReservationAction = 1
	ReservationReplace    ReservationAction = 2

	ReservationAcquire         ReservationAction = 0
	ReservationPreempt         ReservationAction = 1
	ReservationPreemptAndAbort ReservationAction = 2

	ReservationRelease ReservationAction = 0
	ReservationClear   ReservationAction = 1
)

// ChangePTPL is CPTPL of Reservation Register.
type ChangePTPL uint8

// The values of CPTPL; 1 is reserved.
const (
	KeepPTPL  ChangePTPL = 0
	ClearPTPL ChangePTPL = 2
	SetPTPL   ChangePTPL = 3
)

// ReservationType is RTYPE (Base section 7.5); 0 is none.
type ReservationType uint8

// The types of reservations.
const (
	WriteExclusive                 ReservationType = 1
	ExclusiveAccess                ReservationType = 2
	WriteExclusiveRegistrantsOnly  ReservationType = 3
	ExclusiveAccessRegistrantsOnly ReservationType = 4
	WriteExclusiveAllRegistrants   ReservationType = 5
	ExclusiveAccessAllRegistrants  ReservationType = 6
)

// AllRegistrants reports whether every registrant holds the reservation.
func (t ReservationType) AllRegistrants() bool { return t >= WriteExclusiveAllRegistrants }

// SingleHolder reports whether registrants have no more rights than other hosts.
func (t ReservationType) SingleHolder() bool { return t <= ExclusiveAccess }

// ExcludesReads reports whether hosts without access may not read either.
func (t ReservationType) ExcludesReads() bool { return t != 0 && t%2 == 0 }

var reservationTypes = [...]string{
	"none", "Write Exclusive", "Exclusive Access", "Write Exclusive - Registrants Only",
	"Exclusive Access - Registrants Only", "Write Exclusive - All Registrants",
	"Exclusive Access - All Registrants",
}

func (t ReservationType) String() string {
	if int(t) < len(reservationTypes) {
		return reservationTypes[t]
	}
	return fmt.Sprintf("reservation type %d", uint8(t))
}

// ReservationKeys is the data of Register (CRKEY, NRKEY), Acquire (and PRKEY), Release (CRKEY).
type ReservationKeys [16]byte

// ReservationReleaseSize is the part of ReservationKeys that Release carries, in bytes.
const ReservationReleaseSize = 8

// Current is CRKEY.
func (k *ReservationKeys) Current() uint64 { return binary.LittleEndian.Uint64(k[0:]) }

// Other is NRKEY or PRKEY.
func (k *ReservationKeys) Other() uint64 { return binary.LittleEndian.Uint64(k[8:]) }

func (k *ReservationKeys) Set(current, other uint64) {
	binary.LittleEndian.PutUint64(k[0:], current)
	binary.LittleEndian.PutUint64(k[8:], other)
}

// ReservationStatus is the header of the Reservation Status Extended data structure, which Report
// returns (Base section 7.8). Registrants follow.
type ReservationStatus struct {
	GEN    uint32
	RTYPE  ReservationType
	REGCTL uint16 // registrants
	_      [2]byte
	PTPLS  uint8
	_      [54]byte
}

// RegisteredController is the Registered Controller Extended data structure (Base section 7.8).
type RegisteredController struct {
	CNTLID uint16
	RCSTS  uint8 // bit 0: the host holds the reservation
	_      [5]byte
	RKEY   uint64
	HostID [16]byte
	_      [32]byte
}

// The sizes of the parts of the Reservation Status Extended data structure.
const (
	ReservationStatusSize    = 64
	RegisteredControllerSize = 64
)

// ReservationCap is RESCAP of CNS 00h and 08h (byte 31 of CNS 00h).
type ReservationCap uint8

// The bits of RESCAP.
const (
	ReservationCapPTPL  ReservationCap = 1 << 0
	ReservationCapTypes ReservationCap = 0x7E   // all six
	ReservationCapIEKEY ReservationCap = 1 << 7 // IEKEY is as in revision 1.3 and later
)

// ReservationLog is the Reservation Notification log, LID 80h (Base section 5.1.12.1.32).
type ReservationLog struct {
	Count     uint64
	Type      ReservationNotification
	Available uint8 // more pages
	_         [2]byte
	NSID      uint32
	_         [48]byte
}

// ReservationLogSize is the size of the log.
const ReservationLogSize = 64

// ReservationNotification is the type of a reservation notification; 0 is an empty page.
type ReservationNotification uint8

// The types of reservation notifications.
const (
	RegistrationPreempted ReservationNotification = 1
	ReservationReleased   ReservationNotification = 2
	ReservationPreempted  ReservationNotification = 3
)

// Mask is the bit of the Reservation Notification Mask feature (FID 82h, CDW11).
func (n ReservationNotification) Mask() uint32 { return 1 << n }

// ReservationMaskAll has the bits of the Reservation Notification Mask feature.
const ReservationMaskAll uint32 = 0xE
