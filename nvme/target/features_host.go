package target

import (
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// This file has features with values that are more than a number, or that belong to a namespace.

func readThreshold(c *controller, sqe *nvme.FeaturesSQE) uint32 { return c.thresholds.Get(sqe) }

func setThreshold(c *controller, v uint32) (uint32, nvme.Status) {
	if !c.thresholds.Set(v) {
		return 0, invalidField
	}
	c.checkTemperature()
	return v, nvme.Success
}

// errorRecovery is TLER of a namespace (NVM section 4.1.3). The target tries nothing again, so it
// is within any limit.
func errorRecovery(ns *namespaces.Namespace) uint32 { return ns.ErrorRecovery.Load() }

// setErrorRecovery sets TLER. Deallocated blocks can be read (NSFEAT bit 2 is 0), so there is
// no DULBE.
func setErrorRecovery(ns *namespaces.Namespace, v uint32) { ns.ErrorRecovery.Store(v & 0xFFFF) }

func (c *controller) timestamp() []byte { return c.clock.Page(c.h.loop.Now()) }

func (c *controller) setTimestamp(data []byte) nvme.Status {
	c.clock.Set(data, c.h.loop.Now())
	return nvme.Success
}

func (c *controller) setHostBehavior(data []byte) nvme.Status {
	formats, ok := c.hostBehavior.Set(data)
	if !ok {
		return invalidField
	}
	c.copyFormats.Store(uint32(formats))
	return nvme.Success
}
