package controllers

import (
	"math"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// The limits of a Copy command (NVM section 4.1.5.1): MSRC ranges, MSSRL blocks in each of them,
// and MCL blocks in total, which is copyLimit bytes.
const (
	copyLimit  = 64 << 20
	CopyRanges = nvme.MaxCopyRanges
)

// MCL is the limit for a namespace.
func MCL(g *namespaces.Geometry) uint32 { return copyLimit >> g.Shift }

// MSSRL is the limit for a namespace.
func MSSRL(g *namespaces.Geometry) uint16 { return uint16(min(MCL(g), 0xFFFF)) }

// CopyFormats are the formats of source ranges that are supported (CDFS).
var CopyFormats = nvme.CopyRanges.Bit() | nvme.CopyNamespaces.Bit()

// wusl is WUSL, in which a controller recommends to mark no more at once than marks.Max: a power of
// two in units of 4 KiB (NVM section 4.1.5.4).
const wusl = 9

const (
	// SelfTestPause is the least time between two reads, in nanoseconds. The pause is as long as
	// the read before, if that took longer.
	SelfTestPause = int64(1e6)
	// selfTestRate is the number of bytes read in a second, if a read takes as long as the pause.
	selfTestRate = uint64(compound.Chunk) * 1e9 / uint64(2*SelfTestPause)
)

// Chunks is the number of chunks of a namespace.
func Chunks(g *namespaces.Geometry) uint64 {
	return (g.Blocks<<g.Shift + uint64(compound.Chunk) - 1) / uint64(compound.Chunk)
}

// SelfTest is the state of the self-tests of a controller that log 06h shows.
type SelfTest struct {
	Code        nvme.SelfTestCode // of the operation in progress, 0: none
	Done, Total uint64            // chunks of all namespaces
	Results     []nvme.SelfTestResult
}

// selfTestPage makes log 06h (Base section 5.1.12.1.7).
func selfTestPage(c *Controller, _ *nvme.SQE) admin.Reply {
	t := &c.SelfTest
	l := &nvme.SelfTestLog{Operation: t.Code}
	if t.Code != 0 && t.Total > 0 {
		l.Completion = uint8(min(t.Done, t.Total) * 100 / t.Total)
	}
	for i := range l.Results {
		l.Results[i].DSTS = uint8(nvme.SelfTestUnused)
	}
	copy(l.Results[:], t.Results)
	return admin.Reply{Data: nvme.Append(nil, l)}
}

// selfTestMinutes is EDSTT: how long an extended test of all namespaces takes. Any goroutine.
func (c *Controller) selfTestMinutes() uint16 {
	var size uint64
	for _, ns := range c.Namespaces() {
		size += Chunks(ns.Geometry()) * uint64(compound.Chunk)
	}
	return uint16(min(size/selfTestRate/60+1, math.MaxUint16))
}
