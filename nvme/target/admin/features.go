package admin

import (
	"encoding/binary"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// Thresholds are the temperature thresholds of a controller in kelvin, by THSEL (Base section
// 5.1.25.1.3). Only the composite temperature has some: there are no other sensors.
type Thresholds [2]uint16

// DefaultThresholds are neither above nor below any temperature.
var DefaultThresholds = Thresholds{nvme.THSELOver: 0xFFFF, nvme.THSELUnder: 0}

// ValidThreshold reports whether TMPSEL and THSEL name a threshold that exists.
func ValidThreshold(v uint32) bool {
	t := nvme.TemperatureThreshold(v)
	return t.TMPSEL() == nvme.TMPSELComposite && t.THSEL() <= nvme.THSELUnder
}

// Get returns the threshold that a Get Features command names.
func (t *Thresholds) Get(sqe *nvme.FeaturesSQE) uint32 {
	which := nvme.TemperatureThreshold(sqe.Value()).THSEL()
	if sqe.SEL() != nvme.FeatureCurrent {
		return uint32(DefaultThresholds[which])
	}
	return uint32(t[which])
}

// Set takes a value of Set Features. It reports whether the value is valid.
func (t *Thresholds) Set(v uint32) bool {
	to := nvme.TemperatureThreshold(v)
	if to.TMPSEL() == nvme.TMPSELAll {
		to &^= nvme.TMPSELAll << 16
	}
	if !ValidThreshold(uint32(to)) {
		return false
	}
	t[to.THSEL()] = to.TMPTH()
	return true
}

// Beyond reports whether a temperature, in kelvin, has reached a threshold; 0 is none.
func (t *Thresholds) Beyond(kelvin uint16) bool {
	return kelvin != 0 && (kelvin >= t[nvme.THSELOver] || kelvin <= t[nvme.THSELUnder])
}

// Clock is the Timestamp of a controller (Base section 5.1.25.1.7). Only its host uses it.
type Clock struct {
	ms     uint64 // when the loop was at at
	at     int64  // nanoseconds
	origin uint8  // 0 since the last reset, or TimestampSet
}

// NewClock returns the clock of a controller that is reset at a time of its loop.
func NewClock(now int64) Clock { return Clock{at: now} }

// Page makes the data of Get Features.
func (c *Clock) Page(now int64) []byte {
	var b [nvme.TimestampSize]byte
	ms := c.ms + uint64(now-c.at)/1e6
	binary.LittleEndian.PutUint64(b[:], ms&(1<<48-1))
	b[6] = c.origin
	return b[:]
}

// Set takes the data of Set Features.
func (c *Clock) Set(data []byte, now int64) {
	ms := binary.LittleEndian.Uint64(data) & (1<<48 - 1)
	*c = Clock{ms: ms, at: now, origin: nvme.TimestampSet}
}

// HostBehavior is Host Behavior Support (Base section 5.1.25.1.14) without zeroes at the end.
type HostBehavior [nvme.HostBehaviorCDFE + 2]byte

// Set takes the data of Set Features. It returns the formats of Copy that the host uses: there are
// no retry delays and no extended formats, so nothing else changes anything.
func (b *HostBehavior) Set(data []byte) (copyFormats uint16, ok bool) {
	for _, v := range data[:nvme.HostBehaviorCDFE] {
		if v > 1 {
			return 0, false
		}
	}
	copy(b[:], data)
	return binary.LittleEndian.Uint16(data[nvme.HostBehaviorCDFE:]), true
}
