package nvme

import (
	"encoding/binary"
	"math/bits"
)

// SMARTLogSize is the size of log 02h.
const SMARTLogSize = 512

// SMARTLog is the SMART / Health Information log, LID 02h (Base section 5.1.12.1.3).
type SMARTLog struct {
	CriticalWarning    uint8
	Temperature        uint16 // kelvin
	AvailableSpare     uint8  // percent
	SpareThreshold     uint8  // percent
	PercentageUsed     uint8
	EnduranceWarnings  uint8
	_                  [25]byte
	DataUnitsRead      Uint128 // thousands of 512 bytes
	DataUnitsWritten   Uint128
	HostReads          Uint128 // commands
	HostWrites         Uint128
	BusyTime           Uint128 // minutes
	PowerCycles        Uint128
	PowerOnHours       Uint128
	UnsafeShutdowns    Uint128
	MediaErrors        Uint128
	ErrorLogEntries    Uint128
	WarningTempTime    uint32 // minutes
	CriticalTempTime   uint32 // minutes
	TemperatureSensor  [8]uint16
	ThermalTransitions [2]uint32
	ThermalTime        [2]uint32 // seconds
	_                  [280]byte
}

// The bits of CriticalWarning.
const (
	SMARTSpareLow       = 1 << 0
	SMARTTemperature    = 1 << 1
	SMARTReliability    = 1 << 2
	SMARTReadOnly       = 1 << 3
	SMARTVolatileMemory = 1 << 4
)

// Uint128 is a little-endian 128-bit number.
type Uint128 [16]byte

// MakeUint128 converts a 64-bit number.
func MakeUint128(v uint64) (u Uint128) {
	binary.LittleEndian.PutUint64(u[:], v)
	return u
}

// Add returns the sum, modulo 2^128.
func (u Uint128) Add(v Uint128) (sum Uint128) {
	low, carry := bits.Add64(binary.LittleEndian.Uint64(u[:]), binary.LittleEndian.Uint64(v[:]), 0)
	high, _ := bits.Add64(binary.LittleEndian.Uint64(u[8:]), binary.LittleEndian.Uint64(v[8:]),
		carry)
	binary.LittleEndian.PutUint64(sum[:], low)
	binary.LittleEndian.PutUint64(sum[8:], high)
	return sum
}

// Max returns the larger number.
func (u Uint128) Max(v Uint128) Uint128 {
	a, b := binary.LittleEndian.Uint64(u[8:]), binary.LittleEndian.Uint64(v[8:])
	if a == b {
		a, b = binary.LittleEndian.Uint64(u[:]), binary.LittleEndian.Uint64(v[:])
	}
	if a < b {
		return v
	}
	return u
}

// Uint64 returns the lower 64 bits; ok is false if the number is larger.
func (u Uint128) Uint64() (v uint64, ok bool) {
	return binary.LittleEndian.Uint64(u[:]), binary.LittleEndian.Uint64(u[8:]) == 0
}
