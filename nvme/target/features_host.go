package target

import (
	"encoding/binary"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// This file has features whose values are more than a number: temperature thresholds, the timestamp
// and what a host supports. All of it belongs to the reactor of the controller.

// defaultThresholds are the temperatures in kelvin, by THSEL, that none is above or below.
var defaultThresholds = [2]uint16{nvme.THSELOver: 0xFFFF, nvme.THSELUnder: 0}

// compositeThreshold reports whether TMPSEL and THSEL name a threshold that exists: those of the
// composite temperature (Base section 5.1.25.1.3). There are no other sensors.
func compositeThreshold(v uint32) bool {
	t := nvme.TemperatureThreshold(v)
	return t.TMPSEL() == nvme.TMPSELComposite && t.THSEL() <= nvme.THSELUnder
}

func readThreshold(c *controller, sqe *nvme.FeaturesSQE) uint32 {
	t := nvme.TemperatureThreshold(sqe.Value())
	if sqe.SEL() != nvme.FeatureCurrent {
		return uint32(defaultThresholds[t.THSEL()])
	}
	return uint32(c.thresholds[t.THSEL()])
}

func setThreshold(c *controller, v uint32) (uint32, nvme.Status) {
	t := nvme.TemperatureThreshold(v)
	if t.TMPSEL() == nvme.TMPSELAll {
		t &^= nvme.TMPSELAll << 16
	}
	if !compositeThreshold(uint32(t)) {
		return 0, invalidField
	}
	c.thresholds[t.THSEL()] = t.TMPTH()
	c.checkTemperature()
	return v, nvme.Success
}

// beyond reports whether a temperature, in kelvin, has reached a threshold; 0 is none.
func (c *controller) beyond(kelvin uint16) bool {
	return kelvin != 0 && (kelvin >= c.thresholds[nvme.THSELOver] ||
		kelvin <= c.thresholds[nvme.THSELUnder])
}

// checkTemperature compares the temperature of the drives that the host uses, as it was at the last
// checkHealth, with the thresholds, and raises the event when it reaches one.
func (c *controller) checkTemperature() {
	was := c.beyondLimit
	c.beyondLimit = c.beyond(c.temperature)
	if c.beyondLimit && !was {
		c.raise(eventTemperature)
	}
}

// errorRecovery is TLER of a namespace (NVM section 4.1.3). The target tries nothing again, so it
// is within any limit.
func errorRecovery(ns *namespace) uint32 { return ns.errorRecovery.Load() }

// setErrorRecovery sets TLER. Deallocated blocks can be read (NSFEAT bit 2 is 0), so there is
// no DULBE.
func setErrorRecovery(h *Handler, c *cmd, list []*namespace, v uint32) {
	if v&nvme.ErrorRecoveryDULBE != 0 {
		h.finish(c, 0, invalidField)
		return
	}
	for _, ns := range list {
		ns.errorRecovery.Store(v & 0xFFFF)
	}
	h.finish(c, 0, nvme.Success)
}

// clock is the Timestamp of a controller (Base section 5.1.25.1.7): it was ms when the loop was at
// at. Only its host uses it.
type clock struct {
	ms     uint64
	at     int64 // nanoseconds
	origin uint8 // 0 since the last reset, or TimestampSet
}

func (c *controller) timestamp() []byte {
	var b [nvme.TimestampSize]byte
	ms := c.clock.ms + uint64(c.h.loop.Now()-c.clock.at)/1e6
	binary.LittleEndian.PutUint64(b[:], ms&(1<<48-1))
	b[6] = c.clock.origin
	return b[:]
}

func (c *controller) setTimestamp(data []byte) nvme.Status {
	ms := binary.LittleEndian.Uint64(data) & (1<<48 - 1)
	c.clock = clock{ms: ms, at: c.h.loop.Now(), origin: nvme.TimestampSet}
	return nvme.Success
}

// setHostBehavior stores what the host supports (Base section 5.1.25.1.14): the formats of Copy.
// There are no retry delays and no extended formats, so nothing else of it changes anything.
func (c *controller) setHostBehavior(data []byte) nvme.Status {
	for _, b := range data[:nvme.HostBehaviorCDFE] {
		if b > 1 {
			return invalidField
		}
	}
	copy(c.hostBehavior[:], data)
	formats := binary.LittleEndian.Uint16(data[nvme.HostBehaviorCDFE:])
	c.copyFormats.Store(uint32(formats))
	return nvme.Success
}
