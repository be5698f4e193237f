package controllers

import (
	"math"
	"slices"
	"time"

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
	// selfTestSample is the number of chunks that a short test reads.
	selfTestSample = 1024
)

// SelfTestPlan is the work of a self-test.
type SelfTestPlan struct {
	NSIDs  []uint32 // namespaces to read
	sample uint64   // chunks of each namespace
	total  uint64   // chunks of all namespaces
}

// PlanSelfTest plans a test of namespaces. Any goroutine.
func PlanSelfTest(code nvme.SelfTestCode, list []*namespaces.Namespace) SelfTestPlan {
	p := SelfTestPlan{sample: math.MaxUint64}
	if code == nvme.SelfTestShort {
		p.sample = uint64(max(selfTestSample/max(len(list), 1), 1))
	}
	for _, ns := range list {
		p.NSIDs = append(p.NSIDs, ns.ID.NSID)
		p.total += min(chunks(ns.Geometry()), p.sample)
	}
	return p
}

// Chunk returns the chunk that is read as the nth of a namespace, false after the last one. A
// sample has the first, the last, and others between them.
func (p *SelfTestPlan) Chunk(g *namespaces.Geometry, nth uint64) (at uint64, ok bool) {
	all := chunks(g)
	n := min(all, p.sample)
	if n < all && n > 1 {
		return nth * (all - 1) / (n - 1), nth < n
	}
	return nth, nth < n
}

// chunks is the number of chunks of a namespace.
func chunks(g *namespaces.Geometry) uint64 {
	return (g.Blocks<<g.Shift + uint64(compound.Chunk) - 1) / uint64(compound.Chunk)
}

// SelfTest is the state of the self-tests of a controller that log 06h shows.
type SelfTest struct {
	Code        nvme.SelfTestCode // of the operation in progress, 0: none
	Done, Total uint64            // chunks of all namespaces
	Results     []nvme.SelfTestResult
}

// Begin begins an operation.
func (t *SelfTest) Begin(code nvme.SelfTestCode, p SelfTestPlan) {
	t.Code, t.Done, t.Total = code, 0, p.total
}

// End adds the result of the operation in progress, at an age of the target.
func (t *SelfTest) End(r nvme.SelfTestResult, how nvme.SelfTestOutcome, age time.Duration) {
	r.DSTS = uint8(t.Code)<<4 | uint8(how)
	r.POH = uint64(age / time.Hour)
	t.Results = slices.Insert(t.Results, 0, r)
	t.Results = t.Results[:min(len(t.Results), nvme.SelfTestResults)]
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
		size += chunks(ns.Geometry()) * uint64(compound.Chunk)
	}
	return uint16(min(size/selfTestRate/60+1, math.MaxUint16))
}
